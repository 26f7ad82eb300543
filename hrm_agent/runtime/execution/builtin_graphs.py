"""The built-in graphs by name. To know them, LangGraph need not be imported."""

from __future__ import annotations

__all__ = ["BUILTIN_GRAPHS"]

BUILTIN_GRAPHS = {
    "tool_loop": "hrm_agent.graphs.tool_loop:graph",
    "reasoning": "hrm_agent.graphs.reasoning.agent:graph",
    "research": "hrm_agent.graphs.research.agent:graph",
}
"""As langgraph.json names them."""
