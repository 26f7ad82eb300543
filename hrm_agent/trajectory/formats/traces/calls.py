"""Parts of a call that all conventions have under other names: its place, model, sampling, usage and
result.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import AIMessage

from hrm_agent.langgraph_format import namespace_parts, task_of_namespace
from hrm_agent.trajectory.formats.traces.foreign_span import ForeignSpan
from hrm_agent.trajectory.formats.traces.messages import Messages
from hrm_agent.trajectory.formats.traces.values import (
    Tree,
    as_float,
    as_int,
    as_text,
    at,
    decoded,
    elements,
    mapping,
    text_at,
)
from hrm_agent.trajectory.schema import CallUsage, FinishReason, SentSampling, ToolStatus

__all__ = [
    "LONGEST_NAME",
    "add_place",
    "arguments_of",
    "leaf",
    "sampling_of",
    "set_reasons",
    "set_tool_result",
    "set_usage",
    "usage_at",
]

LONGEST_NAME = 200
"""Maximum length of a name that is kept."""
_CUT = {"length", "max_tokens", "max_output_tokens", "model_length"}
_LONGEST_NAMESPACE = 2000
_OTHER_SAMPLING = ("top_k", "frequency_penalty", "presence_penalty", "reasoning_effort")


def add_place(found: ForeignSpan, metadata: dict[str, Any]) -> None:
    """Add LangGraph's place of a run, from the metadata that its callbacks are given."""
    found.node = found.node or text_at(metadata, "langgraph_node")[:LONGEST_NAME]
    space = text_at(metadata, "langgraph_checkpoint_ns", "checkpoint_ns")
    parts = list(namespace_parts(space)) if len(space) <= _LONGEST_NAMESPACE else []
    if parts and task_of_namespace(space) and all(one.node and one.task_id for one in parts):
        found.checkpoint_ns = space
    found.agent = text_at(metadata, "lc_agent_name")[:LONGEST_NAME]
    found.session = text_at(metadata, "thread_id", "session_id")[:LONGEST_NAME]


def sampling_of(values: dict[str, Any]) -> SentSampling:
    """Sampling parameters by any of their names. Values out of range count as not given."""
    temperature = as_float(values.get("temperature"))
    top_p = as_float(values.get("top_p"))
    most = next(
        (
            number
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
            if (number := as_int(values.get(name)))
        ),
        None,
    )
    stop = values.get("stop") or values.get("stop_sequences") or ()
    other = {
        name: value
        for name in _OTHER_SAMPLING
        if isinstance(value := values.get(name), (str, int, float))
    }
    return SentSampling(
        temperature=temperature if temperature is not None and temperature >= 0 else None,
        top_p=top_p if top_p is not None and 0 <= top_p <= 1 else None,
        max_tokens=most,
        seed=as_int(values.get("seed")),
        stop=tuple(as_text(one) for one in ([stop] if isinstance(stop, str) else elements(stop))),
        other=other,
    )


def usage_at(tree: Tree, **paths: tuple[str, ...]) -> CallUsage:
    """Usage whose counts are at the first existing of these paths."""
    counts: dict[str, Any] = {}
    for name, several in paths.items():
        read = as_float if name == "cost" else as_int
        values = (read(leaf(tree, path)) for path in several)
        value = next((one for one in values if one is not None and one >= 0), None)
        if value is not None:
            counts[name] = value
    return CallUsage(**counts)


def leaf(tree: Tree, path: str) -> Any:
    """Value at a path, also if its name is the beginning of other names."""
    value = at(tree, path)
    return value.get("") if isinstance(value, dict) else value


def set_usage(found: ForeignSpan, usage: CallUsage) -> None:
    """Set the usage of a call, also of one without an answer in the file."""
    found.usage = usage
    if found.answer is not None:
        found.answer = _with_usage(found.answer, usage)


def _with_usage(answer: AIMessage, usage: CallUsage) -> AIMessage:
    """Answer with its usage, unless it has a report already. A missing count is not made up: the
    report then has only the cost.
    """
    facts: dict[str, Any] = {}
    if not answer.usage_metadata and None not in (usage.input_tokens, usage.output_tokens):
        read = usage.input_tokens or 0
        written = usage.output_tokens or 0
        facts["usage_metadata"] = {
            "input_tokens": read,
            "output_tokens": written,
            "total_tokens": read + written,
            **(
                {"input_token_details": {"cache_read": usage.cached_tokens}}
                if usage.cached_tokens is not None
                else {}
            ),
            **(
                {"output_token_details": {"reasoning": usage.reasoning_tokens}}
                if usage.reasoning_tokens is not None
                else {}
            ),
        }
    if usage.cost is not None and "token_usage" not in answer.response_metadata:
        facts["response_metadata"] = {
            **answer.response_metadata,
            "token_usage": {"cost": usage.cost},
        }
    return answer.model_copy(update=facts) if facts else answer


def arguments_of(value: Any, place: str) -> dict[str, Any] | str | None:
    """Arguments of a tool call: an object, also as JSON, or any other text (None for others)."""
    given = decoded(value, place)
    return given if isinstance(given, dict) else value if isinstance(value, str) else None


def set_tool_result(found: ForeignSpan, output: Any, messages: Messages) -> None:
    """Set a tool call's result from a span's output: a tool's message, or any value. A text stays
    as it is, unless it is the JSON of a message or of an object with the key `output` alone.
    """
    for _ in range(3):
        inner = mapping(decoded(output, found.place))
        if set(inner) == {"output"}:
            output = inner["output"]
    if output is None or (found.error is not None and not output):
        return
    held = mapping(decoded(output, found.place))
    read = (
        messages.read(output, found.place)
        if "lc" in held or held.get("type") == "tool" or held.get("role") == "tool"
        else None
    )
    if read:
        found.content = read[0].text
        asked = as_text(getattr(read[0], "tool_call_id", ""))
        found.tool_call_id = found.tool_call_id or asked
        failed = getattr(read[0], "status", "") == "error"
        found.status = ToolStatus.ERROR if failed else ToolStatus.OK
    else:
        found.content = (
            output
            if isinstance(output, str)
            else json.dumps(output, ensure_ascii=False, default=str)
        )
        found.status = found.status or (ToolStatus.ERROR if found.error else ToolStatus.OK)


def set_reasons(found: ForeignSpan, *reasons: Any) -> None:
    """Set the finish reason from a provider's words."""
    words = {as_text(one).lower() for one in reasons}
    if words & _CUT:
        found.finish_reason = FinishReason.LENGTH
