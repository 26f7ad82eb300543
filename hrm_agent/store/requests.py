"""What model calls were sent, as references to values: a conversation of n turns costs n messages and not n^2.

A request is mostly what the checkpoint before it holds, so its messages are the checkpoint's own values. It is stored
as two lists, the system turns at its front and the rest: a graph that sends a system turn and its state's messages
sends, in the second, a list that the checkpoint has stored already. A message that would not come back as it is (of a
class of one's own, or with objects inside) is stored as the JSON that `Call.request` shows of it. The tools that were
offered are a third list, of their JSON: every call that offers them names the same one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, takewhile
from typing import Any, TypeVar, cast

import ormsgpack
from langchain_core.messages import BaseMessage, SystemMessage

from hrm_agent.errors import StoreError, UnstorableError
from hrm_agent.store.blobs import Blobs
from hrm_agent.store.content_addressed import Reference, ValueWriter
from hrm_agent.store.damage import DAMAGED
from hrm_agent.store.database import Cursor, WriteCursor
from hrm_agent.store.serializer import RefusedValue, StrictSerializer, Unstorable
from hrm_agent.trajectory.message_dump import message_dump

__all__ = ["RequestStore", "read_request", "write_request"]

T = TypeVar("T")
Dump = dict[str, Any]
_WITH_TOOLS = (1, 3)
"""Numbers of references in a row whose last one is that of the tools."""
_OWN = "langchain_core.messages."
"""Package of the message classes that a checkpoint may always hold."""


def write_request(
    messages: Sequence[BaseMessage | Mapping[str, Any]] | None,
    tools: Sequence[Mapping[str, Any]] | None,
    writer: ValueWriter,
) -> bytes:
    """The row of a request; what it names is added to the writer. A mapping is a message's JSON dump, None unknown.

    Two references are the messages', one is the tools', three are both. Rows of an earlier version have two.
    """
    parts: list[list[Reference]] = []
    if messages is not None:
        leading = sum(1 for _ in takewhile(lambda message: isinstance(message, SystemMessage), messages))
        split = (messages[:leading], messages[leading:])
        parts += [[_reference(message, writer) for message in part] for part in split]
    if tools is not None:
        parts.append([writer.reference(_json(tool)) for tool in tools])
    return ormsgpack.packb([writer.listed(part) for part in parts])


def read_request(data: bytes) -> list[Reference]:
    """The references in a row of a request."""
    return cast("list[Reference]", ormsgpack.unpackb(data))


def _reference(message: BaseMessage | Mapping[str, Any], writer: ValueWriter) -> Reference:
    if isinstance(message, BaseMessage):
        own = type(message).__module__.startswith(_OWN)
        if own and (reference := writer.plain_message(message)) is not None:
            return reference
        try:
            message = message_dump(message, lambda value: type(value).__qualname__)
        except (ValueError, RecursionError) as error:
            raise Unstorable(f"a message ({type(message).__name__}) that cannot be stored: {error}") from error
    return writer.reference(_json(message))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


class RequestStore:
    """Requests as they are stored."""

    def __init__(self, blobs: Blobs, serializer: StrictSerializer) -> None:
        self.blobs, self.serializer = blobs, serializer

    def write(
        self,
        messages: Sequence[BaseMessage | Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        insert: Callable[[WriteCursor, bytes], T],
        thread_id: str,
    ) -> Future[T]:
        """Do `insert` with the row of a request of a thread, in one transaction with the values that it names."""
        try:
            encode = partial(write_request, messages, tools)
            return self.blobs.write(self.serializer, encode, insert, thread_id)
        except Unstorable as error:
            raise UnstorableError(
                f"A model call of thread {thread_id!r} was sent {error}. It was not recorded.",
                "Send the model a plainer form of it.",
            ) from error

    def read(self, cursor: Cursor, rows: Mapping[str, bytes]) -> dict[str, dict[str, tuple[Dump, ...]]]:
        """Call's id -> its `request` and `tools`, as far as they are known, as JSON dumps.

        What several calls sent is read once, and is one object.
        """
        if not rows:
            return {}
        reader = self.blobs.reader(cursor, self.serializer, shared=True)
        dumps: dict[int | bytes, Dump] = {}
        found: dict[str, dict[str, tuple[Dump, ...]]] = {}
        here = ""
        try:
            parts: dict[str, list[Reference]] = {}
            for here, data in rows.items():
                parts[here] = read_request(self.blobs.cipher.open(data, "request", here))
            reader.load(part for each in parts.values() for part in each)
            for here, each in parts.items():
                lists = [tuple(_dumped(value, dumps) for value in reader.value(part)) for part in each]
                tools = {"tools": lists.pop()} if len(lists) in _WITH_TOOLS else {}
                found[here] = {**({"request": tuple(chain.from_iterable(lists))} if lists else {}), **tools}
        except (RefusedValue, *DAMAGED) as error:
            raise StoreError(
                f"The request of model call {here}: {error}. It was not read.",
                "Its file was damaged or changed: `hrm-agent store verify`.",
            ) from error
        return found


def _dumped(message: Any, dumps: dict[int | bytes, Dump]) -> Dump:
    """The dump of a message, which the reader keeps meanwhile: its id is its own."""
    key = message if isinstance(message, bytes) else id(message)
    if key not in dumps:
        dumps[key] = _dump(message)
    return dumps[key]


def _dump(message: Any) -> Dump:
    if isinstance(message, BaseMessage):
        return message_dump(message)
    found = json.loads(message) if isinstance(message, bytes) else None
    if not isinstance(found, dict):
        raise RefusedValue(f"a value ({type(message).__name__}) that is no message")
    return cast(Dump, found)
