"""What a chat client gets: a run on record in OpenAI's forms, and the part of an answer that is
meant for people.

A policy thinks in `<reason>` and writes what counts into `<answer>`. A client's `content` is what
stands outside of reasoning and tool calls, from the first `<answer>` on where there is one, without
that tag itself; the whole text, as it was sampled, is on record. `visible` decides that for a text
that is still growing too: what it has given out for the beginning stays the beginning. Only
`<answer>` shows that a turn is the last one, so only what follows it is streamed as it is sampled;
an answer without the tag comes in one piece when the run has ended.

Thoughts that are on record apart from the answer's text are the message's `reasoning_content`, as
other servers have it, and never its `content`.
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
    """The part of `text` that is meant for people, up to the first of `stops`.

    Of a text that has not ended, as much of it as cannot change.
    """
    if not ended:
        text = _without_half_a_tag(text)
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


def _without_half_a_tag(text: str) -> str:
    """A tag that is being written is not shown as text."""
    opened = text.rfind("<")
    return (
        text[:opened]
        if opened >= 0 and len(text) - opened < _LONGEST_TAG and ">" not in text[opened:]
        else text
    )


def finish_reason(trajectory: Trajectory) -> str:
    """`length` for a run that reached a limit, whichever; a question that waits for a person is a
    turn that ended.
    """
    ended = (
        trajectory.status is RunStatus.COMPLETED or trajectory.stop_reason is StopReason.INTERRUPT
    )
    return "stop" if ended else "length"


def usage(trajectory: Trajectory) -> dict[str, Any]:
    """Tokens of all calls of the run, of whichever role: what the answer cost."""
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
    """Thoughts as a field of a message or of a delta; none without any."""
    return {REASONING: thoughts} if thoughts else {}


def completion(trajectory: Trajectory, content: str, thoughts: str | None = None) -> dict[str, Any]:
    """The answer to a request that is not streamed."""
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
    """One event of a stream; `ended` is given with the last one that has a choice."""
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
    """The event after the last one, where a client has asked for counts."""
    head = _head("chat.completion.chunk", trajectory.id, trajectory.graph, created)
    return {**head, "choices": [], "usage": usage(trajectory)}


def model_card(name: str, created: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": "hrm-agent"}


def error_body(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's form of an error."""
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
