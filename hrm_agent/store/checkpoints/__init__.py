"""LangGraph's checkpoints in the run store: writing, reading, and whole threads of them."""
