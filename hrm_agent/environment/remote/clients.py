"""Clients of a server by name, each with its token and quota, from a TOML file of hashes.

    [trainer]
    token_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    calls = 64

Runs, sessions and repeated calls of a client are separate from those of other clients: sessions and
ids belong to runs, and `Client.own` prefixes the run of a request with the client's name. A server
without such a file has a single token. Its holder is the server's only client, without a name and a
quota.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hrm_agent.basics.strict_json import from_json
from hrm_agent.errors import ConfigError, HrmError

__all__ = [
    "MOST_UNREAD",
    "Client",
    "Clients",
    "HeldTooLongError",
    "add_client",
    "hash_of",
    "read_clients",
]

MOST_UNREAD = 256 * 1024 * 1024
"""Maximum number of characters of unread answers on all connections of a client."""
_LARGE = 64 * 1024
"""Size in bytes from which a message counts as large."""
_PAUSES = 4.0
"""Pause after a large message was parsed, as a multiple of the parsing time."""
_TOKEN_BYTES = 32
_HINT = "`hrm-agent environment token NAME --clients FILE` adds a client."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    token_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    calls: Annotated[int, Field(ge=1)] | None = None


_FILE = TypeAdapter(dict[str, _Section])


class HeldTooLongError(Exception):
    """Error for a call whose deadline passed while its client had too many open calls."""


class UnreadAnswers(Protocol):
    """Connection with several calls."""

    unread: int
    """Number of characters of the connection's unread answers."""
    abort: Callable[[], None]
    """Function that ends the connection."""


class Client:
    """Holder of a token."""

    def __init__(self, name: str = "", calls: int | None = None) -> None:
        """Make a client. `calls`: maximum number of its calls in the queue or running. Further
        calls are held back, first in, first out (None: no maximum).
        """
        self.name = name
        """Name in the clients file (empty for a server with a single token)."""
        self._room = asyncio.Semaphore(calls) if calls is not None else None
        self.exchanges = set[UnreadAnswers]()
        """Connections with several calls each."""
        self.unread = 0
        """Number of characters of unread answers on all these connections."""
        self._reading = asyncio.Lock()

    def kept(self, characters: int) -> None:
        """Count `characters` of new unread answers. If the client has too many, its connection with
        the most is aborted.
        """
        self.unread += characters
        if self.unread > MOST_UNREAD and self.exchanges:
            max(self.exchanges, key=lambda exchange: exchange.unread).abort()

    async def read(self, data: bytes | str) -> Any:
        """JSON of a message. Parsing blocks the event loop, so large messages of a client are
        parsed one at a time, with pauses for other clients. Raises HrmError.
        """
        if len(data) < _LARGE:
            return from_json(data)
        async with self._reading:
            began = time.perf_counter()
            try:
                return from_json(data)
            finally:
                await asyncio.sleep(_PAUSES * (time.perf_counter() - began))

    def own(self, run: str) -> str:
        """`run` prefixed by the client's name, so that clients cannot name each other's runs."""
        return f"{self.name}/{run}" if self.name else run

    @asynccontextmanager
    async def call(self, seconds: float | None = None) -> AsyncGenerator[None]:
        """Hold one place of the quota inside the block. Raises HeldTooLongError if no place becomes
        free within `seconds`.
        """
        if self._room is None:
            yield
            return
        try:
            async with asyncio.timeout(seconds):
                await self._room.acquire()
        except TimeoutError:
            raise HeldTooLongError from None
        try:
            yield
        finally:
            self._room.release()


class Clients:
    """Clients by the hash of their token. Hashes are looked up, not tokens, so that response times
    reveal nothing about tokens.
    """

    def __init__(self, clients: Iterable[tuple[str, Client]]) -> None:
        """Index pairs of (hash of the token, client)."""
        self._by_hash = dict(clients)

    @classmethod
    def of_token(cls, token: str) -> Clients:
        """Return clients with one client, without a name. Raises HrmError for an empty token."""
        if not token:
            raise HrmError(
                "The token is empty, so the server would answer anybody.", "Give a token."
            )
        return cls([(hash_of(token.encode()), Client())])

    def find(self, token: bytes) -> Client | None:
        """Client with this token (None if it is unknown)."""
        return self._by_hash.get(hash_of(token))


def hash_of(token: bytes) -> str:
    """SHA-256 of a token. Tokens are long and random, so a plain hash reveals nothing about
    them.
    """
    return hashlib.sha256(token).hexdigest()


def read_clients(path: Path) -> Clients:
    """Read a clients file. Raises `ConfigError` with the reason if it is invalid."""
    sections = _sections(path)
    hashes = [section.token_sha256 for section in sections.values()]
    if not sections or len(set(hashes)) < len(hashes):
        what = "two clients have the same token" if sections else "the file has no client"
        raise ConfigError(f"{path}: {what}.", _HINT)
    return Clients(
        (found.token_sha256, Client(name, found.calls)) for name, found in sections.items()
    )


def add_client(path: Path, name: str, calls: int | None = None) -> str:
    """Generate a token for a new client, write its hash into the file, and return the token. Raises
    `ConfigError`.
    """
    _check_name(name)
    known = _sections(path) if path.exists() else {}
    if name in known:
        raise ConfigError(
            f"{path} has a client {name!r} already.",
            "Remove its section first, or choose another name.",
        )
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    quota = "" if calls is None else f"calls = {calls}\n"
    try:
        with open(path, "a", encoding="utf-8", opener=_for_this_user) as file:
            file.write(f'\n[{name}]\ntoken_sha256 = "{hash_of(token.encode())}"\n{quota}')
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.", "Name another file."
        ) from error
    return token


def _for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a client.", "Use letters, digits, `_` and `-`."
        )


def _sections(path: Path) -> dict[str, _Section]:
    try:
        sections = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(
            f"The file of clients {path} cannot be read: {error.strerror}.", _HINT
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"The file of clients {path} is not TOML: {error}.", "See https://toml.io."
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{path}: {where}: {first['msg']}.",
            "A client's section has the key token_sha256 and, for a quota, the key calls.",
        ) from error
    for name in sections:
        _check_name(name)
    return sections
