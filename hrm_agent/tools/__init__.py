"""Tools that a policy may call, and how their calls are run and recorded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm_agent.tools.failures import ToolFailure, limited
    from hrm_agent.tools.idempotency import idempotency_key, idempotent
    from hrm_agent.tools.python_tool import python, python_stateless
    from hrm_agent.tools.run import run_tool_calls

__all__ = [
    "ToolFailure",
    "idempotency_key",
    "idempotent",
    "limited",
    "python",
    "python_stateless",
    "run_tool_calls",
]

_HOMES = {
    "ToolFailure": "hrm_agent.tools.failures",
    "idempotency_key": "hrm_agent.tools.idempotency",
    "idempotent": "hrm_agent.tools.idempotency",
    "limited": "hrm_agent.tools.failures",
    "python": "hrm_agent.tools.python_tool",
    "python_stateless": "hrm_agent.tools.python_tool",
    "run_tool_calls": "hrm_agent.tools.run",
}


def __getattr__(name: str) -> Any:
    """Load a tool on first use, as LangChain is slow to import."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
