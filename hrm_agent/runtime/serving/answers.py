"""Answers to a chat client: a recorded run in OpenAI's forms, and the part of an answer for people.

A policy thinks in `<reason>` and writes its answer into `<answer>`. A client's `content` is the
text outside of reasoning and tool calls, from the first `<answer>` on if there is one, without that
tag itself. The whole text, as sampled, is recorded. `visible` works for a growing text too: its
result for the beginning of a text is a beginning of its result for the whole text. Only `<answer>`
shows that a turn is the last one, so only the text after it is streamed while it is sampled. An
answer without the tag comes in one piece when the run has ended.

Thoughts that are recorded apart from the answer's text are the message's `reasoning_content`, as on
other servers, and never its `content`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hrm_agent.answers.final_answer import own_text
from hrm_agent.trajectory import RunStatus, StopReason, Trajectory
from hrm_agent.trajectory.words import REASONING

__all__ = ["chunk", "completion", "error_body", "model_card", "reasoning", "usage_chunk", "visible"]

_ANSWER = "<answer>"
_TAG = re.compile(r"</?answer>")
_LONGEST_TAG = len("</tool_response>")


def visible(text: str, stops: Sequence[str] = (), *, ended: bool = True) -> str:
    """Part of `text` that is meant for people, up to the first of `stops`.

    If the text has not `ended`, only the part that further text cannot change.
    """
    if not ended:
        opened = text.rfind("<")
        if opened >= 0 and len(text) - opened < _LONGEST_TAG and ">" not in text[opened:]:
            text = text[:opened]  # without an unfinished tag
    own = own_text(text)
    start = own.find(_ANSWER)
    if start < 0 and not ended:
        return ""
    shown = _TAG.sub("", own[max(start, 0) :]).strip()
    cuts = [place for stop in stops if (place := shown.find(stop)) >= 0]
    if cuts:
        return shown[: min(cuts)]
    held = 0 if ended else max((len(stop) - 1 for stop in stops), default=0)
    return shown[: max(len(shown) - held, 0)]


def finish_reason(trajectory: Trajectory) -> str:
    """Finish reason: `length` for a run that reached any limit, else `stop`. A question that waits
    for a person counts as `stop`.
    """
    ended = (
        trajectory.status is RunStatus.COMPLETED or trajectory.stop_reason is StopReason.INTERRUPT
    )
    return "stop" if ended else "length"


def usage(trajectory: Trajectory) -> dict[str, Any]:
    """Tokens of all calls of the run, of any role."""
    used = trajectory.used
    asked = used.input_tokens or 0
    sampled = used.output_tokens or 0
    thought = used.reasoning_tokens
    details = {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
    return {
        "prompt_tokens": asked,
        "completion_tokens": sampled,
        "total_tokens": asked + sampled,
        **details,
    }


def reasoning(thoughts: str | None) -> dict[str, str]:
    """Thoughts as a field of a message or of a delta; empty if there are none."""
    return {REASONING: thoughts} if thoughts else {}


def completion(trajectory: Trajectory, content: str, thoughts: str | None = None) -> dict[str, Any]:
    """Answer to a request that is not streamed."""
    message = {"role": "assistant", "content": content, **reasoning(thoughts), "refusal": None}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(trajectory),
    }
    head = _head("chat.completion", trajectory.id, trajectory.graph, trajectory.started_at)
    return {
        **head,
        "choices": [choice],
        "usage": usage(trajectory),
        "hrm_agent": _extension(trajectory),
    }


def chunk(
    identity: str,
    model: str,
    created: float,
    delta: dict[str, Any],
    ended: Trajectory | None = None,
) -> dict[str, Any]:
    """Event of a stream. `ended`: the run, given with the last event that has a choice."""
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None,
        "finish_reason": finish_reason(ended) if ended else None,
    }
    extension = {"hrm_agent": _extension(ended)} if ended else {}
    return {
        **_head("chat.completion.chunk", identity, model, created),
        "choices": [choice],
        **extension,
    }


def usage_chunk(trajectory: Trajectory, created: float) -> dict[str, Any]:
    """Last event of a stream, with the counts of tokens, if the client has requested them."""
    head = _head("chat.completion.chunk", trajectory.id, trajectory.graph, created)
    return {**head, "choices": [], "usage": usage(trajectory)}


def model_card(name: str, created: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": "hrm-agent"}


def error_body(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Error in OpenAI's form."""
    return {"error": {"message": message, "type": _kind(status), "param": param, "code": code}}


def _kind(status: int) -> str:
    named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return named.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _head(kind: str, identity: str, model: str, created: float) -> dict[str, Any]:
    return {"id": f"chatcmpl-{identity}", "object": kind, "created": int(created), "model": model}


def _extension(trajectory: Trajectory) -> dict[str, Any]:
    reason = trajectory.stop_reason.value if trajectory.stop_reason else None
    return {
        "thread": trajectory.thread_id,
        "trajectory": trajectory.id,
        "status": trajectory.status.value,
        "stop_reason": reason,
    }
