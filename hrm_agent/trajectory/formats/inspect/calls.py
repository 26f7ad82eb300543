"""Model calls and tool calls of an inspect_ai sample, from its events or its conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.trajectory.formats.inspect_schema import (
    InspectMessage,
    InspectModelEvent,
    InspectSample,
    InspectToolEvent,
    InspectUsage,
)
from hrm_agent.trajectory.formats.shared.json_documents import refused, valid
from hrm_agent.trajectory.formats.shared.message_runs import ForeignRun
from hrm_agent.trajectory.formats.shared.reported import ReportedUsage, usage_parts
from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.schema import FinishReason, SentSampling, ToolStatus
from hrm_agent.trajectory.words import REASONING

__all__ = ["tell", "text_of"]

_STATUS = {
    "approval": ToolStatus.DENIED,
    "cancelled": ToolStatus.INFRASTRUCTURE,
    "limit": ToolStatus.OUTPUT_LIMIT,
    "output_limit": ToolStatus.OUTPUT_LIMIT,
    "parsing": ToolStatus.INVALID_CALL,
    "permission": ToolStatus.DENIED,
    "sandbox_unavailable": ToolStatus.INFRASTRUCTURE,
    "timeout": ToolStatus.TIMEOUT,
}
"""Reason why a tool call failed, in inspect's words -> our status. Any other failure is an
`error`.
"""
_MOST_CALLS = 5000
"""Maximum number of model calls of one sample: a request is kept for each."""


def tell(run: ForeignRun, sample: InspectSample, place: str, at: str) -> None:
    """Add the model calls and tool calls of a sample to `run`."""
    events = list(_of_the_run(sample.events))
    if not any(event.get("event") == "model" for _, event, _ in events):
        _tell_conversation(run, sample)
        return
    pool = [
        _message(message) for message in (sample.events_data.messages if sample.events_data else ())
    ]
    prefix = f"{at}." if at else ""
    for index, event, node in events:
        here = f"{prefix}events[{index}]"
        if event.get("event") == "model":
            _add_call(run, valid(InspectModelEvent, event, place, here), pool, node, (place, here))
        else:
            _add_tool_call(run, valid(InspectToolEvent, event, place, here), node, index)


def _of_the_run(events: list[Row]) -> Iterator[tuple[int, Row, str]]:
    """Model and tool events as (index in the log, event, name of their solver or agent), without
    those of scorers.
    """
    spans: dict[str, list[tuple[str, str]]] = {}
    steps: list[tuple[str, str]] = []
    for index, event in enumerate(events):
        kind, named = event.get("event"), (str(event.get("type")), str(event.get("name")))
        if kind == "span_begin":
            spans[str(event.get("id"))] = [*spans.get(str(event.get("parent_id")), [])[-20:], named]
        elif kind == "step":  # older form of spans
            steps = [*steps, named] if event.get("action") == "begin" else steps[:-1]
        elif kind in ("model", "tool"):
            around = [*steps, *spans.get(str(event.get("span_id")), [])]
            if not any(one.startswith("scorer") for one, _ in around):
                yield (
                    index,
                    event,
                    next(
                        (name for one, name in reversed(around) if one in ("agent", "solver")), ""
                    ),
                )


def _add_call(
    run: ForeignRun,
    event: InspectModelEvent,
    pool: list[BaseMessage],
    node: str,
    where: tuple[str, str],
) -> None:
    """Add a model call, unless it failed, had not ended, or has no answer."""
    if event.pending or not event.output.choices or event.error is not None:
        return
    if len(run.assembly.calls) >= _MOST_CALLS:
        refused(*where, f"a sample has more than {_MOST_CALLS} model calls")
    run.begin(chain(_named(event.input_refs, pool, where), map(_message, event.input)))
    choice = event.output.choices[0]
    cut = choice.stop_reason in ("max_tokens", "model_length")
    began = event.timestamp if event.timestamp is not None else run.assembly.started_at
    answer = _message(choice.message, event.output.usage)
    if not isinstance(answer, AIMessage):
        refused(
            where[0],
            f"{where[1]}.output.choices[0].message.role",
            "a model answers as the assistant",
        )
    run.answer(
        answer,
        tools=[_tool(tool) for tool in event.tools],
        node=node,
        model=run.assembly.policy if event.model == run.assembly.model else event.model,
        sampling_sent=SentSampling(**event.config.model_dump()),
        finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
        started_at=began,
        ended_at=max(began, event.completed or began),
    )


def _named(
    refs: list[list[int]] | None, pool: list[BaseMessage], where: tuple[str, str]
) -> Iterator[BaseMessage]:
    for ref in refs or ():
        if len(ref) != 2 or not 0 <= ref[0] <= ref[1] <= len(pool):
            refused(
                where[0],
                f"{where[1]}.input_refs",
                f"{ref} is no range of the {len(pool)} messages of events_data",
            )
        yield from islice(pool, *ref)


def _add_tool_call(run: ForeignRun, event: InspectToolEvent, node: str, index: int) -> None:
    if event.pending:
        return
    began = event.timestamp if event.timestamp is not None else run.assembly.started_at
    ended = max(began, event.completed or began)
    run.tool_result(
        event.id,
        event.function,
        event.arguments,
        status=_STATUS.get(event.error.type, ToolStatus.ERROR) if event.error else ToolStatus.OK,
        content=text_of(event.result) or (event.error.message if event.error else ""),
        task=f"event-{index}",
        node=node,
        started_at=began,
        ended_at=ended,
        duration_seconds=ended - began,
    )


def _tell_conversation(run: ForeignRun, sample: InspectSample) -> None:
    """Add the conversation at the end of a sample. Each answer counts as a call that was sent the
    messages before it.
    """
    run.begin()
    asked: Row = {}
    for index, message in enumerate(sample.messages):
        said = _message(message)
        if not isinstance(said, AIMessage):
            run.say(said)
            _add_result(run, message, asked, index)
            continue
        run.answer(said)
        asked |= {call.id: call for call in message.tool_calls or ()}


def _add_result(run: ForeignRun, message: InspectMessage, asked: Row, index: int) -> None:
    call = asked.pop(_id(message), None) if message.role == "tool" else None
    if call is None:
        return
    failed = message.error
    status = _STATUS.get(failed.type, ToolStatus.ERROR) if failed else ToolStatus.OK
    shown = text_of(message.content) or (failed.message if failed else "")
    moment = run.assembly.started_at
    facts: Row = {"task": f"message-{index}", "started_at": moment, "ended_at": moment}
    run.tool_result(call.id, call.function, call.arguments, status=status, content=shown, **facts)


def _message(message: InspectMessage, usage: InspectUsage | None = None) -> BaseMessage:
    content: Any = _content(message.content)
    match message.role:
        case "system":
            return SystemMessage(content)
        case "user":
            return HumanMessage(content)
        case "tool":
            shown = content or (message.error.message if message.error else "")
            return ToolMessage(shown, tool_call_id=_id(message), name=message.function)
        case "assistant":
            return _answer(message, content, usage)


def _id(message: InspectMessage) -> str:
    return message.tool_call_id if isinstance(message.tool_call_id, str) else ""


def _answer(message: InspectMessage, content: Any, usage: InspectUsage | None) -> AIMessage:
    thought = _reasoning(message.content)
    calls = message.tool_calls or ()
    return AIMessage(
        content,
        tool_calls=[
            {"type": "tool_call", "id": call.id, "name": call.function, "args": call.arguments}
            for call in calls
            if call.parse_error is None
        ],
        invalid_tool_calls=[
            {
                "type": "invalid_tool_call",
                "id": call.id,
                "name": call.function,
                "args": None,
                "error": call.parse_error,
            }
            for call in calls
            if call.parse_error is not None
        ],
        additional_kwargs={REASONING: thought} if thought else {},
        **usage_parts(_usage(usage)),
    )


def _usage(usage: InspectUsage | None) -> ReportedUsage:
    if usage is None:
        return ReportedUsage()
    cached = usage.input_tokens_cache_read
    prompt = usage.input_tokens + (cached or 0) + (usage.input_tokens_cache_write or 0)
    return ReportedUsage(prompt, usage.output_tokens, cached, usage.total_cost)


def _tool(tool: Mapping[str, Any]) -> Row:
    function = {
        name: tool.get(name) or default for name, default in (("name", ""), ("description", ""))
    }
    return {
        "type": "function",
        "function": {**function, "parameters": tool.get("parameters") or {}},
    }


def _content(content: str | list[Row]) -> str | list[Row]:
    """Text, or parts in OpenAI's form if an image is among them. Thoughts are left out."""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content if part.get("type") != "reasoning"]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _part(part: Row) -> Row:
    if part.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": str(part.get("image"))}}
    text = (
        part.get("text")
        if part.get("type") == "text"
        else f"[a part of the type {str(part.get('type'))[:40]}]"
    )
    return {"type": "text", "text": str(text or "")}


def _reasoning(content: str | list[Row]) -> str:
    parts = (
        []
        if isinstance(content, str)
        else [part for part in content if part.get("type") == "reasoning"]
    )
    return "\n\n".join(str(part.get("reasoning") or "") for part in parts)


def text_of(content: Any) -> str:
    """Text of a message or of a tool's result, which may also be a number."""
    if isinstance(content, list):
        parts = [cast("Row", part) for part in cast("list[Any]", content) if isinstance(part, dict)]
        return "\n".join(
            str(part.get("text") or "") for part in parts if part.get("type") == "text"
        )
    return "" if content is None else str(content)
