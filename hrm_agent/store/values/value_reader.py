"""Reader of content-addressed values, which `hrm_agent.store.values.content_addressed` writes.

A loader converts the leaves. So values can also be read without making objects, without LangChain
and LangGraph, which take most of a second to import.

A value is named by a hash, BLAKE2b over kind and bytes. Models write the values, so the hash has to
resist attempts at collisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import ormsgpack

from hrm_agent.store.database.cursors import Cursor, placeholders
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.refusals import RefusedValue

__all__ = [
    "BYTEARRAY",
    "BYTES",
    "DICT",
    "KINDS",
    "LIST",
    "MOST_PARTS",
    "MSGPACK",
    "NULL",
    "TREE",
    "Loader",
    "Reference",
    "ValueReader",
    "hash_of",
    "read_values",
    "references",
]

NULL, BYTES, BYTEARRAY, MSGPACK, LIST, TREE, DICT = range(7)
_HASH_BYTES = 20


def hash_of(kind: int, data: bytes, key: bytes = b"") -> bytes:
    """Name of a value. With a key (an encrypted store), guesses of a content cannot be
    confirmed.
    """
    return hashlib.blake2b(data, digest_size=_HASH_BYTES, key=key, person=bytes([kind])).digest()


KINDS = {"null": NULL, "bytes": BYTES, "bytearray": BYTEARRAY, "msgpack": MSGPACK}
"""Kinds of leaves by their names in LangGraph's serializer."""
_NAMES = {kind: name for name, kind in KINDS.items()}
MOST_PARTS = 2_000_000
"""Maximum number of parts of one value that is read without its types. No real state has more
messages and tables.
"""
_AT_ONCE = 500
"""Maximum number of hashes in one query."""

Reference = Any
"""Hash as bytes, or inline `[kind, data]`."""
Fetch = Callable[[Sequence[bytes]], Iterable[tuple[bytes, int, bytes]]]


class Loader(Protocol):
    """Converter of leaves to values: LangGraph's serializer, or a simpler one."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Value of a leaf, from the name of its kind and its bytes. Raises `RefusedValue`."""
        ...


def read_values(
    cursor: Cursor, cipher: Cipher, loader: Loader, *, shared: bool, most: int | None = MOST_PARTS
) -> ValueReader:
    """Reader of values in the snapshot of `cursor`. For `most` see `ValueReader`."""

    def fetch(hashes: Sequence[bytes]) -> Iterable[tuple[bytes, int, bytes]]:
        for start in range(0, len(hashes), _AT_ONCE):
            some = hashes[start : start + _AT_ONCE]
            query = f"SELECT hash, kind, data FROM blobs WHERE hash IN ({placeholders(len(some))})"
            for hash_, kind, data in cursor.execute(query, list(some)).fetchall():
                yield (
                    bytes(hash_),
                    kind if type(kind) is int else -1,
                    cipher.open(data, "blob", bytes(hash_)),
                )

    return ValueReader(loader, fetch, key=cipher.hash_key, shared=shared, most=most)


class ValueReader:
    """Decoder of references to values. All needed blobs are fetched level by level, each once.

    With `shared`, equal leaves become one object: a history of a thousand checkpoints is a thousand
    lists over the same messages. Otherwise every value is a separate object, which its reader may
    change.

    A value of more than `most` parts is refused: forty forged rows, each of which refers to the
    next one ten times, would exceed any memory.
    """

    def __init__(
        self,
        serializer: Loader,
        fetch: Fetch,
        *,
        key: bytes = b"",
        shared: bool = False,
        most: int | None = None,
    ) -> None:
        self._serializer = serializer
        self._fetch = fetch
        self._key = key
        self._shared = shared
        self._most = most
        self._parts = dict[bytes, int]()
        self._blobs: dict[bytes, tuple[int, Any]] = {}
        """Kind and bytes by hash. Nodes have their contents instead of bytes."""
        self._leaves: dict[bytes, Any] = {}
        self._items: dict[bytes, list[Any]] = {}

    def load(self, references_: Iterable[Reference]) -> None:
        """Fetch the blobs that `references_` need. Call this before `value`.

        Raises `RefusedValue` for missing, damaged or too large values.
        """
        roots = list(references_)
        wanted = _hashes(roots)
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
        if self._most is not None and any(
            self._count(root) > self._most for root in roots if root is not None
        ):
            raise RefusedValue(f"a value of more than {self._most:,} parts")

    def _count(self, reference: Reference) -> int:
        """Number of parts of a value, without making it."""
        if isinstance(reference, bytes) and reference in self._parts:
            return self._parts[reference]
        kind, content = (
            self._blobs[reference]
            if isinstance(reference, bytes)
            else (int(reference[0]), reference[1])
        )
        if kind < LIST:
            return 1
        held: Any = _unpack(content) if isinstance(content, bytes) else content
        count = 1 + sum(self._count(item[1] if kind == DICT else item) for item in held)
        if isinstance(reference, bytes):
            self._parts[reference] = count
        return count

    def value(self, reference: Reference) -> Any:
        """Value of a reference that was loaded."""
        if isinstance(reference, bytes):
            kind, content = self._blobs[reference]
        else:
            kind = int(reference[0])
            content = reference[1]
            content = content if kind < LIST else _unpack(content)
        if kind in (LIST, TREE):
            if self._shared and isinstance(reference, bytes) and reference in self._items:
                return list(self._items[reference])
            parts = [self.value(item) for item in content]
            items = parts if kind == LIST else [item for part in parts for item in part]
            if self._shared and isinstance(reference, bytes):
                self._items[reference] = items
                return list(items)
            return items
        if kind == DICT:
            return {name: self.value(item) for name, item in content}
        if not (self._shared and isinstance(reference, bytes)):
            return self._leaf(kind, content)
        if reference not in self._leaves:
            self._leaves[reference] = self._leaf(kind, content)
        return self._leaves[reference]

    def _leaf(self, kind: int, data: bytes) -> Any:
        if kind not in _NAMES:
            raise RefusedValue(f"a value of the unknown kind {kind}")
        return self._serializer.loads_typed((_NAMES[kind], data))


def references(kind: int, content: Any) -> list[bytes]:
    """Hashes to which a stored value refers. `content` is its bytes, or their contents."""
    if kind < LIST:
        return []
    held: Any = _unpack(content) if isinstance(content, bytes) else content
    return _hashes(item for _, item in held) if kind == DICT else _hashes(held)


def _hashes(found: Iterable[Reference]) -> list[bytes]:
    """Hashes among references, including those in inline nodes."""
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
