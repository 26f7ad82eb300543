"""Learning from records: stored runs, their groups and their scores."""
