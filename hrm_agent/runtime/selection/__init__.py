"""Several runs of one task, and the choice of one answer."""
