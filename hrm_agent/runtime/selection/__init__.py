"""Several runs of one task, and which of their answers counts."""
