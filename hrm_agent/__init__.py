"""Reasoning agents that learn: LangGraph graphs whose checkpointed runs are what a trainer learns from."""

__version__ = "0.1.0"
