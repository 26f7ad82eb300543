"""Reasoning agents that learn: LangGraph graphs whose checkpointed runs are what a trainer learns
from.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm_agent.runtime.recording.record import record

__all__ = ["__version__", "record"]

__version__ = "0.2.0"

# Stored checkpoints are untrusted. With this flag, read when langgraph is imported, a compiled
# graph tells the checkpointer which types its state holds; the store's own serializer refuses all
# others, flag or no flag.
_STRICT = "LANGGRAPH_STRICT_MSGPACK"
_SET_HERE = _STRICT not in os.environ
os.environ.setdefault(_STRICT, "true")


def __getattr__(name: str) -> Any:
    """Import `record` on first use, since it imports LangGraph.

    A program that is only recorded keeps its checkpointers unchanged, so the flag is removed before
    that import.
    """
    if name == "record":
        if _SET_HERE and "langgraph" not in sys.modules:
            os.environ.pop(_STRICT, None)
        return import_module("hrm_agent.runtime.recording.record").record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
