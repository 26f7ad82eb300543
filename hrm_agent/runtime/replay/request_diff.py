"""Readable diff between the current and the recorded request of a graph.

Messages and tools are compared as text. A policy's request in a record of an earlier version is
stored only as token ids, so both sides are compared in the text of its chat template. This loads
the policy's tokenizer, never its weights.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.utils import convert_to_messages

from hrm_agent.errors import HrmError
from hrm_agent.models.call_recording import offered, plain
from hrm_agent.models.codec.thoughts import reasoning_of
from hrm_agent.models.engine import Codec
from hrm_agent.models.loading.policy_loader import load_codec
from hrm_agent.runtime.replay.recorded_answers import UnrecordedRequest
from hrm_agent.runtime.replay.request_match import TemplateTexts
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Call, ToolCall

__all__ = ["looks_drawn", "request_diff", "template_texts"]

_NAMES = "mon tues? wed(?:nes)? thu(?:rs)? fri sat(?:ur)? sun"
_MONTHS = (
    "jan(?:uary)? feb(?:ruary)? mar(?:ch)? apr(?:il)? may june? july? aug(?:ust)? sept?(?:ember)?"
    " oct(?:ober)?"
)
_DRAWN = re.compile(
    r"(?i)\b(?:[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}"  # a UUID
    rf"|(?:{_NAMES.replace(' ', '|')})(?:day)?|(?:{_MONTHS.replace(' ', '|')}|nov(?:ember)?|dec(?:ember)?)|[ap]m)\b"
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{6,}\b|\d+(?:\.\d+)?(?:e-?\d+)?",
)
"""Pattern of texts that differ at each draw."""


def request_diff(
    store: RunStore, asked: UnrecordedRequest, nearest: Call | ToolCall | None
) -> list[str]:
    """Unified diff from the recorded request to the current one; the whole current one if no
    request is recorded.
    """
    if asked.tool_call is not None:
        recorded = list(_tool_lines(nearest)) if isinstance(nearest, ToolCall) else []
        return _diff(recorded, list(_tool_lines(asked.tool_call)))
    if not isinstance(nearest, Call):
        return _diff([], list(_message_lines(asked.messages)))
    if nearest.request is not None:
        sent = convert_to_messages([dict(message) for message in nearest.request])
        then = [*_offer_lines(nearest.tools or ()), *_message_lines(sent)]
        now = list(_offer_lines(offered(asked.tools))) if nearest.tools is not None else []
        return _diff(then, [*now, *_message_lines(asked.messages)])
    try:
        then, now = _in_template(
            store, load_codec(nearest.model), nearest, asked.messages, asked.tools
        )
        return _diff(then.splitlines(), now.splitlines())
    except HrmError as error:
        return [
            (
                f"(The recorded request is held as tokens of {nearest.model}, which cannot be read:"
                f" {error})"
            )
        ]


def looks_drawn(lines: Sequence[str]) -> bool:
    """True if any changed line of a diff differs only in numbers, names of days and months, or
    hexadecimal ids.

    Values that a node takes from the clock, `uuid` and `random` differ so, such as a time in a
    prompt.
    """
    changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    old, new = ([line[1:] for line in changed if line.startswith(sign)] for sign in "-+")
    return any(
        a != b and _DRAWN.sub("0", a) == _DRAWN.sub("0", b) for a, b in zip(old, new, strict=False)
    )


def template_texts(store: RunStore) -> TemplateTexts:
    """Text function for `RequestMatch`. Each tokenizer is loaded once."""
    codecs = lru_cache(load_codec)

    def texts(call: Call, messages: Sequence[BaseMessage], tools: Sequence[Any]) -> tuple[str, str]:
        return _in_template(store, codecs(call.model), call, messages, tools)

    return texts


def _in_template(
    store: RunStore, codec: Codec, call: Call, messages: Sequence[BaseMessage], tools: Sequence[Any]
) -> tuple[str, str]:
    """Recorded and current request as the policy reads them, without the recorded answer."""
    path = store.journal.path_tokens(call.id)
    then = path[: len(path) - call.sampled_tokens]
    return codec.decode(then), codec.decode(codec.encode(messages, tools))


def _message_lines(messages: Sequence[BaseMessage]) -> Iterator[str]:
    for message in messages:
        yield f"[{message.type}]"
        thoughts = (reasoning_of(message) or "") if isinstance(message, AIMessage) else ""
        yield from (f"| {line}" for line in thoughts.splitlines())
        text = message.text
        yield from text.splitlines()
        if not text and message.content:
            yield json.dumps(plain(message.content), ensure_ascii=False)
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            yield f"> {call['name']}: {json.dumps(call['args'], ensure_ascii=False)}"


def _offer_lines(tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from (f"[offers] {json.dumps(tool, ensure_ascii=False)}" for tool in tools)


def _tool_lines(call: ToolCall) -> Iterator[str]:
    yield call.name
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        yield from arguments.splitlines()
        return
    for name, value in cast("Mapping[str, Any]", arguments).items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        first, *rest = shown.splitlines() or [""]
        yield f"{name}: {first}"
        yield from rest


def _diff(old: list[str], new: list[str]) -> list[str]:
    return list(difflib.unified_diff(old, new, "on record", "now", lineterm="", n=3))
