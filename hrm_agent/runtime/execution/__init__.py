"""One graph on one thread."""
