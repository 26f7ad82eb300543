"""Digest of what a model sees of a conversation. A call's hashes are made from it, and with them
the proofs of what the model was sent.

A conversation is hashed twice for each call, and all but its last messages were hashed for the
previous call. So the hash state after each message is kept, keyed by the messages up to this one,
and a step only hashes its new messages. A text is its own key, since Python keeps the hash of a
string with it. Mutable values are packed into bytes each time.
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
"""Maximum number of messages whose hash states are kept. Above this number, or above
`_REMEMBERED_BYTES`, all states are dropped.
"""
_REMEMBERED_BYTES = 64 << 20
_BYTES_OF_AN_ENTRY = 1024
"""Approximate bytes of an entry: its hash state, dicts and key."""
_PLAIN = ormsgpack.OPT_NON_STR_KEYS | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str
).encode


def context_of(messages: Sequence[BaseMessage]) -> list[Any]:
    """Parts of a conversation that a model can see. Conversations with equal parts count as equal.

    Ids of tool calls contain the time, through LangGraph's task ids. So a result is identified by
    the number of the call that it answers.
    """
    ordinals: dict[str, int] = {}
    context: list[Any] = []
    for message in messages:
        ordinals = _with_calls(ordinals, message)
        context.append(_seen(message, ordinals))
    return context


def context_hash(messages: Sequence[BaseMessage], *parts: Any) -> str:
    """`content_hash(context_of(messages), *parts)`, without hashing known messages again."""
    return HashedContext.of(messages).hash(*parts)


def _with_calls(ordinals: dict[str, int], message: BaseMessage) -> dict[str, int]:
    """Numbers of all tool calls by id, including those of `message`."""
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
"""Key for what a model sees of a message: texts unchanged, mutable values packed."""


@dataclass(slots=True)
class HashedContext:
    """Hashed conversation, and the conversations that begin with it."""

    digest: Any
    """Hash state after the last message."""
    ordinals: dict[str, int]
    """Tool call id -> its number in the conversation."""
    first: bool = False
    """True if there is no message yet."""
    following: dict[Mark, HashedContext] = field(default_factory=dict[Mark, "HashedContext"])
    """Conversations with one more message, by that message."""

    @staticmethod
    def of(messages: Sequence[BaseMessage]) -> HashedContext:
        here = _empty
        with _lock:
            for message in messages:
                here = here.then(message)
        return here

    def then(self, message: BaseMessage) -> HashedContext:
        """Conversation with one more message."""
        mark = _mark(message)
        known = None if mark is None else self.following.get(mark)
        if known is None:
            ordinals = _with_calls(self.ordinals, message)
            digest = self.digest.copy()
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
    """Key of a message (None if it contains values that are not plain). Packed bytes distinguish 1
    from True.
    """
    content = message.content
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
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
