"""Encryption at rest: AES-256-GCM over everything that may contain users' text.

Values, manifests, metadata, records and tokens are encrypted. Lookup columns are plain: ids of
threads, checkpoints, tasks, runs and groups, statuses, seeds, times and sizes. Each row is bound to
its place by additional data, so it cannot be moved to another. A row that is not encrypted is
refused. Names of values are keyed hashes, so guesses of a content cannot be confirmed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from typing import Any, Protocol

from hrm_agent.errors import ConfigError, StoreError, to_install

__all__ = ["KEY_VARIABLE", "AesCipher", "Cipher", "Plain", "cipher_of"]

KEY_VARIABLE = "HRM_AGENT_STORE_KEY"
_NONCE_BYTES = 12


class Cipher(Protocol):
    """Encryption of the bytes in a row."""

    name: str
    """Name of the encryption, as recorded in the store."""
    hash_key: bytes
    """Key for the names of values. Empty without encryption."""

    def seal(self, data: bytes, *place: str | bytes) -> bytes: ...

    def open(self, data: bytes, *place: str | bytes) -> bytes:
        """Decrypt bytes. Raises `StoreError` if they were not encrypted for this place with this
        key.
        """
        ...


class Plain:
    """Cipher without encryption."""

    name = "none"
    hash_key = b""

    def seal(self, data: bytes, *place: str | bytes) -> bytes:
        return data

    def open(self, data: bytes, *place: str | bytes) -> bytes:
        return bytes(memoryview(data))  # `bytes` of a forged number would be that many zeros


class AesCipher:
    """AES-256-GCM cipher. Key and hash key are derived from one secret of 32 bytes. Requires the
    extra `encryption`.
    """

    name = "aes-256-gcm"

    def __init__(self, secret: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise StoreError(
                "An encrypted store needs cryptography, which is not installed.",
                f"Run `{to_install('encryption')}`.",
            ) from error
        if len(secret) != 32:
            raise ConfigError(
                f"The key of the store has {len(secret)} bytes, not 32.",
                "`openssl rand -base64 32` makes one.",
            )
        self._aes: Any = AESGCM(_derived(secret, b"values"))
        self._wrong: type[Exception] = InvalidTag
        self.hash_key = _derived(secret, b"names")

    def seal(self, data: bytes, *place: str | bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, data, _place(place))

    def open(self, data: bytes, *place: str | bytes) -> bytes:
        try:
            return self._aes.decrypt(data[:_NONCE_BYTES], bytes(data[_NONCE_BYTES:]), _place(place))
        except (self._wrong, ValueError) as error:
            where = ", ".join(part if isinstance(part, str) else part.hex() for part in place)
            raise StoreError(
                f"A row of the encrypted store was not sealed with the store's key ({where}).",
                "Its file was changed by another program; `hrm-agent store verify` lists what is"
                " intact.",
            ) from error


def cipher_of(key: str | bytes | None) -> Cipher:
    """Cipher for a key: base64 text, 32 raw bytes, or the variable `HRM_AGENT_STORE_KEY`. Without a
    key the cipher does not encrypt.
    """
    given = key if key is not None else os.environ.get(KEY_VARIABLE)
    if not given:
        return Plain()
    if isinstance(given, bytes):
        return AesCipher(given)
    try:
        return AesCipher(base64.b64decode(given, validate=True))
    except binascii.Error as error:
        raise ConfigError(
            "The key of the store is not base64.",
            "`openssl rand -base64 32` makes one of 32 bytes.",
        ) from error


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=32, person=purpose).digest()


def _place(parts: tuple[str | bytes, ...]) -> bytes:
    """Unambiguous encoding of a place: each part with its length before it."""
    raw = [
        part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts
    ]
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)
