"""What a graph asks now beside what it asked when it was recorded, as a diff that a person can read.

Where the record holds the messages, they are compared as text. A policy's request is held as token ids, so both sides
are compared in the words of its chat template: the policy's tokenizer is loaded for it, never its weights.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.utils import convert_to_messages

from hrm_agent.errors import HrmError
from hrm_agent.models.call_recording import plain
from hrm_agent.models.engine import Codec
from hrm_agent.models.policy_loader import load_codec
from hrm_agent.runtime.replay.recorded_answers import UnrecordedRequest
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Call, ToolCall

__all__ = ["request_diff"]


def request_diff(store: RunStore, asked: UnrecordedRequest, nearest: Call | ToolCall | None) -> list[str]:
    """A unified diff from the recorded request to the one that was made now; all of it, where there is none."""
    if asked.tool_call is not None:
        recorded = list(_tool_lines(nearest)) if isinstance(nearest, ToolCall) else []
        return _diff(recorded, list(_tool_lines(asked.tool_call)))
    if not isinstance(nearest, Call):
        return _diff([], list(_message_lines(asked.messages)))
    if nearest.request is not None:
        sent = convert_to_messages([dict(message) for message in nearest.request])
        return _diff(list(_message_lines(sent)), list(_message_lines(asked.messages)))
    try:
        return _diff(*_in_template(store, load_codec(nearest.model), asked, nearest))
    except HrmError as error:
        return [f"(The recorded request is held as tokens of {nearest.model}, which cannot be read: {error})"]


def _in_template(store: RunStore, codec: Codec, asked: UnrecordedRequest, nearest: Call) -> tuple[list[str], list[str]]:
    """Both requests as the policy reads them, without the recorded answer."""
    path = store.journal.path_tokens(nearest.id)
    then = path[: len(path) - nearest.sampled_tokens]
    now = codec.encode(asked.messages, asked.tools)
    return codec.decode(then).splitlines(), codec.decode(now).splitlines()


def _message_lines(messages: Sequence[BaseMessage]) -> Iterator[str]:
    for message in messages:
        yield f"[{message.type}]"
        text = message.text
        yield from text.splitlines()
        if not text and message.content:
            yield json.dumps(plain(message.content), ensure_ascii=False)
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            yield f"> {call['name']}: {json.dumps(call['args'], ensure_ascii=False)}"


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
