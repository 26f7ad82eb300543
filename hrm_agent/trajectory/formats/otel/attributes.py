"""Attributes of spans, with names of OpenTelemetry's conventions for generative AI (1.41,
`gen_ai.*`), and with names of hrm-agent for other values.

Messages, arguments and results are separate from the rest, since they are exported only on request.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

from hrm_agent.basics.files import json_line
from hrm_agent.trajectory.forest import path_to
from hrm_agent.trajectory.formats.shared.messages import (
    RequestHints,
    answer_of,
    messages_of,
    tools_of,
)
from hrm_agent.trajectory.judgements import Overlay
from hrm_agent.trajectory.schema import Call, ToolCall, Trajectory, TurnEnd
from hrm_agent.trajectory.words import thoughts_of

__all__ = [
    "OURS",
    "PROVIDERS",
    "Attributes",
    "call_attributes",
    "call_content",
    "requested_model",
    "root_attributes",
    "tool_attributes",
    "turn_content",
]

Attributes = dict[str, str | bool | int | float | list[str]]
"""Attributes with values of the kinds that every backend accepts."""

OURS = "hrm_agent"
"""Prefix of the names of values for which the conventions have no name."""
PROVIDERS = {
    "anthropic": "anthropic",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "groq": "groq",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "openai": "openai",
    "perplexity": "perplexity",
    "xai": "x_ai",
}
"""Provider in a model string -> its name in the conventions. Other providers keep their names."""
_OWN_ENGINES = ("", "builtin", "hf")
"""Schemes of models whose weights are loaded into this process."""


def root_attributes(
    run: Trajectory, turn: int, end: TurnEnd, overlay: Overlay | None
) -> Attributes:
    """Attributes of a turn's root span: task, status, rewards and the trainer's verdict."""
    scored = run.rewards if turn == 0 else {}
    return _filled(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.graph,
            "gen_ai.conversation.id": run.thread_id,
            f"{OURS}.trajectory_id": run.id,
            f"{OURS}.run_id": run.run_id or None,
            f"{OURS}.group_id": run.group_id or None,
            f"{OURS}.sample_index": run.sample_index if run.group_id else None,
            f"{OURS}.turn": turn if run.turns else None,
            f"{OURS}.task_id": run.task.id or None,
            f"{OURS}.task_family": run.task.family or None,
            f"{OURS}.policy": run.policy or None,
            f"{OURS}.policy_version": run.policy_version,
            f"{OURS}.status": end.status.value,
            f"{OURS}.stop_reason": end.stop_reason.value if end.stop_reason else None,
            f"{OURS}.forked_from": run.forked_from.trajectory_id if run.forked_from else None,
            f"{OURS}.sampled_tokens": run.sampled_tokens,
            f"{OURS}.reward": run.reward if scored else None,
            **{
                f"{OURS}.reward.{name}": value for name, value in scored.items() if name != "reward"
            },
            **(
                {
                    f"{OURS}.reward": overlay.reward,
                    f"{OURS}.verdict": overlay.verdict.value,
                    f"{OURS}.verdict_reason": overlay.reason or None,
                    f"{OURS}.drop_reason": overlay.drop_reason.value
                    if overlay.drop_reason
                    else None,
                    f"{OURS}.advantage": overlay.advantage,
                    f"{OURS}.step": overlay.step + 1,  # as the console and trackers count
                }
                if overlay is not None
                else {}
            ),
        }
    )


def call_attributes(call: Call, run: Trajectory) -> Attributes:
    """Attributes of a model call."""
    asked = call.sampling or call.sampling_sent
    used = call.used
    scheme = call.model.partition(":")[0] if ":" in call.model else ""
    return _filled(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": (
                OURS if scheme in _OWN_ENGINES else PROVIDERS.get(scheme, scheme)
            ),
            "gen_ai.conversation.id": run.thread_id,
            "gen_ai.request.model": requested_model(call),
            "gen_ai.response.model": call.answered_by,
            "gen_ai.request.temperature": asked.temperature if asked else None,
            "gen_ai.request.top_p": asked.top_p if asked else None,
            "gen_ai.request.max_tokens": asked.max_tokens if asked else None,
            "gen_ai.request.seed": asked.seed if asked else None,
            "gen_ai.request.stop_sequences": list(asked.stop) or None if asked else None,
            "gen_ai.response.finish_reasons": [_finish(call)],
            "gen_ai.usage.input_tokens": _read_tokens(call, run),
            "gen_ai.usage.output_tokens": used.output_tokens if used else None,
            "gen_ai.usage.cache_read.input_tokens": used.cached_tokens if used else None,
            "gen_ai.usage.reasoning.output_tokens": used.reasoning_tokens if used else None,
            f"{OURS}.call_id": call.id,
            f"{OURS}.role": call.identity.role,
            f"{OURS}.policy_version": call.policy_version,
            f"{OURS}.queue_seconds": call.queue_seconds or None,
            f"{OURS}.branch_reason": call.branch_reason.value if call.branch_reason else None,
            f"{OURS}.untrainable": call.why_untrainable,
            f"{OURS}.cost": used.cost if used else None,
        }
    )


def requested_model(call: Call) -> str:
    """Model name as the provider spells it: viewers find the price by it. The provider is a
    separate attribute.
    """
    scheme, _, name = call.model.partition(":")
    return name if name and scheme in PROVIDERS else call.model


def _finish(call: Call) -> str:
    """Finish reason: `tool_calls` if the answer calls tools, as in other libraries."""
    stopped = call.finish_reason.value
    return "tool_calls" if call.response.get("tool_calls") and stopped == "stop" else stopped


def _read_tokens(call: Call, run: Trajectory) -> int | None:
    """Number of tokens that the call read. With token ids, all tokens before the sampled ones are
    counted.
    """
    if not call.token_ids:
        return call.used.input_tokens if call.used else None
    try:
        path = path_to(run.calls, call.id)
    except (KeyError, ValueError):  # the parent is in another store
        return None
    return sum(len(each.token_ids) for each in path) - call.sampled_tokens


def tool_attributes(call: ToolCall, run: Trajectory, *, content: bool) -> Attributes:
    """Attributes of a tool call. `content`: include its arguments and result."""
    arguments = call.arguments if isinstance(call.arguments, str) else json_line(call.arguments)
    return _filled(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.conversation.id": run.thread_id,
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.tool_call_id or None,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.arguments": arguments if content else None,
            "gen_ai.tool.call.result": call.content if content else None,
            f"{OURS}.call_id": call.id,
            f"{OURS}.role": call.identity.role,
            f"{OURS}.tool_status": call.status.value if call.status else None,
            f"{OURS}.isolation": call.isolation or None,
            f"{OURS}.queue_seconds": call.queued_seconds or None,
            f"{OURS}.cpu_seconds": call.cpu_seconds,
            f"{OURS}.peak_memory_bytes": call.peak_memory_bytes,
            f"{OURS}.attempt": call.attempt if call.attempt > 1 else None,
            f"{OURS}.repeated_of": call.repeated_of,
        }
    )


def turn_content(prompt: str, answer: str | None) -> Attributes:
    """Attributes of a turn: the user's message and the answer."""
    asked = [{"role": "user", "parts": [_text(prompt)]}]
    said = (
        [{"role": "assistant", "parts": [_text(answer)], "finish_reason": "stop"}]
        if answer is not None
        else None
    )
    return _as_json({"gen_ai.input.messages": asked, "gen_ai.output.messages": said})


def call_content(call: Call, run: Trajectory, known: RequestHints) -> Attributes:
    """Messages of a model call. The request is left out if it is not proved."""
    messages = messages_of(call, run, known)
    sent = (
        [message for message in messages[:-1] if not isinstance(message, SystemMessage)]
        if messages
        else []
    )
    systems = [message for message in messages or () if isinstance(message, SystemMessage)]
    return _as_json(
        {
            "gen_ai.system_instructions": [_text(message.text) for message in systems] or None,
            "gen_ai.input.messages": [_message(message) for message in sent] or None,
            "gen_ai.output.messages": [
                {**_message(answer_of(call)), "finish_reason": _finish(call)}
            ],
            "gen_ai.tool.definitions": list(tools_of(call, known) or ()) or None,
        }
    )


def _message(message: BaseMessage) -> dict[str, Any]:
    role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
    if isinstance(message, ToolMessage):
        answer = {
            "type": "tool_call_response",
            "id": message.tool_call_id,
            "response": message.text,
        }
        return {"role": role, "parts": [answer]}
    thoughts = thoughts_of(vars(message)) if isinstance(message, AIMessage) else None
    parts: list[dict[str, Any]] = [{"type": "reasoning", "content": thoughts}] if thoughts else []
    parts += [_text(message.text)] if message.text else []
    if isinstance(message, AIMessage):
        parts += [
            {
                "type": "tool_call",
                "id": asked["id"],
                "name": asked["name"],
                "arguments": asked["args"],
            }
            for asked in message.tool_calls
        ]
    return {"role": role, "parts": parts}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _as_json(values: dict[str, Any]) -> Attributes:
    """Structured values as JSON text, since an attribute cannot hold a structure."""
    return {
        name: json.dumps(value, ensure_ascii=False, default=str)
        for name, value in _filled(values).items()
    }


def _filled(values: dict[str, Any]) -> Attributes:
    return {name: value for name, value in values.items() if value is not None}
