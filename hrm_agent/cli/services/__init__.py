"""Commands that serve, and that say what is there."""
