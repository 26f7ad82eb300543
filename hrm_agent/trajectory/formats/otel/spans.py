"""Spans of a trajectory by OpenTelemetry's conventions for generative AI. No package of
OpenTelemetry is needed.

The record is the source: times are those on record, and ids are derived from the run's thread, its
start and its calls, so that a run exported twice has the same ids. One trajectory is one trace. Its
roots are named `invoke_agent GRAPH`, one for each turn of a conversation. Below a root is a span
for each task of the graph, named by its node and nested as subgraphs are. A task's span contains
the model calls (`chat MODEL`) and tool calls (`execute_tool NAME`) of the task. Inherited calls of
a fork are in the trace of its origin.

A task's span reaches from the start of its first call to the end of its last, since a record has no
other times of a task. A root has no token counts, since viewers would add them to those of its
calls.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.trajectory.formats.otel.attributes import (
    OURS,
    Attributes,
    call_attributes,
    call_content,
    requested_model,
    root_attributes,
    tool_attributes,
    turn_content,
)
from hrm_agent.trajectory.formats.shared.messages import RequestHints
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.judgements import Overlay
from hrm_agent.trajectory.schema import Call, RunStatus, ToolCall, ToolStatus, Trajectory, TurnEnd

__all__ = ["TraceSpan", "spans_of", "trace_id_of"]


@dataclass(slots=True)
class TraceSpan:
    """Span before conversion to the form of a library or a file."""

    trace_id: str
    """32 hex digits, equal for all spans of a trajectory."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None
    """`span_id` of the enclosing span (None for a root)."""
    name: str
    """Operation and its object, as `chat MODEL`; for a graph's task, its node."""
    started_at: float
    """Unix time in seconds."""
    ended_at: float
    """Unix time in seconds, no earlier than `started_at`."""
    is_client: bool = False
    """True for a call to another program: a provider's model."""
    attributes: Attributes = field(default_factory=dict[str, str | bool | int | float | list[str]])
    """Attributes by the names of the conventions, and `hrm_agent.*` for others."""
    error: str | None = None
    """Reason of the failure (None if it did not fail)."""


def trace_id_of(trajectory: Trajectory) -> str:
    """Trace id. The run's start is a part of it, since runs in several stores may have threads of
    one name.
    """
    return content_hash("trace", trajectory.thread_id, trajectory.started_at)


def spans_of(
    trajectory: Trajectory,
    *,
    overlay: Overlay | None = None,
    content: RequestHints | None = None,
    newest_turn: bool = False,
) -> list[TraceSpan]:
    """Spans of a trajectory that has ended, roots first.

    `overlay`: judgement by a training run. `content`: include messages, arguments and results;
    these hints supply what the record lacks. `newest_turn`: only the spans of the conversation's
    last turn.
    """
    trace = _Trace(trajectory, content)
    roots = [trace.root(turn, overlay) for turn in range(len(trajectory.turns) + 1)]
    calls = [
        *map(trace.call, trajectory.own_calls),
        *map(trace.tool_call, trajectory.own_tool_calls),
    ]
    spans = [*roots, *trace.tasks.values(), *calls]
    if not newest_turn:
        return spans
    return [span for span in spans if trace.root_of[span.span_id] == roots[-1].span_id]


class _Trace:
    """Spans of one trajectory while they are made."""

    def __init__(self, trajectory: Trajectory, content: RequestHints | None) -> None:
        self._run = trajectory
        self._content = content
        self._id = trace_id_of(trajectory)
        self._starts = [trajectory.started_at, *(turn.started_at for turn in trajectory.turns)]
        self._ends = self._turn_ends()
        self.tasks: dict[str, TraceSpan] = {}
        """Tasks of the graph, by turn and namespace."""
        self.root_of: dict[str, str] = {}
        """Id of a span -> id of its root."""

    def root(self, turn: int, overlay: Overlay | None) -> TraceSpan:
        newest = turn == len(self._run.turns)
        end = (
            TurnEnd(
                status=self._run.status,
                stop_reason=self._run.stop_reason,
                error=self._run.error,
                answer=self._run.answer,
            )
            if newest
            else self._run.turns[turn].before
        )
        span = self._span(self._root_id(turn), None, f"invoke_agent {self._run.graph}", turn)
        span.started_at = self._starts[turn]
        span.ended_at = self._ends[turn]
        span.attributes = root_attributes(self._run, turn, end, overlay if newest else None)
        if self._content is not None:
            span.attributes |= turn_content(self._run.prompts[turn], end.answer)
        if end.status is RunStatus.FAILED:
            span.error = "failed"
            # Of "KeyError: 'x'" only the class is taken, since the rest may contain task data.
            said = (end.error or "").partition(":")[0]
            span.attributes["error.type"] = said if said.isidentifier() else "_OTHER"
        return span

    def call(self, call: Call) -> TraceSpan:
        span = self._within_task(
            call, call.started_at, call.ended_at, f"chat {requested_model(call)}"
        )
        span.is_client = call.sampling is None
        span.attributes = call_attributes(call, self._run)
        if self._content is not None:
            span.attributes |= call_content(call, self._run, self._content)
        return span

    def tool_call(self, call: ToolCall) -> TraceSpan:
        started_at = call.started_at or self._run.started_at  # older records have no times
        ended_at = (
            call.ended_at if call.ended_at is not None else started_at + call.duration_seconds
        )
        span = self._within_task(call, started_at, ended_at, f"execute_tool {call.name}")
        span.attributes = tool_attributes(call, self._run, content=self._content is not None)
        if call.status is not ToolStatus.OK:
            span.error = call.status.value if call.status is not None else "unfinished"
            span.attributes["error.type"] = span.error
        return span

    def _within_task(
        self, call: Call | ToolCall, started_at: float, ended_at: float, name: str
    ) -> TraceSpan:
        ended_at = max(started_at, ended_at)
        turn = bisect_right(self._starts, started_at, lo=1) - 1
        parent = self._root_id(turn)
        around = list[str]()
        for part in namespace_parts(call.identity.checkpoint_ns):
            around.append(f"{part.node}:{part.task_id}")
            id_ = self._span_id("task", turn, "|".join(around))
            task = self.tasks.get(id_)
            if task is None:
                task = self.tasks[id_] = self._span(id_, parent, part.node, turn)
                task.started_at = started_at
                task.ended_at = ended_at
                task.attributes = {f"{OURS}.node": part.node, f"{OURS}.graph_task_id": part.task_id}
            task.started_at, task.ended_at = (
                min(task.started_at, started_at),
                max(task.ended_at, ended_at),
            )
            parent = id_
        span = self._span(self._span_id(call.id), parent, name, turn)
        span.started_at = started_at
        span.ended_at = ended_at
        return span

    def _span(self, span_id: str, parent_id: str | None, name: str, turn: int) -> TraceSpan:
        self.root_of[span_id] = self._root_id(turn)
        return TraceSpan(self._id, span_id, parent_id, name, 0.0, 0.0)

    def _root_id(self, turn: int) -> str:
        return self._span_id("turn", turn)

    def _span_id(self, *names: str | int) -> str:
        return content_hash("span", self._id, *names)[:16]

    def _turn_ends(self) -> list[float]:
        """End times of the turns. Only the newest turn has one on record; an earlier turn ends with
        its last call.
        """
        run = self._run
        ends = list(self._starts)
        for call in (*run.own_calls, *run.own_tool_calls):
            turn = bisect_right(self._starts, call.started_at, lo=1) - 1
            ends[turn] = max(ends[turn], call.ended_at or call.started_at)
        ends[-1] = max(ends[-1], run.ended_at or 0.0)
        return ends
