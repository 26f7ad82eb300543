"""Reasoning agents that learn: LangGraph graphs whose checkpointed runs are what a trainer learns from."""

import os

__version__ = "0.1.0"

# Stored checkpoints are untrusted. With this flag, read when langgraph is imported, a compiled graph tells the
# checkpointer which types its state holds; the store's own serializer refuses all others, flag or no flag.
os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
