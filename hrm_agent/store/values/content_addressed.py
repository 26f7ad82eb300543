"""Content-addressed values: a value is stored once, even if a thousand checkpoints refer to it.

A value becomes a *reference*: the hash of its stored form, or the form itself if it is short. A
list is stored as the references of its items, in chunks of `FANOUT`, with chunks of chunks above. A
conversation that grows by a message changes one chunk on each level. So a checkpoint costs the
logarithm of the conversation's length, not the whole of it. A large dict is stored by its entries.
Anything else is a leaf, in LangGraph's own serialised form.

Serialising is the main cost of a step, and most of a conversation was serialised before. A known
message is recognised by identity *and* by its packed fields. That costs a tenth of serialising it,
and distinguishes 1 from True. So a message that was changed in place is noticed. A message with an
object of a class is serialised every time. The messages of a chunk are compared together, so a
known chunk costs only that comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, is_
from types import NoneType
from typing import Any, cast

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.store.values.refusals import RefusedValue, Unstorable
from hrm_agent.store.values.serializer import StrictSerializer
from hrm_agent.store.values.typed_values import EXACT, has_bytes, is_plain
from hrm_agent.store.values.value_reader import (
    DICT,
    KINDS,
    LIST,
    TREE,
    Reference,
    ValueReader,
    hash_of,
)

__all__ = ["CHANNEL_BYTES", "FANOUT", "Blob", "KnownBlobs", "ValueReader", "ValueWriter"]

FANOUT = 32
CHANNEL_BYTES = 256
"""Longest inline form of a channel's own value in bytes. Items of lists have a lower limit, as
their chunks are written often.
"""
_INLINE_BYTES = 64
_SPLIT_DICT_BYTES = 512
_REMEMBERED = 8192
_DEEPEST = 128
"""Maximum number of levels of lists and dicts that are stored one by one. Deeper ones could be
written, but not be read back if the reader is deeper in Python's stack than the writer.
"""

_SCALARS = frozenset({str, int, float, bool, NoneType})
_NUMBERS = _SCALARS - {str}
_packed = partial(ormsgpack.packb, option=EXACT)
_sorted = partial(ormsgpack.packb, option=EXACT | ormsgpack.OPT_SORT_KEYS)
_fields_of = attrgetter("__dict__")
_more_of = attrgetter("__pydantic_extra__")
_COMMON = frozenset({HumanMessage, SystemMessage, AIMessage, ToolMessage})
_TOO_DEEP = f"a value nested more than {_DEEPEST} levels deep, which could not be read back"


@dataclass(frozen=True, slots=True)
class Blob:
    """Stored value."""

    hash: bytes
    """Hash of kind and data, which is the value's name."""
    kind: int
    """Form of the data: a leaf's type, a list, a dict."""
    data: bytes
    """Stored form, before encryption."""


@dataclass(frozen=True, slots=True)
class _SeenChunk:
    """Adjacent messages in a list, all of plain values."""

    messages: list[BaseMessage]
    """Messages, kept alive so that their ids stay unique."""
    fields: list[bytes]
    """Packed fields of each message."""
    blobs: list[Blob]
    """Stored forms of the messages."""
    hashes: list[bytes]
    """References of the stored forms."""


_NOTHING = _SeenChunk([], [], [], [])


@dataclass(slots=True)
class KnownBlobs:
    """Knowledge of a process about the blobs in the store: existing ones, and the hashes of
    messages.
    """

    epoch: str = ""
    """Epoch of the store. When it changes, blobs were collected, and none is known to exist."""
    stored: set[bytes] = field(default_factory=set[bytes])
    """Hashes of blobs that are in the store."""
    messages: dict[int, tuple[BaseMessage, bytes, Blob]] = field(
        default_factory=dict[int, tuple[BaseMessage, bytes, Blob]]
    )
    """Messages by id, with their packed fields and stored form. They are kept alive so that their
    ids stay unique.
    """
    chunks: dict[int, _SeenChunk] = field(default_factory=dict[int, "_SeenChunk"])
    """Chunks by the id of their first message, as they were last written."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lock for changes, as several threads write checkpoints."""

    def add(self, epoch: str, hashes: Iterable[bytes]) -> None:
        """Note the hashes that were stored in an epoch. Those of an earlier epoch are ignored, as
        they may have been collected since.
        """
        with self.lock:
            if epoch != self.epoch:
                return
            if len(self.stored) > 64 * _REMEMBERED:
                self.stored.clear()
            self.stored.update(hashes)

    def forget(self, epoch: str) -> None:
        with self.lock:
            self.epoch = epoch
            self.stored = set()


class ValueWriter:
    """Encoder of the values of one transaction, as references and as blobs that are not known to be
    stored.
    """

    def __init__(
        self, serializer: StrictSerializer, known: KnownBlobs, key: bytes = b"", *, epoch: str = ""
    ) -> None:
        self._serializer = serializer
        self._known = known
        self._key = key
        self.epoch = epoch
        """Epoch of the transaction. References that were read or written in it may be assumed to be
        stored.
        """
        self.new: dict[bytes, Blob] = {}

    def reference(self, value: Any, inline: int = _INLINE_BYTES, level: int = 0) -> Reference:
        """Reference of `value`, inline up to `inline` bytes. Its blobs are added to `new`.

        Raises `RefusedValue` for a value that would be read back changed. `level`: number of lists
        and dicts around it.
        """
        if level > _DEEPEST:
            raise Unstorable(_TOO_DEEP)
        type_ = type(value)
        if type_ in _SCALARS:
            kind, data = self._dump(value)
            return [kind, data] if len(data) <= inline else self._node(kind, data)
        if isinstance(value, BaseMessage):
            return self._message(value, _packed_fields(value))
        if type_ is list:
            items = cast("list[Any]", value)
            if items and isinstance(items[0], BaseMessage):
                return self._list(self.messages(items) or self._each(items, level))
            if not _NUMBERS.issuperset(map(type, items)):
                return self._list(self._each(items, level))
            name, data = self._serializer.dumps_numbers(items)
            kind = KINDS[name]
        else:
            kind, data = self._dump(value)
        if type(value) is dict and len(data) > _SPLIT_DICT_BYTES:
            entries = cast("dict[Any, Any]", value)
            if all(type(name) is str for name in entries):
                packed = [
                    [name, self.reference(item, level=level + 1)] for name, item in entries.items()
                ]
                return self._node(DICT, ormsgpack.packb(packed))
        return [kind, data] if len(data) <= inline else self._node(kind, data)

    def _each(self, items: Sequence[Any], level: int) -> list[Reference]:
        found = list[Reference]()
        try:
            for item in items:
                found.append(self.reference(item, level=level + 1))
        except RefusedValue as error:
            error.within(f"[{len(found)}]")
            raise
        return found

    def messages(self, items: Sequence[Any]) -> list[Reference] | None:
        """References of messages with plain values only (None if any item is something else)."""
        found: list[Reference] = []
        for start in range(0, len(items), FANOUT):
            chunk = self._chunk(items[start : start + FANOUT])
            if chunk is None:
                return None
            found += chunk
        return found

    def _chunk(self, items: Sequence[Any]) -> list[bytes] | None:
        seen = self._known.chunks.get(id(items[0])) or _NOTHING
        size = len(seen.messages)
        if size > len(items) or not all(map(is_, seen.messages, items)):
            seen = _NOTHING
            size = 0
        if not all(isinstance(item, BaseMessage) for item in items[size:]):
            return None
        try:
            fields = list(map(_packed, map(_fields_of, items)))
        except TypeError:
            return None
        if any(map(_more_of, items)):
            return None
        if fields[:size] != seen.fields:  # a message was changed in place
            seen = _NOTHING
            size = 0
        if size < len(items):
            blobs = [*seen.blobs, *map(self._blob_of, items[size:], fields[size:])]
            seen = _SeenChunk(list(items), fields, blobs, [blob.hash for blob in blobs])
            with self._known.lock:
                if len(self._known.chunks) * FANOUT >= _REMEMBERED:
                    _forget_half(self._known.chunks)
                self._known.chunks[id(items[0])] = seen
        if not self._known.stored.issuperset(seen.hashes):
            for blob in seen.blobs:
                self._keep(blob)
        return seen.hashes

    def plain_message(self, message: BaseMessage) -> Reference | None:
        """Reference of a message with plain values only (None for another)."""
        fields = _packed_fields(message)
        seen = self._known.messages.get(id(message))
        if (
            seen is not None
            and seen[0] is message
            and seen[1] == fields
            and seen[2].hash in self._known.stored
        ):
            return seen[2].hash
        return None if fields is None else self._message(message, fields)

    def listed(self, references: list[Reference]) -> Reference:
        """Reference of the list whose items have these references. It equals the reference of the
        list itself.
        """
        return self._list(references) if references else self.reference([])

    def _dump(self, value: Any) -> tuple[int, bytes]:
        name, data = self._serializer.dumps_typed(value)
        return KINDS[name], data

    def _list(self, references: list[Reference]) -> Reference:
        """Tree over `references`. Its shape depends on their number alone, so equal lists have
        equal hashes.
        """
        packed = ormsgpack.packb(references[:FANOUT])
        if len(references) <= FANOUT:
            return [LIST, packed] if len(packed) <= _INLINE_BYTES else self._node(LIST, packed)
        level = [
            self._node(LIST, ormsgpack.packb(references[start : start + FANOUT]))
            for start in range(0, len(references), FANOUT)
        ]
        while len(level) > 1:
            level = [
                self._node(TREE, ormsgpack.packb(level[start : start + FANOUT]))
                for start in range(0, len(level), FANOUT)
            ]
        return level[0]

    def _node(self, kind: int, data: bytes) -> bytes:
        return self._keep(Blob(hash_of(kind, data, self._key), kind, data))

    def _keep(self, blob: Blob) -> bytes:
        if blob.hash not in self._known.stored:
            self.new[blob.hash] = blob
        return blob.hash

    def _message(self, message: BaseMessage, fields: bytes | None) -> Reference:
        return self._keep(self._blob_of(message, fields))

    def _blob_of(self, message: BaseMessage, fields: bytes | None) -> Blob:
        seen = self._known.messages.get(id(message))
        if seen is not None and seen[0] is message and seen[1] == fields:
            return seen[2]
        kept = fields is not None and _is_kept(message, fields)
        name, data = (self._serializer.dumps_allowed if kept else self._serializer.dumps_typed)(
            message
        )
        kind = KINDS[name]
        blob = Blob(hash_of(kind, data, self._key), kind, data)
        if fields is not None:
            with self._known.lock:
                if len(self._known.messages) >= _REMEMBERED:
                    _forget_half(self._known.messages)
                self._known.messages[id(message)] = (message, fields, blob)
        return blob


def _forget_half(remembered: dict[int, Any]) -> None:
    for oldest in list(remembered)[: len(remembered) // 2]:
        del remembered[oldest]


def _packed_fields(message: BaseMessage) -> bytes | None:
    """Packed fields of a message (None if it has more than plain values and its class's fields)."""
    try:
        return None if _more_of(message) else _packed(_fields_of(message))
    except TypeError:
        return None


def _is_kept(message: BaseMessage, fields: bytes) -> bool:
    """True if LangGraph's form of a message of plain values keeps the message: its class, which is
    known to be allowed, makes an equal message of its fields, but for the order of counts of
    tokens. This check takes a twentieth of the time of reading the form itself.
    """
    type_ = type(message)
    held = message.__dict__
    if type_ not in _COMMON or (has_bytes(fields) and not is_plain(held)):
        return False
    try:
        made = type_(**held)
        return _packed_fields(made) == fields or _sorted(made.__dict__) == _sorted(held)
    except (TypeError, ValueError):
        return False
