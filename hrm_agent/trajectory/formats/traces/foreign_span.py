"""Common form of a span, before it becomes a call of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from hrm_agent.trajectory.schema import CallUsage, FinishReason, SentSampling, ToolStatus

__all__ = ["ForeignSpan", "Kind"]


class Kind(StrEnum):
    """Kind of work that a span measures."""

    MODEL = "model"
    TOOL = "tool"
    AGENT = "agent"
    OTHER = "other"


@dataclass(slots=True)
class ForeignSpan:
    """Span of any format. Fields that the file does not give are None or empty."""

    trace_id: str
    """Id of the trace, as in the file."""
    id: str
    """Id of the span."""
    parent: str | None
    """Id of the enclosing span (None for a root)."""
    place: str
    """Place in the file, for messages."""
    name: str = ""
    """Name of the span."""
    kind: Kind = Kind.OTHER
    """Kind of work."""
    started_at: float = 0.0
    """Unix time in seconds."""
    ended_at: float | None = None
    """Unix time in seconds (None: the file has no end)."""
    error: str | None = None
    """Text of the error (None: the span did not fail)."""
    error_class: str = ""
    """Class of the error as `module.name`; empty if not given."""
    node: str = ""
    """Graph node, or agent, that this span belongs to."""
    checkpoint_ns: str = ""
    """LangGraph's namespace of the task, `node:task_id` joined by `|`."""
    agent: str = ""
    """Name of the LangChain agent around it."""
    agent_span: str = ""
    """Id of the nearest enclosing agent span (empty without one)."""
    session: str = ""
    """Id of the conversation that the trace is a part of."""

    # model calls
    sent: list[BaseMessage] | None = None
    """Messages of the request (None: not in the file)."""
    answer: AIMessage | None = None
    """Answer (None: not in the file)."""
    tools: list[dict[str, Any]] | None = None
    """Tools offered (None: not in the file)."""
    model: str = ""
    """Requested model, with its provider if known: `openai:gpt-5`."""
    answered_by: str | None = None
    """Model that answered."""
    sampling: SentSampling = field(default_factory=SentSampling)
    """Sampling parameters that were sent."""
    finish_reason: FinishReason = FinishReason.STOP
    """Reason why the answer ended."""
    usage: CallUsage = field(default_factory=CallUsage)
    """Usage that the span reports, also without an answer."""
    left_out: tuple[str, ...] = ()
    """Parts of the span that were not read, in words."""

    # tool calls
    arguments: dict[str, Any] | str | None = None
    """Arguments (None: not in the file)."""
    tool_call_id: str = ""
    """Id of the call in the model's answer."""
    content: str | None = None
    """Text of the result (None: not in the file)."""
    status: ToolStatus | None = None
    """Outcome (None: not in the file)."""

    # roots
    prompt: str | None = None
    """Text of the task."""
    result: str | None = None
    """Text of the final answer."""
    ours: dict[str, Any] = field(default_factory=dict[str, Any])
    """Attributes named `hrm_agent.*`, by the rest of their names."""
