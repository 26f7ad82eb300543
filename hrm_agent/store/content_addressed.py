"""Content-addressed values: what a thousand checkpoints mention is stored once.

A value becomes a *reference*: the hash of its stored form, or the form itself where it is no longer than a hash is
worth. A list is stored as the references of its items, in chunks of `FANOUT`, and chunks of chunks above: a
conversation that grows by a message changes one chunk on each level, so that a checkpoint costs a logarithm of the
conversation's length instead of the whole of it. A large dict is stored by its entries. Anything else is a leaf, in
LangGraph's own serialised form.

Serialising is what a step costs, and most of a conversation has been serialised before. A message that was seen is
recognised by identity *and* by its fields in packed form, which costs a tenth of that and tells 1 from True. So one
changed in place is not mistaken for what it was; one that holds an object of a class is serialised every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ormsgpack
from langchain_core.messages import BaseMessage

from hrm_agent.store.hashing import BYTEARRAY, BYTES, DICT, LIST, MSGPACK, NULL, TREE, hash_of
from hrm_agent.store.serializer import PLAIN, RefusedValue, StrictSerializer, Unstorable

__all__ = ["CHANNEL_BYTES", "FANOUT", "Blob", "KnownBlobs", "ValueReader", "ValueWriter", "references"]

FANOUT = 32
CHANNEL_BYTES = 256
"""A channel's own value is kept in place up to here. What lists hold is not: their chunks are written often."""
_INLINE_BYTES = 64
_SPLIT_DICT_BYTES = 512
_REMEMBERED = 8192
_DEEPEST = 128
"""Levels of lists and dicts that are stored one by one. More could be written, and not be read back where the reader
stands deeper in Python's stack than the writer did."""

_KINDS = {"null": NULL, "bytes": BYTES, "bytearray": BYTEARRAY, "msgpack": MSGPACK}
_NAMES = {kind: name for name, kind in _KINDS.items()}

_TOO_DEEP = f"a value nested more than {_DEEPEST} levels deep, which could not be read back"

Reference = Any
"""The hash as bytes, or `[kind, data]` in place."""
Fetch = Callable[[Sequence[bytes]], Iterable[tuple[bytes, int, bytes]]]


@dataclass(frozen=True, slots=True)
class Blob:
    """One stored value."""

    hash: bytes
    """Hash of kind and data: the value's name."""
    kind: int
    """Number of the form that the data is in: a leaf's type, a list, a dict."""
    data: bytes
    """The stored form, before encryption."""


@dataclass(slots=True)
class KnownBlobs:
    """What this process knows of the blobs in the store: which are there, and the hashes of messages it has seen."""

    epoch: str = ""
    """Changes when blobs are collected: then nothing is known to be there."""
    stored: set[bytes] = field(default_factory=set[bytes])
    """Hashes of blobs that are in the store."""
    messages: dict[int, tuple[BaseMessage, bytes, Blob]] = field(
        default_factory=dict[int, tuple[BaseMessage, bytes, Blob]]
    )
    """id -> the message itself (so that its id stays taken), its fields in packed form, and its stored form."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while these change: several threads write checkpoints."""

    def add(self, epoch: str, hashes: Iterable[bytes]) -> None:
        """Note what was stored in an epoch; what was stored in an earlier one may have been collected since."""
        with self.lock:
            if epoch != self.epoch:
                return
            if len(self.stored) > 64 * _REMEMBERED:
                self.stored.clear()
            self.stored.update(hashes)

    def forget(self, epoch: str) -> None:
        with self.lock:
            self.epoch, self.stored = epoch, set()


class ValueWriter:
    """Turns the values of one transaction into references and the blobs that are not known to be stored."""

    def __init__(self, serializer: StrictSerializer, known: KnownBlobs, key: bytes = b"", *, epoch: str = "") -> None:
        self._serializer, self._known, self._key = serializer, known, key
        self.epoch = epoch
        """What a checkpoint refers to that was read or written in this epoch may be taken for stored."""
        self.new: dict[bytes, Blob] = {}

    def reference(self, value: Any, inline: int = _INLINE_BYTES, level: int = 0) -> Reference:
        """The reference of `value`, in place up to `inline` bytes; its blobs are added to `new`.

        Raises `Unstorable` for what could not be read back. `level`: how many lists and dicts hold it.
        """
        if level > _DEEPEST:
            raise Unstorable(_TOO_DEEP)
        if isinstance(value, BaseMessage):
            return self._message(value, _packed_fields(value))
        if type(value) is list:
            items = cast("list[Any]", value)
            if not all(item is None or type(item) in (int, float, bool) for item in items):
                return self._list([self.reference(item, level=level + 1) for item in items])
        kind, data = self._dump(value)
        if type(value) is dict and len(data) > _SPLIT_DICT_BYTES:
            entries = cast("dict[Any, Any]", value)
            if all(type(name) is str for name in entries):
                packed = [[name, self.reference(item, level=level + 1)] for name, item in entries.items()]
                return self._node(DICT, ormsgpack.packb(packed))
        return [kind, data] if len(data) <= inline else self._node(kind, data)

    def plain_message(self, message: BaseMessage) -> Reference | None:
        """The reference of a message that holds plain values only; None for another."""
        fields = _packed_fields(message)
        seen = self._known.messages.get(id(message))
        if seen is not None and seen[0] is message and seen[1] == fields and seen[2].hash in self._known.stored:
            return seen[2].hash
        return None if fields is None else self._message(message, fields)

    def listed(self, references: list[Reference]) -> Reference:
        """The reference of the list whose items have these: the same as that of the list itself."""
        return self._list(references) if references else self.reference([])

    def _dump(self, value: Any) -> tuple[int, bytes]:
        name, data = self._serializer.dumps_typed(value)
        return _KINDS[name], data

    def _list(self, references: list[Reference]) -> Reference:
        """A tree over `references`, whose shape depends on their number alone: equal lists have equal hashes."""
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
        seen = self._known.messages.get(id(message))
        if seen is not None and seen[0] is message and seen[1] == fields:
            return self._keep(seen[2])
        name, data = (self._serializer.dumps_typed if fields is None else self._serializer.dumps_allowed)(message)
        kind = _KINDS[name]
        blob = Blob(hash_of(kind, data, self._key), kind, data)
        if fields is None:
            return self._keep(blob)
        with self._known.lock:
            if len(self._known.messages) >= _REMEMBERED:
                for oldest in list(self._known.messages)[: _REMEMBERED // 2]:
                    del self._known.messages[oldest]
            self._known.messages[id(message)] = (message, fields, blob)
        return self._keep(blob)


def _packed_fields(message: BaseMessage) -> bytes | None:
    """All that is serialised of a message; None where it holds more than plain values."""
    fields: dict[str, Any] = vars(message)
    try:
        return ormsgpack.packb([fields, message.__pydantic_extra__], option=PLAIN)
    except TypeError:
        return None


class ValueReader:
    """Turns references back into values. All blobs that they need are fetched level by level, each once.

    With `shared`, equal leaves become one object: a history of a thousand checkpoints is a thousand lists over the same
    messages. Without, every value is an object of its own, which its reader may change.
    """

    def __init__(self, serializer: StrictSerializer, fetch: Fetch, *, key: bytes = b"", shared: bool = False) -> None:
        self._serializer, self._fetch, self._key, self._shared = serializer, fetch, key, shared
        self._blobs: dict[bytes, tuple[int, Any]] = {}
        """Hash -> kind and bytes; of nodes, what they hold."""
        self._leaves: dict[bytes, Any] = {}
        self._items: dict[bytes, list[Any]] = {}

    def load(self, references_: Iterable[Reference]) -> None:
        """Fetch what `references_` need, before `value` is asked for each."""
        wanted = _hashes(references_)
        while missing := [hash_ for hash_ in dict.fromkeys(wanted) if hash_ not in self._blobs]:
            wanted = []
            for hash_, kind, data in self._fetch(missing):
                if hash_of(kind, data, self._key) != hash_:
                    raise RefusedValue(f"a value whose bytes do not have its hash {hash_.hex()}")
                content = data if kind < LIST else _unpack(data)
                self._blobs[hash_] = (kind, content)
                wanted.extend(references(kind, content))
            if lost := [hash_ for hash_ in missing if hash_ not in self._blobs]:
                raise RefusedValue(f"a value that is not in the store: {lost[0].hex()}")

    def value(self, reference: Reference) -> Any:
        """The value of a reference that was loaded."""
        if isinstance(reference, bytes):
            kind, content = self._blobs[reference]
        else:
            kind, content = int(reference[0]), reference[1]
            content = content if kind < LIST else _unpack(content)
        if kind in (LIST, TREE):
            return self._list(reference, kind, content)
        if kind == DICT:
            return {name: self.value(item) for name, item in content}
        if not (self._shared and isinstance(reference, bytes)):
            return self._leaf(kind, content)
        if reference not in self._leaves:
            self._leaves[reference] = self._leaf(kind, content)
        return self._leaves[reference]

    def _list(self, reference: Reference, kind: int, content: list[Any]) -> list[Any]:
        if self._shared and isinstance(reference, bytes) and reference in self._items:
            return list(self._items[reference])
        parts = [self.value(item) for item in content]
        items = parts if kind == LIST else [item for part in parts for item in part]
        if self._shared and isinstance(reference, bytes):
            self._items[reference] = items
            return list(items)
        return items

    def _leaf(self, kind: int, data: bytes) -> Any:
        if kind not in _NAMES:
            raise RefusedValue(f"a value of the unknown kind {kind}")
        return self._serializer.loads_typed((_NAMES[kind], data))


def references(kind: int, content: Any) -> list[bytes]:
    """The hashes that a stored value names; `content` is its bytes, or what they hold."""
    if kind < LIST:
        return []
    held: Any = _unpack(content) if isinstance(content, bytes) else content
    return _hashes(item for _, item in held) if kind == DICT else _hashes(held)


def _hashes(found: Iterable[Reference]) -> list[bytes]:
    """Hashes among references, those of nodes kept in place included."""
    hashes: list[bytes] = []
    for reference in found:
        if isinstance(reference, bytes):
            hashes.append(reference)
        elif reference is not None and reference[0] >= LIST:
            hashes.extend(references(int(reference[0]), reference[1]))
    return hashes


def _unpack(data: bytes) -> Any:
    try:
        return ormsgpack.unpackb(data)
    except ormsgpack.MsgpackDecodeError as error:
        raise RefusedValue(f"a node that cannot be read: {error}") from error
