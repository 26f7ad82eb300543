"""Reasoning agents that learn: LangGraph graphs whose checkpointed runs are what a trainer learns
from.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm_agent.prompts import Prompt
    from hrm_agent.runtime.recording.record import record

__all__ = ["Prompt", "__version__", "record"]

__version__ = "0.2.0"

# Stored checkpoints are untrusted. LangGraph reads this flag when it is imported. If the flag is
# set, a compiled graph tells its checkpointer which types its state holds. The store's own
# serializer refuses all other types, whether the flag is set or not.
_STRICT = "LANGGRAPH_STRICT_MSGPACK"
_SET_HERE = _STRICT not in os.environ
os.environ.setdefault(_STRICT, "true")


def __getattr__(name: str) -> Any:
    """Import `record` and `Prompt` on first use, since `record` imports LangGraph.

    The flag above would also change the checkpointers of a program that is only recorded, so it is
    removed before LangGraph is imported.
    """
    if name == "record":
        if _SET_HERE and "langgraph" not in sys.modules:
            os.environ.pop(_STRICT, None)
        return import_module("hrm_agent.runtime.recording.record").record
    if name == "Prompt":
        return import_module("hrm_agent.prompts").Prompt
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
