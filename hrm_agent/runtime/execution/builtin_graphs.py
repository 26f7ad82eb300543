"""Built-in graphs by name, without an import of LangGraph."""

from __future__ import annotations

__all__ = ["BUILTIN_GRAPHS"]

BUILTIN_GRAPHS = {
    "tool_loop": "hrm_agent.graphs.tool_loop:graph",
    "reasoning": "hrm_agent.graphs.reasoning.agent:graph",
    "research": "hrm_agent.graphs.research.agent:graph",
}
"""Name of a built-in graph -> its place, in the form of langgraph.json."""
