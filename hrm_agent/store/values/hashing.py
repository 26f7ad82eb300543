"""Kinds of stored values, and the hashes that name them.

The hash is BLAKE2b over kind and bytes. Models write the values, so it has to resist attempts at
collisions.
"""

from __future__ import annotations

import hashlib

__all__ = ["BYTEARRAY", "BYTES", "DICT", "LIST", "MSGPACK", "NULL", "TREE", "hash_of"]

NULL, BYTES, BYTEARRAY, MSGPACK, LIST, TREE, DICT = range(7)
_HASH_BYTES = 20


def hash_of(kind: int, data: bytes, key: bytes = b"") -> bytes:
    """Name of a value. With a key (an encrypted store), guesses of a content cannot be
    confirmed.
    """
    return hashlib.blake2b(data, digest_size=_HASH_BYTES, key=key, person=bytes([kind])).digest()
