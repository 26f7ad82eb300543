"""What of a conversation a model can see, as data: the ground of a call's hashes, and of a proof by
them.

A conversation is hashed twice for each call, and all but its last messages were hashed for the call
before. So the state of the hash after each message is kept, under what a model saw up to it: a step
costs what it adds. A text is its own key, whose hash Python keeps with it; what can be changed in
place is packed each time.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

__all__ = ["HashedContext", "context_hash", "context_of"]

_REMEMBERED = 8192
"""Messages whose hashes are kept; beyond these, or beyond their bytes, all are forgotten."""
_REMEMBERED_BYTES = 64 << 20
_BYTES_OF_AN_ENTRY = 1024
"""Of its hash's state, its dicts and its key, about."""
_PLAIN = ormsgpack.OPT_NON_STR_KEYS | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
).encode


def context_of(messages: Sequence[BaseMessage]) -> list[Any]:
    """What of a conversation a model can see: by this two conversations are the same or not.

    The ids of tool calls contain the time, by way of LangGraph's task ids. What counts is which
    call a result answers.
    """
    ordinals: dict[str, int] = {}
    context: list[Any] = []
    for message in messages:
        ordinals = _with_calls(ordinals, message)
        context.append(_seen(message, ordinals))
    return context


def context_hash(messages: Sequence[BaseMessage], *parts: Any) -> str:
    """`content_hash(context_of(messages), *parts)`,
    without hashing again what was hashed before.
    """
    return HashedContext.of(messages).hash(*parts)


def _with_calls(ordinals: dict[str, int], message: BaseMessage) -> dict[str, int]:
    """The ordinals of all tool calls up to and with those of `message`."""
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    if not calls:
        return ordinals
    ordinals = dict(ordinals)
    for call in calls:
        ordinals.setdefault(str(call["id"]), len(ordinals))
    return ordinals


def _seen(message: BaseMessage, ordinals: Mapping[str, int]) -> list[Any]:
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    content = message.content.strip() if isinstance(message.content, str) else message.content
    answered = ordinals.get(message.tool_call_id) if isinstance(message, ToolMessage) else None
    return [message.type, content, message.name, [[c["name"], c["args"]] for c in calls], answered]


Mark = tuple[Any, ...]
"""All that a model sees of a message, as a key: text as it is, what may be changed in place in
packed form.
"""


@dataclass(slots=True)
class HashedContext:
    """What a model sees of a conversation, hashed; and the conversations that begin with it."""

    digest: Any
    """The hash's state after the last message."""
    ordinals: dict[str, int]
    """Of all tool calls."""
    first: bool = False
    """There is no message yet."""
    following: dict[Mark, HashedContext] = field(default_factory=dict[Mark, "HashedContext"])
    """By the message that came next."""

    @staticmethod
    def of(messages: Sequence[BaseMessage]) -> HashedContext:
        here = _empty
        with _lock:
            for message in messages:
                here = here.then(message)
        return here

    def then(self, message: BaseMessage) -> HashedContext:
        """The conversation with one more message."""
        mark = _mark(message)
        known = None if mark is None else self.following.get(mark)
        if known is None:
            ordinals, digest = _with_calls(self.ordinals, message), self.digest.copy()
            digest.update(_bytes(("" if self.first else ",") + _encode(_seen(message, ordinals))))
            known = HashedContext(digest, ordinals)
            if mark is not None:
                _remember(self, mark, known)
        return known

    def hash(self, *parts: Any) -> str:
        """`content_hash` of the conversation and `parts`."""
        digest = self.digest.copy()
        digest.update(_bytes("]" + "".join(f",{_encode(part)}" for part in parts) + "]"))
        return digest.hexdigest()[:32]


_lock = threading.Lock()
_empty = HashedContext(hashlib.sha256(b"[["), {}, first=True)
_count = _size = 0


def _remember(before: HashedContext, mark: Mark, known: HashedContext) -> None:
    global _count, _size
    held = _BYTES_OF_AN_ENTRY + sum(map(sys.getsizeof, mark)) + sys.getsizeof(known.ordinals)
    if _count > _REMEMBERED or _size + held > _REMEMBERED_BYTES:
        _empty.following.clear()
        _count = _size = 0
    if held <= _REMEMBERED_BYTES:
        before.following[mark] = known
        _count, _size = _count + 1, _size + held


def _mark(message: BaseMessage) -> Mark | None:
    """None for a message with more than plain values in it. Packed, 1 and True are not the same."""
    content, calls = message.content, message.tool_calls if isinstance(message, AIMessage) else ()
    answered = message.tool_call_id if isinstance(message, ToolMessage) else None
    if isinstance(content, str) and not calls:
        return message.type, message.name, answered, content
    try:
        packed = ormsgpack.packb([content, list(calls)], option=_PLAIN)
    except TypeError:
        return None
    return message.type, message.name, answered, packed


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
