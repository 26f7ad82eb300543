"""The kinds of stored values, and the hashes that name them.

The hash is BLAKE2b over kind and bytes: values are written by models, so it has to withstand those
who look for collisions.
"""

from __future__ import annotations

import hashlib

__all__ = ["BYTEARRAY", "BYTES", "DICT", "LIST", "MSGPACK", "NULL", "TREE", "hash_of"]

NULL, BYTES, BYTEARRAY, MSGPACK, LIST, TREE, DICT = range(7)
_HASH_BYTES = 20


def hash_of(kind: int, data: bytes, key: bytes = b"") -> bytes:
    """The name of a value. With a key (an encrypted store) it tells nothing to those who guess at
    contents.
    """
    return hashlib.blake2b(data, digest_size=_HASH_BYTES, key=key, person=bytes([kind])).digest()
