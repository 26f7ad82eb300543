"""Observations of Langfuse: as its client sends them, in the attributes of OTLP spans, and as its
API and its exports list them.
"""

from __future__ import annotations

from typing import Any

from hrm_agent.trajectory.formats.shared.json_documents import refused
from hrm_agent.trajectory.formats.traces.calls import (
    add_place,
    arguments_of,
    leaf,
    sampling_of,
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
    Tree,
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

__all__ = ["add_langfuse_span", "langfuse_observation"]

_LONGEST_ID = 128


def add_langfuse_span(found: ForeignSpan, tree: Tree, messages: Messages) -> None:
    """Add the attributes of a span of Langfuse's client."""
    observation = mapping(at(tree, "langfuse.observation"))
    _add(found, _row(observation, tree), messages)


def langfuse_observation(row: dict[str, Any], place: str, messages: Messages) -> ForeignSpan:
    """Common form of an observation of Langfuse's export, whose columns are named in two ways."""

    def value(*names: str) -> Any:
        return next((row[name] for name in names if row.get(name) is not None), None)

    def identity(*names: str) -> str:
        found = value(*names)
        if not isinstance(found, str) or not found or len(found) > _LONGEST_ID:
            refused(place, names[0], f"an id of at most {_LONGEST_ID} characters belongs here")
        return found

    parent = value("parentObservationId", "parent_observation_id")
    found = ForeignSpan(
        identity("traceId", "trace_id"),
        identity("id"),
        identity("parentObservationId", "parent_observation_id") if parent else None,
        place,
        as_text(row.get("name")),
        started_at=seconds(value("startTime", "start_time"), place, "startTime") or 0.0,
        ended_at=seconds(value("endTime", "end_time"), place, "endTime"),
    )
    told = {
        "type": row.get("type"),
        "input": row.get("input"),
        "output": row.get("output"),
        "metadata": row.get("metadata"),
        "level": row.get("level"),
        "status_message": value("statusMessage", "status_message"),
        "model": value("providedModelName", "provided_model_name", "model"),
        "model_parameters": value("modelParameters", "model_parameters"),
        "usage_details": value("usageDetails", "usage_details", "usage"),
        "cost_details": value("costDetails", "cost_details"),
        "total_cost": value("totalCost", "total_cost", "calculatedTotalCost"),
        "session_id": value("sessionId", "session_id"),
    }
    _add(found, told, messages)
    return found


def _row(observation: Tree, tree: Tree) -> dict[str, Any]:
    """Attributes of Langfuse's client, by the names of its export."""
    model = mapping(observation.get("model"))
    metadata = {
        **mapping(decoded(leaf(observation, "metadata"), "")),
        **{
            name: decoded(value, "")
            for name, value in mapping(observation.get("metadata")).items()
            if name
        },
    }
    return {
        "type": observation.get("type"),
        "input": observation.get("input"),
        "output": observation.get("output"),
        "metadata": metadata,
        "level": observation.get("level"),
        "status_message": observation.get("status_message"),
        "model": model.get("name"),
        "model_parameters": model.get("parameters"),
        "usage_details": observation.get("usage_details"),
        "cost_details": observation.get("cost_details"),
        "session_id": text_at(tree, "session.id"),
    }


def _add(found: ForeignSpan, row: dict[str, Any], messages: Messages) -> None:
    """Add the fields of an observation of Langfuse, by the names of its export."""
    place = found.place
    metadata = mapping(decoded(row.get("metadata"), place))
    add_place(found, {name: decoded(value, place) for name, value in metadata.items()})
    found.session = as_text(row.get("session_id")) or found.session
    if as_text(row.get("level")) == "ERROR":
        found.error = found.error or as_text(row.get("status_message")) or "failed"
    match as_text(row.get("type")).lower():
        case "generation":
            found.kind = Kind.MODEL
            _add_call(found, row, metadata, messages)
        case "tool":
            found.kind = Kind.TOOL
            found.tool_call_id = as_text(decoded(metadata.get("tool_call_id"), place))
            found.arguments = arguments_of(row.get("input"), place)
            set_tool_result(found, row.get("output"), messages)
            if found.error:
                found.status = ToolStatus.ERROR
        case kind:
            found.kind = Kind.AGENT if kind == "agent" else Kind.OTHER
            if found.parent is None or kind == "agent":
                found.prompt = plain_text(row.get("input"), messages, place)
                found.result = plain_text(row.get("output"), messages, place)


def _add_call(
    found: ForeignSpan, row: dict[str, Any], metadata: dict[str, Any], messages: Messages
) -> None:
    place = found.place
    requested = as_text(decoded(metadata.get("ls_model_name"), place))
    answered = as_text(row.get("model"))
    found.model = requested or answered
    found.answered_by = answered or None
    found.sampling = sampling_of(mapping(decoded(row.get("model_parameters"), place)))
    given = decoded(row.get("input"), place)
    if isinstance(given, dict) and "tools" in given:
        found.tools = tool_offers(given["tools"], place)
    rows = elements(given)
    # Langfuse's handler puts the tools that are offered at the end of the messages.
    offered = [
        one
        for one in rows
        if mapping(one).get("role") == "tool"
        and _is_offer(mapping(mapping(one).get("content")))
        and "tool_call_id" not in mapping(one)
    ]
    if offered:
        found.tools = tool_offers([one["content"] for one in offered], place)
        given = [one for one in rows if one not in offered]
    elif rows and found.tools is None and metadata.get("ls_integration") is not None:
        found.tools = []
    found.sent = messages.read(given if offered else row.get("input"), place)
    found.answer = None if found.error else messages.answer(row.get("output"), place)
    usage = {
        name: as_int(value)
        for name, value in mapping(decoded(row.get("usage_details"), place)).items()
    }
    costs = mapping(decoded(row.get("cost_details"), place))
    cost = as_float(costs.get("total", row.get("total_cost")))
    set_usage(
        found,
        CallUsage(
            # Langfuse counts a detail apart from its total
            input_tokens=_summed(usage, "input", "prompt_tokens"),
            output_tokens=_summed(usage, "output", "completion_tokens"),
            cached_tokens=usage.get("input_cache_read", usage.get("input_cached_tokens")),
            reasoning_tokens=usage.get("output_reasoning", usage.get("output_reasoning_tokens")),
            cost=cost if cost is not None and cost >= 0 else None,
        ),
    )


def _is_offer(content: dict[str, Any]) -> bool:
    """True for a tool that is offered; a result may be an object as well."""
    names = ("parameters", "input_schema", "args_schema", "inputSchema")
    described = isinstance(content.get("name"), str) and any(name in content for name in names)
    return described or isinstance(mapping(content.get("function")).get("name"), str)


def _summed(usage: dict[str, int | None], name: str, whole: str) -> int | None:
    """Tokens of a direction with its details, or as OpenAI counts them (None if not reported)."""
    if usage.get(name) is None:
        return usage.get(whole)
    return sum(
        count or 0 for key, count in usage.items() if key == name or key.startswith(f"{name}_")
    )
