"""Comparison of an imported trace with the record of the same run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hrm_agent.trajectory import Call, ToolCall, Trajectory
from hrm_agent.trajectory.conversation_digest import context_of
from hrm_agent.trajectory.formats.shared.messages import RequestHints, answer_of, messages_of
from hrm_agent.trajectory.ids import content_hash

__all__ = ["compared"]

Row = dict[str, Any]


def compared(recorded: Sequence[Trajectory], imported: Sequence[Trajectory]) -> Row:
    """Number of calls and tool calls of the record, and of those that the import has as well: each
    is looked up by its contents, not by its place.
    """
    calls = [(call, run) for run in recorded for call in run.calls]
    found = [(call, run) for run in imported for call in run.calls]
    tools = [tool for run in recorded for tool in run.tool_calls]
    found_tools = [tool for run in imported for tool in run.tool_calls]
    return {
        "runs": [len(recorded), len(imported)],
        "calls": [len(calls), len(found)],
        "answers": _common((_answer(c) for c, _ in calls), (_answer(c) for c, _ in found)),
        "requests": _common((_request(*one) for one in calls), (_request(*one) for one in found)),
        "roles": _common(
            ((_answer(c), c.identity.role) for c, _ in calls),
            ((_answer(c), c.identity.role) for c, _ in found),
        ),
        "usage": _common(
            ((_answer(c), _usage(c)) for c, _ in calls), ((_answer(c), _usage(c)) for c, _ in found)
        ),
        "tools": [len(tools), len(found_tools)],
        "arguments": _common(map(_asked, tools), map(_asked, found_tools)),
        "results": _common(map(_result, tools), map(_result, found_tools)),
        "outcomes": _common(map(_outcome, tools), map(_outcome, found_tools)),
        "final": _common((run.answer for run in recorded), (run.answer for run in imported)),
    }


def _common(one: Iterable[Any], other: Iterable[Any]) -> int:
    """Number of elements that are in both."""
    return (Counter(map(repr, one)) & Counter(map(repr, other))).total()


def _answer(call: Call) -> Any:
    answer = answer_of(call)
    return answer.text, [(one["name"], one["args"], one["id"]) for one in answer.tool_calls]


def _request(call: Call, run: Trajectory) -> Any:
    messages = messages_of(call, run, RequestHints())
    if messages is None:
        return id(call)
    # names of messages are not a part of all conventions
    bare = [message.model_copy(update={"name": None}) for message in messages]
    return content_hash(context_of(bare))


def _usage(call: Call) -> Any:
    used = call.used
    return (used.input_tokens, used.output_tokens) if used else id(call)


def _asked(tool: ToolCall) -> Any:
    return tool.name, tool.tool_call_id, tool.arguments


def _result(tool: ToolCall) -> Any:
    return tool.name, tool.tool_call_id, tool.content


def _outcome(tool: ToolCall) -> Any:
    return tool.name, tool.tool_call_id, tool.status
