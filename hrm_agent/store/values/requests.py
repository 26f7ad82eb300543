"""Requests of model calls, as references to values: a conversation of n turns costs n messages, not
n^2.

A request is mostly the contents of the checkpoint before it, so its messages are the checkpoint's
own values. It is stored as two lists: the leading system messages, and the rest. If a graph sends a
system message and its state's messages, the second list is already stored by the checkpoint. A
message that would not come back unchanged (of a custom class, or with objects inside) is stored as
JSON, as `Call.request` shows it. The offered tools are a third list, of their JSON. Calls that
offer the same tools refer to the same list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from itertools import chain, takewhile
from typing import Any, NamedTuple, TypeVar, cast

import ormsgpack
from langchain_core.messages import BaseMessage, SystemMessage

from hrm_agent.basics.bounded import remember
from hrm_agent.errors import UnstorableError
from hrm_agent.store.database.cursors import Cursor, WriteCursor
from hrm_agent.store.values.blobs import Blobs
from hrm_agent.store.values.content_addressed import ValueWriter
from hrm_agent.store.values.plain_reader import request_part
from hrm_agent.store.values.refusals import Unstorable
from hrm_agent.store.values.sent_requests import Dump, Sent, read_requests
from hrm_agent.store.values.serializer import StrictSerializer
from hrm_agent.store.values.value_reader import Reference
from hrm_agent.trajectory.message_dump import message_dump

__all__ = ["RequestStore", "SentRow", "write_request"]

T = TypeVar("T")
Dumps = dict[bytes, Dump]
"""JSON dumps by the hash of a stored message, or by the JSON text of a tool."""
_MOST_CHARACTERS = 16_384
"""Maximum number of characters of a message whose dump is kept."""
_OWN = "langchain_core.messages."
"""Package of the message classes that a checkpoint may always contain."""


class SentRow(NamedTuple):
    """Stored form of a request."""

    data: bytes
    """Packed references, as the contents of its row."""
    has_messages: bool
    """True if the messages that were sent are known."""
    messages: tuple[Dump, ...] | None
    """Messages as they will be read back (None if that is not certain)."""
    tools: tuple[Dump, ...] | None
    """Tools that were offered (None if they are not known)."""


def write_request(
    messages: Sequence[BaseMessage | Mapping[str, Any]] | None,
    tools: Sequence[Mapping[str, Any]] | None,
    writer: ValueWriter,
    dumps: Dumps | None = None,
) -> SentRow:
    """Row of a request. Its values are added to the writer. In `messages`, a mapping is a message's
    JSON dump (None: the messages are unknown).

    A row has two references for messages, one for tools, three for both. Rows of an earlier version
    have two. `dumps`: cache of messages and tools, to which those of this request are added.
    """
    parts: list[list[Reference]] = []
    dumps = {} if dumps is None else dumps
    if messages is not None:
        leading = sum(
            1 for _ in takewhile(lambda message: isinstance(message, SystemMessage), messages)
        )
        split = (messages[:leading], messages[leading:])
        parts += [_references(part, writer) for part in split]
    shown = _shown(messages, list(chain.from_iterable(parts)), dumps)
    shown_tools: tuple[Dump, ...] | None = None
    if tools is not None:
        texts = list(map(_json, tools))
        parts.append([writer.reference(text) for text in texts])
        shown_tools = tuple(_read_back(text, dumps) for text in texts)
    data = ormsgpack.packb([writer.listed(part) for part in parts])
    return SentRow(data, messages is not None, shown, shown_tools)


def _read_back(text: bytes, dumps: Dumps) -> Dump:
    """Tool as it will be read back. Its JSON has lists for tuples, and is independent of the
    caller's object.
    """
    if (dump := dumps.get(text)) is None:
        dump = json.loads(text)
        remember(dumps, text, dump)
    return dump


def _shown(
    messages: Sequence[BaseMessage | Mapping[str, Any]] | None,
    references: Sequence[Reference],
    dumps: Dumps,
) -> tuple[Dump, ...] | None:
    """Messages as they will be read back (None if that is not certain)."""
    if messages is None or not all(isinstance(reference, bytes) for reference in references):
        return None
    found: list[Dump] = []
    for message, reference in zip(messages, references, strict=True):
        key = cast(bytes, reference)
        if (dump := dumps.get(key)) is None:
            if not isinstance(message, BaseMessage) or not _is_plain(message):
                return None
            try:
                dump = message_dump(message)
            # an object in it, which will be read back as its type's name
            except (ValueError, RecursionError):
                return None
            if not _is_text(dump):
                return None
            remember(dumps, key, dump)
        found.append(dump)
    return tuple(found)


def _is_text(dump: Dump) -> bool:
    """True if texts have no lone surrogates, which are stored as other characters."""
    try:
        ormsgpack.packb(dump)
    except ormsgpack.MsgpackEncodeError:
        return False
    return True


def _references(
    messages: Sequence[BaseMessage | Mapping[str, Any]], writer: ValueWriter
) -> list[Reference]:
    if (
        all(map(_is_own, set(map(type, messages))))
        and (found := writer.messages(messages)) is not None
    ):
        return found
    return [_reference(message, writer) for message in messages]


def _is_plain(message: BaseMessage) -> bool:
    """True if a message is read back unchanged, and is not large."""
    text = message.content
    # LangChain changes such tool calls when it reads the message
    calls = "tool_calls" in message.additional_kwargs
    return (
        _is_own(type(message))
        and isinstance(text, str)
        and len(text) <= _MOST_CHARACTERS
        and not calls
    )


@lru_cache
def _is_own(type_: type) -> bool:
    return issubclass(type_, BaseMessage) and type_.__module__.startswith(_OWN)


def _reference(message: BaseMessage | Mapping[str, Any], writer: ValueWriter) -> Reference:
    if isinstance(message, BaseMessage):
        if _is_own(type(message)) and (reference := writer.plain_message(message)) is not None:
            return reference
        try:
            message = message_dump(message, lambda value: type(value).__qualname__)
        except (ValueError, RecursionError) as error:
            raise Unstorable(
                f"a message ({type(message).__name__}) that cannot be stored: {error}"
            ) from error
    return writer.reference(_json(message))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


class RequestStore:
    """Store of requests."""

    def __init__(self, blobs: Blobs, serializer: StrictSerializer) -> None:
        self.blobs = blobs
        self.serializer = serializer
        self._dumps: Dumps = {}

    def write(
        self,
        messages: Sequence[BaseMessage | Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        insert: Callable[[WriteCursor, SentRow], T],
        thread_id: str,
    ) -> Future[T]:
        """Call `insert` with the row of a request of a thread, in one transaction with its values.

        The future has the result of `insert`. Raises `UnstorableError` for a message that cannot be
        stored.
        """
        try:
            encode = partial(write_request, messages, tools, dumps=self._dumps)
            return self.blobs.write(self.serializer, encode, insert, thread_id, waits=True)
        except Unstorable as error:
            raise UnstorableError(
                f"A model call of thread {thread_id!r} was sent {error}. It was not recorded.",
                "Send the model a plainer form of the message.",
            ) from error

    def read(self, cursor: Cursor, rows: Mapping[str, bytes]) -> Sent:
        """Requests of calls by their rows, with messages of any class."""
        if not rows:
            return {}
        reader = self.blobs.reader(cursor, self.serializer, shared=True)
        return read_requests(reader, self.blobs.cipher, rows, _dump)


def _dump(message: Any) -> Any:
    return message_dump(message) if isinstance(message, BaseMessage) else request_part(message)
