"""Environment over the nodes of a Ray cluster. `environment.py` is the entry point."""
