"""Earlier checkpoints of a thread: shown, compared, edited, forked from."""
