"""Meaning of a span's attributes, by the conventions of its library.

`gen_ai.*`: OpenTelemetry's conventions for generative AI, in the spellings since 2024: messages in
events or log records, in `gen_ai.prompt` and `gen_ai.completion`, in indexed attributes as
OpenLLMetry wrote them, and as JSON in `gen_ai.input.messages` and `gen_ai.output.messages`.
`llm.*` and `openinference.*`: OpenInference, which Phoenix reads. `langfuse.*`: Langfuse's client.
`hrm_agent.*`: values that only this project's spans have.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from hrm_agent.langgraph_format import namespace_parts, task_of_namespace
from hrm_agent.trajectory.formats.otel.attributes import OURS, PROVIDERS
from hrm_agent.trajectory.formats.traces.messages import (
    Messages,
    answers_of,
    plain_text,
    tool_offers,
)
from hrm_agent.trajectory.formats.traces.observation import Kind, Observation
from hrm_agent.trajectory.formats.traces.otlp import Event, Span
from hrm_agent.trajectory.formats.traces.values import (
    Tree,
    as_float,
    as_int,
    as_text,
    at,
    decoded,
    elements,
    mapping,
    nested,
    text_at,
)
from hrm_agent.trajectory.schema import CallUsage, FinishReason, SentSampling, ToolStatus

__all__ = [
    "add_langfuse",
    "add_place",
    "model_string",
    "observed",
    "sampling_of",
    "set_reasons",
    "set_tool_result",
    "with_usage",
]

_SCHEMES = {name: scheme for scheme, name in PROVIDERS.items()} | {
    "anthropic": "anthropic",
    "az.ai.openai": "azure_openai",
    "azure": "azure_openai",
    "google": "google_genai",
    "gemini": "google_genai",
    "vertex_ai": "google_vertexai",
    "vertexai": "google_vertexai",
    "mistral": "mistralai",
    "mistralai": "mistralai",
}
"""Provider in a trace -> its name in model strings."""
_MODEL_OPERATIONS = {"chat", "text_completion", "generate_content", "completion"}
_CUT = {"length", "max_tokens", "max_output_tokens", "model_length"}
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_DETAILS = "gen_ai.client.inference.operation.details"
"""Event, or log record, with a call's messages as attributes."""
_LONGEST_NAME = 200
_LONGEST_NAMESPACE = 2000
_OTHER_SAMPLING = ("top_k", "frequency_penalty", "presence_penalty", "reasoning_effort")


def observed(span: Span, messages: Messages) -> Observation:
    """Observation of a span."""
    tree = nested(span.attributes, span.place)
    found = Observation(
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
        observation = mapping(at(tree, "langfuse.observation"))
        add_langfuse(found, _langfuse_row(observation, tree), messages)
    elif at(tree, "openinference.span.kind") is not None or at(tree, "llm") is not None:
        _add_openinference(found, tree, messages)
    elif at(tree, "gen_ai") is not None or at(tree, "traceloop") is not None:
        _add_gen_ai(found, tree, span.events, messages)
    ours = mapping(tree.get(OURS))
    if ours:
        found.ours = ours
        found.node = text_at(ours, "node") or found.node
    return found


def add_place(found: Observation, metadata: dict[str, Any]) -> None:
    """Add LangGraph's place of a run, from the metadata that its callbacks are given."""
    found.node = found.node or text_at(metadata, "langgraph_node")[:_LONGEST_NAME]
    space = text_at(metadata, "langgraph_checkpoint_ns", "checkpoint_ns")
    if space and len(space) <= _LONGEST_NAMESPACE and task_of_namespace(space):
        if all(part.node and part.task_id for part in namespace_parts(space)):
            found.checkpoint_ns = space
    found.agent = text_at(metadata, "lc_agent_name")[:_LONGEST_NAME]
    found.session = text_at(metadata, "thread_id", "session_id")[:_LONGEST_NAME]


def model_string(provider: str, model: str) -> str:
    """Model string of a provider's model: `openai:gpt-5`."""
    scheme = _SCHEMES.get(provider.lower(), "")
    plain = model.removeprefix("models/")
    return f"{scheme}:{plain}" if scheme and plain and not plain.startswith(f"{scheme}:") else plain


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
        if isinstance(value := values.get(name), (str, int, float)) and value == value
    }
    return SentSampling(
        temperature=temperature if temperature is not None and temperature >= 0 else None,
        top_p=top_p if top_p is not None and 0 <= top_p <= 1 else None,
        max_tokens=most,
        seed=as_int(values.get("seed")),
        stop=tuple(as_text(one) for one in ([stop] if isinstance(stop, str) else elements(stop))),
        other=other,
    )


def with_usage(answer: AIMessage, usage: CallUsage) -> AIMessage:
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


def _usage(tree: Tree, **paths: tuple[str, ...]) -> CallUsage:
    """Usage whose counts are at the first existing of these paths."""
    counts: dict[str, Any] = {}
    for name, several in paths.items():
        read = as_float if name == "cost" else as_int
        values = (read(_leaf(tree, path)) for path in several)
        value = next((one for one in values if one is not None and one >= 0), None)
        if value is not None:
            counts[name] = value
    return CallUsage(**counts)


def _leaf(tree: Tree, path: str) -> Any:
    value = at(tree, path)
    return value.get("") if isinstance(value, dict) else value


def set_tool_result(found: Observation, output: Any, messages: Messages) -> None:
    """Set a tool call's result from a span's output: a tool's message, or any value."""
    output = decoded(output, found.place)
    for _ in range(3):
        held = mapping(output)
        if "output" in held and "type" not in held and "role" not in held:
            output = decoded(held["output"], found.place)
    if output is None:
        return
    held = mapping(output)
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


def set_reasons(found: Observation, *reasons: Any) -> None:
    """Set the finish reason from a provider's words."""
    words = {as_text(one).lower() for one in reasons}
    if words & _CUT:
        found.finish_reason = FinishReason.LENGTH


# OpenTelemetry's conventions


def _add_gen_ai(found: Observation, tree: Tree, events: list[Event], messages: Messages) -> None:
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
    found: Observation, tree: Tree, events: list[Event], messages: Messages
) -> None:
    place = found.place
    found.model = model_string(
        text_at(tree, "gen_ai.provider.name", "gen_ai.system"),
        text_at(tree, "gen_ai.request.model", "gen_ai.response.model"),
    )
    found.answered_by = text_at(tree, "gen_ai.response.model") or None
    request = mapping(at(tree, "gen_ai.request"))
    found.sampling = sampling_of({"seed": _leaf(tree, "gen_ai.openai.request.seed"), **request})
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
    said = answers_of(
        messages.read(_either(tree, "gen_ai.output.messages", "gen_ai.completion"), place)
    )
    logged, chosen = _logged(events, messages, place)
    found.sent = [*systems, *sent] if sent is not None else logged or None
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
    if found.answer is not None:
        found.answer = with_usage(
            found.answer,
            _usage(
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
        row = {name: decoded(value, place) for name, value in event.attributes.items()}
        if event.name in _EVENT_ROLES and ("content" in row or "tool_calls" in row):
            kept = {
                name: row[name] for name in ("content", "tool_calls", "id", "name") if name in row
            }
            sent += messages.read_one({"role": _EVENT_ROLES[event.name], **kept}, place)
        elif event.name == "gen_ai.choice" and answer is None:
            said = mapping(row.get("message")) or row
            if "content" in said or "tool_calls" in said:
                answer = answers_of(messages.read_one({**said, "role": "assistant"}, place))
        elif event.name == "gen_ai.content.prompt":
            sent = messages.read(row.get("gen_ai.prompt"), place) or sent
        elif event.name == "gen_ai.content.completion":
            answer = answers_of(messages.read(row.get("gen_ai.completion"), place)) or answer
    return sent, answer


def _add_gen_ai_tool(found: Observation, tree: Tree, messages: Messages) -> None:
    place = found.place
    found.name = text_at(tree, "gen_ai.tool.name", "traceloop.entity.name") or found.name
    found.tool_call_id = text_at(tree, "gen_ai.tool.call.id")
    given = decoded(_either(tree, "gen_ai.tool.call.arguments", "traceloop.entity.input"), place)
    held = mapping(given)
    if "input_str" in held or ("inputs" in held and "metadata" in held):
        given = decoded(held.get("inputs") or held.get("input_str"), place)  # as OpenLLMetry
    found.arguments = given if isinstance(given, (dict, str)) else None
    set_tool_result(
        found, _either(tree, "gen_ai.tool.call.result", "traceloop.entity.output"), messages
    )
    stated = text_at(tree, f"{OURS}.tool_status")
    if stated in {status.value for status in ToolStatus}:
        found.status = ToolStatus(stated)
    elif found.error:
        found.status = ToolStatus.ERROR


# OpenInference


def _add_openinference(found: Observation, tree: Tree, messages: Messages) -> None:
    place = found.place
    metadata = mapping(decoded(_leaf(tree, "metadata"), place)) or mapping(at(tree, "metadata"))
    found.node = text_at(tree, "graph.node.id")[:_LONGEST_NAME]
    add_place(found, metadata)
    found.session = text_at(tree, "session.id") or found.session
    given = at(tree, "input.value")
    result = at(tree, "output.value")
    match text_at(tree, "openinference.span.kind").upper():
        case "LLM":
            found.kind = Kind.MODEL
            _add_openinference_call(found, tree, messages)
        case "TOOL":
            found.kind = Kind.TOOL
            found.name = text_at(tree, "tool.name") or found.name
            found.tool_call_id = text_at(tree, "tool_call.id", "tool.id")
            arguments = decoded(_either(tree, "input.value", "tool.parameters"), place)
            found.arguments = arguments if isinstance(arguments, (dict, str)) else None
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


def _add_openinference_call(found: Observation, tree: Tree, messages: Messages) -> None:
    place = found.place
    asked = mapping(decoded(_leaf(tree, "llm.invocation_parameters"), place))
    requested = text_at(asked, "model", "model_name") or text_at(tree, "llm.model_name")
    found.model = model_string(text_at(tree, "llm.provider", "llm.system"), requested)
    found.answered_by = text_at(tree, "llm.model_name") or None
    found.sampling = sampling_of(asked)
    found.sent = messages.read(elements(at(tree, "llm.input_messages")) or None, place)
    if found.sent is None:
        prompts = elements(at(tree, "llm.prompts"))
        texts = [text_at(nested(mapping(one), place), "prompt.text") for one in prompts]
        found.sent = messages.read(texts or at(tree, "input.value"), place)
    found.answer = answers_of(
        messages.read(elements(at(tree, "llm.output_messages")) or None, place)
    )
    if found.answer is None and not found.error:
        value = decoded(at(tree, "output.value"), place)
        text = value if isinstance(value, str) else None
        found.answer = AIMessage(text) if text else None
    set_reasons(found, text_at(tree, "llm.finish_reason"))
    offered = elements(at(tree, "llm.tools")) or elements(asked.get("tools"))
    # these libraries write all parameters of a request
    found.tools = tool_offers(offered, place) if offered or asked else None
    if found.answer is not None:
        found.answer = with_usage(
            found.answer,
            _usage(
                tree,
                input_tokens=("llm.token_count.prompt",),
                output_tokens=("llm.token_count.completion",),
                cached_tokens=("llm.token_count.prompt_details.cache_read",),
                reasoning_tokens=("llm.token_count.completion_details.reasoning",),
                cost=("llm.cost.total",),
            ),
        )


# Langfuse


def _langfuse_row(observation: Tree, tree: Tree) -> dict[str, Any]:
    """Attributes of Langfuse's client, by the names of its export."""
    model = mapping(observation.get("model"))
    metadata = {
        **mapping(decoded(_leaf(observation, "metadata"), "")),
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


def add_langfuse(found: Observation, row: dict[str, Any], messages: Messages) -> None:
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
            _add_langfuse_call(found, row, metadata, messages)
        case "tool":
            found.kind = Kind.TOOL
            found.tool_call_id = as_text(decoded(metadata.get("tool_call_id"), place))
            given = decoded(row.get("input"), place)
            found.arguments = given if isinstance(given, (dict, str)) else None
            set_tool_result(found, row.get("output"), messages)
            if found.error:
                found.status = ToolStatus.ERROR
        case kind:
            found.kind = Kind.AGENT if kind == "agent" else Kind.OTHER
            if found.parent is None or kind == "agent":
                found.prompt = plain_text(row.get("input"), messages, place)
                found.result = plain_text(row.get("output"), messages, place)


def _add_langfuse_call(
    found: Observation, row: dict[str, Any], metadata: dict[str, Any], messages: Messages
) -> None:
    place = found.place
    provider = as_text(decoded(metadata.get("ls_provider"), place))
    requested = as_text(decoded(metadata.get("ls_model_name"), place))
    answered = as_text(row.get("model"))
    found.model = model_string(provider, requested or answered)
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
        and isinstance(mapping(one).get("content"), dict)
        and "tool_call_id" not in mapping(one)
    ]
    if offered:
        found.tools = tool_offers([one["content"] for one in offered], place)
        given = [one for one in rows if one not in offered]
    elif rows and found.tools is None and metadata.get("ls_integration") is not None:
        found.tools = []
    found.sent = messages.read(given, place)
    output = decoded(row.get("output"), place)
    if isinstance(output, str):
        found.answer = AIMessage(output) if output and not found.error else None
    else:
        found.answer = answers_of(messages.read(output, place))
    usage = {
        name: as_int(value)
        for name, value in mapping(decoded(row.get("usage_details"), place)).items()
    }
    costs = mapping(decoded(row.get("cost_details"), place))
    cost = as_float(costs.get("total", row.get("total_cost")))
    if found.answer is not None:
        found.answer = with_usage(
            found.answer,
            CallUsage(
                # Langfuse counts a detail apart from its total
                input_tokens=_summed(usage, "input"),
                output_tokens=_summed(usage, "output"),
                cached_tokens=usage.get("input_cache_read", usage.get("input_cached_tokens")),
                reasoning_tokens=usage.get(
                    "output_reasoning", usage.get("output_reasoning_tokens")
                ),
                cost=cost if cost is not None and cost >= 0 else None,
            ),
        )


def _summed(usage: dict[str, int | None], name: str) -> int | None:
    """Tokens of a direction with its details (None if not reported)."""
    if usage.get(name) is None:
        return None
    return sum(
        count or 0 for key, count in usage.items() if key == name or key.startswith(f"{name}_")
    )
