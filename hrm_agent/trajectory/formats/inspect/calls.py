"""Model calls and tool calls of an inspect_ai sample, from its events or its conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.trajectory.formats.shared.message_runs import ForeignRun
from hrm_agent.trajectory.formats.shared.reported import ReportedUsage, usage_parts
from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.schema import FinishReason, SentSampling, ToolStatus
from hrm_agent.trajectory.words import REASONING

if TYPE_CHECKING:
    from inspect_ai.event import ModelEvent, ToolEvent
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessage, Content, ModelUsage
    from inspect_ai.tool import ToolCallError, ToolInfo

__all__ = ["seconds", "tell", "text_of"]

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


def tell(run: ForeignRun, sample: EvalSample) -> None:
    """Add the model calls and tool calls of a sample to `run`."""
    events = list(_of_the_run(sample))
    if not any(event.event == "model" for _, event, _ in events):
        _tell_conversation(run, sample)
        return
    for index, event, node in events:
        if event.event == "model":
            _add_call(run, event, node)
        elif not event.pending:
            began = seconds(event.timestamp)
            ended = max(began, seconds(event.completed) if event.completed else began)
            run.tool_result(
                event.id,
                event.function,
                event.arguments,
                status=_status(event.error),
                content=text_of(event.result) or (event.error.message if event.error else ""),
                task=f"event-{index}",
                node=node,
                started_at=began,
                ended_at=ended,
                duration_seconds=ended - began,
            )


def seconds(moment: datetime | str) -> float:
    """Unix time. A time without a zone is taken as UTC."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _of_the_run(sample: EvalSample) -> Iterator[tuple[int, ModelEvent | ToolEvent, str]]:
    """Model and tool events as (index in the log, event, name of their solver or agent), without
    those of scorers.
    """
    spans: dict[str | None, list[tuple[str | None, str]]] = {}
    steps: list[tuple[str | None, str]] = []
    for index, event in enumerate(sample.events):
        if event.event == "span_begin":
            spans[event.id] = [*spans.get(event.parent_id, [])[-20:], (event.type, event.name)]
        elif event.event == "step":  # older form of spans
            steps = [*steps, (event.type, event.name)] if event.action == "begin" else steps[:-1]
        elif event.event in ("model", "tool"):
            around = [*steps, *spans.get(event.span_id, [])]
            if not any((kind or "").startswith("scorer") for kind, _ in around):
                names = [name for kind, name in around if kind in ("agent", "solver")]
                yield index, cast("ModelEvent | ToolEvent", event), names[-1] if names else ""


def _add_call(run: ForeignRun, event: ModelEvent, node: str) -> None:
    """Add a model call, unless it failed, had not ended, or has no answer."""
    if event.pending or not event.output.choices or event.error is not None:
        return
    run.begin(map(_message, event.input))
    choice = event.output.choices[0]
    cut = choice.stop_reason in ("max_tokens", "model_length")
    began = seconds(event.timestamp)
    sent = {"temperature", "top_p", "max_tokens", "seed"}
    run.answer(
        _answer(choice.message, event.output.usage),
        tools=[_tool(tool) for tool in event.tools],
        node=node,
        model=run.assembly.policy if event.model == run.assembly.model else event.model,
        sampling_sent=SentSampling(**event.config.model_dump(include=sent)),
        finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
        started_at=began,
        ended_at=max(began, seconds(event.completed) if event.completed else began),
    )


def _tell_conversation(run: ForeignRun, sample: EvalSample) -> None:
    """Add the conversation at the end of a sample. Each answer counts as a call that was sent the
    messages before it.
    """
    run.begin()
    asked: Row = {}
    for index, message in enumerate(sample.messages):
        if message.role == "assistant":
            run.answer(_answer(message))
            asked |= {call.id: call for call in message.tool_calls or ()}
            continue
        run.say(_message(message))
        call = asked.pop(message.tool_call_id or "", None) if message.role == "tool" else None
        if message.role == "tool" and call is not None:
            run.tool_result(
                call.id,
                call.function,
                call.arguments,
                status=_status(message.error),
                content=message.text or (message.error.message if message.error else ""),
                task=f"message-{index}",
                started_at=run.assembly.started_at,
                ended_at=run.assembly.started_at,
            )


def _status(error: ToolCallError | None) -> ToolStatus:
    return _STATUS.get(error.type, ToolStatus.ERROR) if error else ToolStatus.OK


def _message(message: ChatMessage) -> BaseMessage:
    content: Any = _content(message.content)
    match message.role:
        case "system":
            return SystemMessage(content)
        case "user":
            return HumanMessage(content)
        case "tool":
            shown = content or (message.error.message if message.error else "")
            return ToolMessage(
                shown, tool_call_id=message.tool_call_id or "", name=message.function
            )
        case "assistant":
            return _answer(message)


def _answer(message: ChatMessage, usage: ModelUsage | None = None) -> AIMessage:
    content: Any = _content(message.content)
    parts = [] if isinstance(message.content, str) else message.content
    thought = "\n\n".join(part.reasoning for part in parts if part.type == "reasoning")
    calls = (message.tool_calls if message.role == "assistant" else None) or ()
    reported = ReportedUsage()
    if usage is not None:  # cached tokens are not among `input_tokens`
        cached = usage.input_tokens_cache_read
        prompt = usage.input_tokens + (cached or 0) + (usage.input_tokens_cache_write or 0)
        reported = ReportedUsage(prompt, usage.output_tokens, cached, usage.total_cost)
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
        **usage_parts(reported),
    )


def _tool(tool: ToolInfo) -> Row:
    told = tool.model_dump(mode="json", exclude_none=True)
    function = {name: told[name] for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def _content(content: str | Sequence[Content]) -> str | list[Row]:
    """Text, or parts in OpenAI's form if an image is among them. Thoughts are left out."""
    if isinstance(content, str):
        return content
    parts: list[Row] = []
    for part in content:
        if part.type == "image":
            parts.append({"type": "image_url", "image_url": {"url": part.image}})
        elif part.type == "text":
            parts.append({"type": "text", "text": part.text})
        elif part.type != "reasoning":
            parts.append({"type": "text", "text": f"[a part of the type {part.type}]"})
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def text_of(content: Any) -> str:
    """Text of a message or of a tool's result, which may also be a number."""
    if isinstance(content, list):
        parts = cast("list[Content]", content)
        return "\n".join(part.text for part in parts if part.type == "text")
    return "" if content is None else str(content)
