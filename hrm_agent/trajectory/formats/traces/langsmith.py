"""Runs of LangSmith, as its API lists them and `langsmith` writes them: one row for each span, with
`run_type`, `inputs` and `outputs`.
"""

from __future__ import annotations

import re
from typing import Any

from langchain_core.messages import AIMessage

from hrm_agent.trajectory.formats.shared.json_documents import refused
from hrm_agent.trajectory.formats.traces.calls import (
    add_place,
    arguments_of,
    sampling_of,
    set_reasons,
    set_tool_result,
    set_usage,
)
from hrm_agent.trajectory.formats.traces.foreign_span import ForeignSpan, Kind
from hrm_agent.trajectory.formats.traces.messages import (
    Messages,
    plain_text,
    tool_offers,
)
from hrm_agent.trajectory.formats.traces.values import (
    as_float,
    as_int,
    as_text,
    at,
    decoded,
    elements,
    mapping,
    seconds,
    text_at,
)
from hrm_agent.trajectory.schema import CallUsage, ToolStatus

__all__ = ["langsmith_run"]

_LONGEST_ID = 128
_REASONS = ("finish_reason", "stop_reason")
_ERROR_CLASS = re.compile(r"([A-Za-z_][\w.]{0,120})\((.*)\)\s*\Z", re.DOTALL)


def langsmith_run(row: dict[str, Any], place: str, messages: Messages) -> ForeignSpan:
    """Common form of a run."""
    run_id = _id(row, "id", place)
    parent = _id(row, "parent_run_id", place) if row.get("parent_run_id") else None
    trace = (
        _id(row, "trace_id", place) if row.get("trace_id") else _first(row, run_id, parent, place)
    )
    found = ForeignSpan(
        trace,
        run_id,
        parent,
        place,
        as_text(row.get("name")),
        started_at=seconds(row.get("start_time"), place, "start_time") or 0.0,
        ended_at=seconds(row.get("end_time"), place, "end_time"),
    )
    extra = mapping(decoded(row.get("extra"), place))
    metadata = mapping(extra.get("metadata"))
    add_place(found, metadata)
    if row.get("error"):
        # the text is that of the exception, and a traceback behind it
        told = as_text(row["error"]).split("Traceback (most recent call last)", 1)[0].strip()
        shape = _ERROR_CLASS.match(told)
        found.error_class = shape[1] if shape else ""
        found.error = shape[2].strip("'\"") if shape else told or "failed"
    inputs = decoded(row.get("inputs"), place)
    outputs = decoded(row.get("outputs"), place)
    match as_text(row.get("run_type")).lower():
        case "llm":
            found.kind = Kind.MODEL
            _add_call(found, row, inputs, outputs, extra, messages)
        case "tool":
            found.kind = Kind.TOOL
            found.tool_call_id = text_at(extra, "tool_call_id")
            held = mapping(inputs)
            found.arguments = arguments_of(held["input"] if set(held) == {"input"} else held, place)
            set_tool_result(found, outputs, messages)
            if found.error:
                found.status = ToolStatus.ERROR
        case _ if parent is None:
            found.prompt = plain_text(inputs, messages, place)
            found.result = plain_text(outputs, messages, place)
        case _:
            pass
    return found


def _id(row: dict[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value or len(value) > _LONGEST_ID:
        refused(place, name, f"an id of at most {_LONGEST_ID} characters belongs here")
    return value


def _first(row: dict[str, Any], run_id: str, parent: str | None, place: str) -> str:
    """Id of the trace, from `dotted_order`: that of its first run."""
    order = row.get("dotted_order")
    if isinstance(order, str) and "Z" in order[:40]:
        return order[:_LONGEST_ID].partition(".")[0].rpartition("Z")[2]
    if parent is not None:
        refused(place, "trace_id", "a run with a parent_run_id needs a trace_id or a dotted_order")
    return run_id


def _batch(inputs: Any) -> list[Any]:
    """Prompts, or lists of messages, of a request with several."""
    held = mapping(inputs)
    lists = [one for one in elements(held.get("messages")) if isinstance(one, list)]
    return elements(held.get("prompts")) or lists


def _add_call(
    found: ForeignSpan,
    row: dict[str, Any],
    inputs: Any,
    outputs: Any,
    extra: dict[str, Any],
    messages: Messages,
) -> None:
    place = found.place
    metadata = mapping(extra.get("metadata"))
    asked = {**mapping(inputs), **mapping(extra.get("invocation_params"))}
    found.sent = messages.read(inputs, place)
    system = mapping(inputs).get("system")
    if found.sent and system and found.sent[0].type != "system":  # as Anthropic's client sends it
        found.sent = [*messages.read_one({"role": "system", "content": system}, place), *found.sent]
    generations = elements(at(outputs, "generations"))
    batch = _batch(inputs)
    if len(generations) > 1 and len(generations) == len(batch):
        # a request of several prompts: the first one and its answer are the call
        found.sent = messages.read(batch[0], place)
        found.left_out = ("answers behind the first one of a request were left out",) * (
            len(generations) - 1
        )
    first = generations[0] if generations else None
    first = mapping(elements(first)[0] if elements(first) else first)
    said = mapping(first.get("message"))
    if said:
        found.answer = messages.answer(said, place)
    elif isinstance(first.get("text"), str):
        found.answer = AIMessage(first["text"])
    else:
        choice = mapping(next(iter(elements(at(outputs, "choices"))), None))
        said = mapping(choice.get("message")) or mapping(at(outputs, "message"))
        found.answer = messages.answer(said or outputs, place)
        set_reasons(found, choice.get("finish_reason"))
    said = found.answer.response_metadata if found.answer else {}
    reasons = (mapping(first.get("generation_info")), mapping(outputs), said)
    set_reasons(found, *(one.get(name) for one in reasons for name in _REASONS))
    found.model = text_at(metadata, "ls_model_name") or text_at(asked, "model", "model_name")
    found.sampling = sampling_of(asked)
    if extra.get("invocation_params") is not None or "tools" in asked:
        found.tools = tool_offers(asked.get("tools") or (), place)
    found.answered_by = (
        text_at(said, "model_name", "model") or text_at(mapping(outputs), "model") or None
    )
    reported = mapping(metadata.get("usage_metadata")) or mapping(at(outputs, "usage_metadata"))
    older = mapping(at(outputs, "usage")) or mapping(at(outputs, "llm_output.token_usage"))
    cached = as_int(at(reported, "input_token_details.cache_read"))
    if as_int(older.get("input_tokens")) is not None:
        # Anthropic counts tokens of its cache apart
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        cached = as_int(older.get(parts[1]))
        older = {**older, "input_tokens": sum(as_int(older.get(one)) or 0 for one in parts)}
    counts = (
        (reported, "input_tokens", "output_tokens"),
        (older, "prompt_tokens", "completion_tokens"),
        (older, "input_tokens", "output_tokens"),
        (row, "prompt_tokens", "completion_tokens"),
    )
    read, written = next(
        (
            (as_int(table.get(one)), as_int(table.get(two)))
            for table, one, two in counts
            if as_int(table.get(one)) is not None or as_int(table.get(two)) is not None
        ),
        (None, None),
    )
    cost = as_float(row.get("total_cost"))
    set_usage(
        found,
        CallUsage(
            input_tokens=read,
            output_tokens=written,
            cached_tokens=cached,
            reasoning_tokens=as_int(at(reported, "output_token_details.reasoning")),
            cost=cost if cost is not None and cost >= 0 else None,
        ),
    )
