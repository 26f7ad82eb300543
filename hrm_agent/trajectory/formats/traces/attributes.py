"""Meaning of a span's attributes, by the conventions of its library.

`gen_ai.*`: OpenTelemetry's conventions for generative AI, in the spellings since 2024: messages in
events or log records, in `gen_ai.prompt` and `gen_ai.completion`, in indexed attributes as
OpenLLMetry wrote them, and as JSON in `gen_ai.input.messages` and `gen_ai.output.messages`.
`llm.*` and `openinference.*`: OpenInference, which Phoenix reads. `langfuse.*`: Langfuse's client.
`hrm_agent.*`: values that only this project's spans have.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from hrm_agent.trajectory.formats.otel.attributes import OURS, PROVIDERS
from hrm_agent.trajectory.formats.traces.calls import (
    LONGEST_NAME,
    add_place,
    arguments_of,
    leaf,
    sampling_of,
    set_reasons,
    set_tool_result,
    set_usage,
    usage_at,
)
from hrm_agent.trajectory.formats.traces.foreign_span import ForeignSpan, Kind
from hrm_agent.trajectory.formats.traces.langfuse import add_langfuse_span
from hrm_agent.trajectory.formats.traces.messages import (
    Messages,
    blocks_of,
    plain_text,
    tool_offers,
)
from hrm_agent.trajectory.formats.traces.otlp import Event, Span
from hrm_agent.trajectory.formats.traces.values import (
    Tree,
    at,
    decoded,
    elements,
    mapping,
    nested,
    text_at,
)
from hrm_agent.trajectory.schema import ToolStatus

__all__ = ["observed"]

_SCHEMES = {name: scheme for scheme, name in PROVIDERS.items()}
"""Provider in the conventions -> its name in model strings."""
_MODEL_OPERATIONS = {"chat", "text_completion", "generate_content", "completion"}
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_DETAILS = "gen_ai.client.inference.operation.details"
"""Event, or log record, with a call's messages as attributes."""


def observed(span: Span, messages: Messages) -> ForeignSpan:
    """Common form of a span."""
    tree = nested(span.attributes, span.place)
    found = ForeignSpan(
        span.trace_id,
        span.id,
        span.parent,
        span.place,
        span.name,
        started_at=span.started_at,
        ended_at=span.ended_at,
    )
    if span.failed:
        thrown = next((one for one in span.events if one.name == "exception"), None)
        raised = nested(thrown.attributes, span.place) if thrown else {}
        found.error_class = text_at(raised, "exception.type") or text_at(tree, "error.type")
        found.error = (
            text_at(raised, "exception.message") or span.message or found.error_class or "failed"
        )
    if at(tree, "langfuse.observation") is not None:
        add_langfuse_span(found, tree, messages)
    elif "openinference" in tree or ("llm" in tree and "gen_ai" not in tree):
        _add_openinference(found, tree, messages)
    elif at(tree, "gen_ai") is not None or at(tree, "traceloop") is not None:
        _add_gen_ai(found, tree, span.events, messages)
    ours = mapping(tree.get(OURS))
    if ours:
        found.ours = ours
        found.node = text_at(ours, "node") or found.node
    return found


# OpenTelemetry's conventions


def _add_gen_ai(found: ForeignSpan, tree: Tree, events: list[Event], messages: Messages) -> None:
    operation = text_at(tree, "gen_ai.operation.name")
    task = text_at(tree, "traceloop.span.kind")
    properties = mapping(at(tree, "traceloop.association.properties"))
    add_place(found, properties)
    found.session = text_at(tree, "gen_ai.conversation.id", "session.id") or found.session
    asks = operation in _MODEL_OPERATIONS or (
        not operation and at(tree, "gen_ai.request.model") is not None and task != "tool"
    )
    if asks or at(tree, "llm.request.type") is not None:
        found.kind = Kind.MODEL
        _add_gen_ai_call(found, tree, events, messages)
    elif operation == "execute_tool" or task == "tool":
        found.kind = Kind.TOOL
        _add_gen_ai_tool(found, tree, messages)
    elif operation in ("invoke_agent", "invoke_workflow") or task in ("agent", "workflow"):
        found.kind = Kind.AGENT
        found.name = text_at(tree, "gen_ai.agent.name", "traceloop.entity.name") or found.name
        found.prompt = plain_text(
            _either(tree, "gen_ai.input.messages", "traceloop.entity.input"), messages, found.place
        )
        found.result = plain_text(
            _either(tree, "gen_ai.output.messages", "traceloop.entity.output"),
            messages,
            found.place,
        )
    elif operation == "execute_task" or task == "task":
        found.name = text_at(tree, "traceloop.entity.name") or found.name


def _either(tree: Tree, *paths: str) -> Any:
    return next((value for path in paths if (value := at(tree, path)) is not None), None)


def _add_gen_ai_call(
    found: ForeignSpan, tree: Tree, events: list[Event], messages: Messages
) -> None:
    place = found.place
    found.model = text_at(tree, "gen_ai.request.model", "gen_ai.response.model")
    scheme = _SCHEMES.get(text_at(tree, "gen_ai.provider.name"), "")
    if scheme and tree.get(OURS):  # in these spans the provider is a part of the model's name
        found.model = f"{scheme}:{found.model}"
    found.answered_by = text_at(tree, "gen_ai.response.model") or None
    request = mapping(at(tree, "gen_ai.request"))
    found.sampling = sampling_of({"seed": leaf(tree, "gen_ai.openai.request.seed"), **request})
    detail = next((one.attributes for one in events if one.name == _DETAILS), None)
    if detail is not None:
        tree = {
            **tree,
            "gen_ai": {
                **mapping(at(tree, "gen_ai")),
                **mapping(nested(detail, place).get("gen_ai")),
            },
        }
    sent = messages.read(_either(tree, "gen_ai.input.messages", "gen_ai.prompt"), place)
    systems = _systems(at(tree, "gen_ai.system_instructions"), messages, place)
    said = messages.answer(_either(tree, "gen_ai.output.messages", "gen_ai.completion"), place)
    logged, chosen = _logged(events, messages, place)
    given = logged or None if sent is None else sent
    if given and given[0].type == "system":
        systems = []
    found.sent = None if given is None else [*systems, *given]
    found.answer = said or chosen
    outputs = decoded(at(tree, "gen_ai.output.messages"), place)
    set_reasons(
        found,
        *elements(at(tree, "gen_ai.response.finish_reasons")),
        *(mapping(one).get("finish_reason") for one in elements(outputs)),
        *(mapping(one).get("finish_reason") for one in elements(at(tree, "gen_ai.completion"))),
    )
    offered = _either(tree, "gen_ai.tool.definitions", "llm.request.functions")
    if offered is not None:
        found.tools = tool_offers(offered, place)
    set_usage(
        found,
        usage_at(
            tree,
            input_tokens=("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
            output_tokens=("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
            cached_tokens=(
                "gen_ai.usage.cache_read.input_tokens",
                "gen_ai.usage.cache_read_input_tokens",
            ),
            reasoning_tokens=(
                "gen_ai.usage.reasoning.output_tokens",
                "gen_ai.usage.reasoning_tokens",
            ),
            cost=(f"{OURS}.cost", "gen_ai.usage.cost"),
        ),
    )


def _systems(value: Any, messages: Messages, place: str) -> list[BaseMessage]:
    """System messages: a text, or parts, each of which was a message."""
    value = decoded(value, place)
    if isinstance(value, str):
        return [SystemMessage(value)] if value else []
    return [
        message
        for part in elements(value)
        for message in messages.read_one({"role": "system", "parts": [mapping(part)]}, place)
    ]


def _logged(
    events: list[Event], messages: Messages, place: str
) -> tuple[list[BaseMessage], AIMessage | None]:
    """Messages of a call's events: request and answer."""
    sent: list[BaseMessage] = []
    answer: AIMessage | None = None
    for event in sorted(events, key=lambda one: one.at):
        # LangChain's and older libraries' events have JSON texts as attributes
        row = dict(event.attributes)
        row |= {
            name: decoded(row[name], place) for name in ("tool_calls", "message") if name in row
        }
        if "content" in row:
            row["content"] = blocks_of(row["content"], place)
        if event.name in _EVENT_ROLES and ("content" in row or "tool_calls" in row):
            kept = {
                name: row[name] for name in ("content", "tool_calls", "id", "name") if name in row
            }
            sent += messages.read_one({"role": _EVENT_ROLES[event.name], **kept}, place)
        elif event.name == "gen_ai.choice" and answer is None:
            said = mapping(row.get("message")) or row
            if "content" in said or "tool_calls" in said:
                answer = messages.answer({**said, "role": "assistant"}, place)
        elif event.name == "gen_ai.content.prompt":
            sent = messages.read(row.get("gen_ai.prompt"), place) or sent
        elif event.name == "gen_ai.content.completion":
            answer = messages.answer(row.get("gen_ai.completion"), place) or answer
    return sent, answer


def _add_gen_ai_tool(found: ForeignSpan, tree: Tree, messages: Messages) -> None:
    place = found.place
    found.name = text_at(tree, "gen_ai.tool.name", "traceloop.entity.name") or found.name
    found.tool_call_id = text_at(tree, "gen_ai.tool.call.id")
    given = _either(tree, "gen_ai.tool.call.arguments", "traceloop.entity.input")
    held = mapping(decoded(given, place))
    if "input_str" in held or ("inputs" in held and "metadata" in held):
        given = held.get("inputs") or held.get("input_str")  # as OpenLLMetry
    found.arguments = arguments_of(given, place)
    result = at(tree, "gen_ai.tool.call.result")
    if (written := at(tree, "traceloop.entity.output")) is not None:
        # OpenLLMetry writes each result as JSON, LangChain's with its keywords, to both attributes
        result = decoded(written, place)
        held = mapping(result)
        result = held["output"] if {"output"} <= set(held) <= {"output", "kwargs"} else result
    set_tool_result(found, result, messages)
    stated = text_at(tree, f"{OURS}.tool_status")
    if stated in {status.value for status in ToolStatus}:
        found.status = ToolStatus(stated)
    elif found.error:
        found.status = ToolStatus.ERROR


# OpenInference


def _add_openinference(found: ForeignSpan, tree: Tree, messages: Messages) -> None:
    place = found.place
    metadata = mapping(decoded(leaf(tree, "metadata"), place)) or mapping(at(tree, "metadata"))
    found.node = text_at(tree, "graph.node.id")[:LONGEST_NAME]
    add_place(found, metadata)
    found.session = text_at(tree, "session.id") or found.session
    given = at(tree, "input.value")
    result = at(tree, "output.value")
    match text_at(tree, "openinference.span.kind").upper():
        case "LLM":
            found.kind = Kind.MODEL
            _add_openinference_call(found, tree, metadata, messages)
        case "TOOL":
            found.kind = Kind.TOOL
            found.name = text_at(tree, "tool.name") or found.name
            found.tool_call_id = text_at(tree, "tool_call.id", "tool.id")
            found.arguments = arguments_of(_either(tree, "input.value", "tool.parameters"), place)
            set_tool_result(found, result, messages)
            if found.error:
                found.status = ToolStatus.ERROR
        case kind:
            if kind == "AGENT":
                found.kind = Kind.AGENT
                found.name = text_at(tree, "agent.name") or found.name
            if found.parent is None or kind == "AGENT":
                found.prompt = plain_text(given, messages, place)
                found.result = plain_text(result, messages, place)


def _add_openinference_call(
    found: ForeignSpan, tree: Tree, metadata: dict[str, Any], messages: Messages
) -> None:
    place = found.place
    asked = mapping(decoded(leaf(tree, "llm.invocation_parameters"), place))
    found.model = (
        text_at(asked, "model", "model_name")
        or text_at(metadata, "ls_model_name")
        or text_at(tree, "llm.model_name")
    )
    found.answered_by = text_at(tree, "llm.model_name") or None
    found.sampling = sampling_of(asked)
    found.sent = messages.read(elements(at(tree, "llm.input_messages")) or None, place)
    if found.sent is None:
        prompts = elements(at(tree, "llm.prompts"))
        texts = [text_at(nested(mapping(one), place), "prompt.text") for one in prompts]
        found.sent = messages.read(texts or at(tree, "input.value"), place)
    found.answer = messages.answer(elements(at(tree, "llm.output_messages")), place)
    if found.answer is None and not found.error:
        output = at(tree, "output.value")
        stated = text_at(tree, "output.mime_type")
        found.answer = messages.answer(
            decoded(output, place) if "json" in stated else output, place
        )
    set_reasons(found, text_at(tree, "llm.finish_reason"))
    offered = elements(at(tree, "llm.tools")) or elements(asked.get("tools"))
    # these libraries write all parameters of a request
    found.tools = tool_offers(offered, place) if offered or asked else None
    set_usage(
        found,
        usage_at(
            tree,
            input_tokens=("llm.token_count.prompt",),
            output_tokens=("llm.token_count.completion",),
            cached_tokens=("llm.token_count.prompt_details.cache_read",),
            reasoning_tokens=("llm.token_count.completion_details.reasoning",),
            cost=("llm.cost.total",),
        ),
    )
