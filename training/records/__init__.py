"""Learning from records: stored runs, their groups, rescored or imported conversations."""
