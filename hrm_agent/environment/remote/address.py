"""Address of a served environment, and identification of its server.

The first request to a server is made without an event loop. So the constructor of
`RemoteEnvironment` can fail at once if nothing listens, if the token is wrong, or if the server
isolates less than accepted.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from hrm_agent.basics.http_client import backoff
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.remote.messages import PROTOCOL, SERVICE
from hrm_agent.errors import ConfigError, HrmError

__all__ = [
    "TOKEN_VARIABLE",
    "About",
    "Address",
    "about_of",
    "ask",
    "kept_token_file",
    "parse_address",
    "stranger",
    "token_for",
    "token_or_variable",
    "wrong_token",
]

TOKEN_VARIABLE = "HRM_AGENT_ENVIRONMENT_TOKEN"
_SECONDS = 10.0
_ATTEMPTS, _FIRST_SECONDS, _LONGEST_SECONDS = 5, 0.1, 1.0
"""Attempts per request, and the first and the longest pause between attempts in seconds."""
_MAX_ANSWER = 16 * 1024 * 1024


@with_config(ConfigDict(strict=True))
class _Greeting(TypedDict):
    """Fields that servers of every protocol version send."""

    service: str
    protocol: int


@with_config(ConfigDict(strict=True))
class _Unwell(TypedDict):
    error: str
    hint: str


@dataclass(frozen=True, slots=True)
class Address:
    """Address `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. It contains no token, so it
    may be shown and stored.
    """

    scheme: str
    """`http`, `https` or `unix`."""
    host: str = ""
    """Host name or IP address, IPv6 without brackets (empty for a socket)."""
    port: int = 0
    """TCP port (0 for a socket)."""
    path: str = ""
    """Path of the socket, or path under which a reverse proxy serves the environment."""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def is_near(self) -> bool:
        """True if the address is obviously on this machine: a socket or a loopback host."""
        return self.scheme == "unix" or self.host in ("localhost", "127.0.0.1", "::1")

    @property
    def base(self) -> str:
        """Prefix of request paths."""
        return "http://localhost" if self.scheme == "unix" else str(self)


@dataclass(frozen=True, slots=True)
class About:
    """Description that a server gives of itself."""

    boot: str
    """Id of the server process, different after every start."""
    isolation: str
    """Isolation level of the server, `L3` to `L0`."""
    request_bytes: int
    """Size in bytes of the largest message that the server accepts."""
    slots: int | None
    """Number of calls that the server runs at a time (None if unknown)."""
    version: str
    """Version of hrm-agent on the server."""


def parse_address(url: str) -> Address:
    """Parse the address of a server. Raises ConfigError."""
    if url.startswith("unix:") and len(url) > len("unix:"):
        return Address("unix", path=os.path.abspath(url.removeprefix("unix:")))  # noqa: PTH100 - `..` behind a link stays
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        raise ConfigError(
            "The URL is not the address of an environment.",
            "Use http://HOST:PORT, https://HOST:PORT or unix:PATH.",
        ) from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"The address of {parts.hostname} has a user name, a password, a query or a fragment.",
            f"Remove it. If it is a token, put it into {TOKEN_VARIABLE} or a file.",
        )
    if not parts.hostname:
        raise ConfigError(
            f"{url!r} names no host.", "Use http://HOST:PORT, https://HOST:PORT or unix:PATH."
        )
    return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


def kept_token_file() -> Path:
    """File of this user for the token that a server generates if it was given none."""
    return (
        Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        / "hrm-agent"
        / "environment-token"
    )


def token_for(address: Address, token: str | None) -> str:
    """Return `token`, else the token in the environment variable, else, for a server on this
    machine, the token in `kept_token_file`. Raises HrmError if there is no valid token.
    """
    if token is None and not os.environ.get(TOKEN_VARIABLE) and address.is_near:
        with suppress(OSError, UnicodeDecodeError):
            token = kept_token_file().read_text(encoding="utf-8")
    return token_or_variable(token)


def token_or_variable(token: str | None) -> str:
    """Return `token`, else the token in the environment variable. Raises HrmError if there is no
    token, or if it is not valid in a header.
    """
    found = (token or os.environ.get(TOKEN_VARIABLE, "")).strip()
    if not found:
        raise HrmError(
            "There is no token for the environment's server.", f"Put it into {TOKEN_VARIABLE}."
        )
    if not (found.isascii() and found.isprintable()):
        raise HrmError(
            "The token has characters that a token cannot have.",
            "Use printable ASCII without line breaks.",
        )
    return found


def ask(address: Address, path: str, token: str) -> str:
    """GET `path`. Raises HrmError if there is no valid response."""
    try:
        status, body = _answer(address, path, token)
    except TimeoutError:
        raise HrmError(
            f"{address} does not answer within {_SECONDS:.0f} s.", "Is the server overloaded?"
        ) from None
    except OSError as error:
        raise HrmError(
            f"Nothing listens at {address}: {error.strerror or error}.",
            "`hrm-agent environment serve` starts a server.",
        ) from None
    except http.client.HTTPException:
        raise stranger(address) from None
    if status == http.client.UNAUTHORIZED:
        raise wrong_token(address)
    text = body.decode("utf-8", "replace")
    if status == http.client.SERVICE_UNAVAILABLE:
        try:
            said = _UNWELL.validate_json(text)
        except ValueError:
            raise stranger(address) from None
        raise HrmError(f"{address}: {said['error']}", said["hint"])
    if status != http.client.OK:
        raise stranger(address)
    return text


def _answer(address: Address, path: str, token: str) -> tuple[int, bytes]:
    """Response to a request. The request is sent again if the server resets the connection, which
    may happen if many clients connect at once.
    """
    for attempt in range(_ATTEMPTS - 1):
        with suppress(ConnectionResetError, BrokenPipeError):
            return _one_answer(address, path, token)
        time.sleep(backoff(attempt, _FIRST_SECONDS, _LONGEST_SECONDS))
    return _one_answer(address, path, token)


def _one_answer(address: Address, path: str, token: str) -> tuple[int, bytes]:
    if address.scheme == "unix":
        prefix = ""
        line = _UnixConnection(address.path)
    else:
        secure = address.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        prefix = address.path
        line = kind(address.host, address.port, timeout=_SECONDS)
    with closing(line) as connection:
        connection.request("GET", prefix + path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read(_MAX_ANSWER)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self._path)


_GREETING, _ABOUT, _UNWELL = TypeAdapter(_Greeting), TypeAdapter(About), TypeAdapter(_Unwell)


def about_of(text: str, address: Address, least: Isolation) -> About:
    """Parse a server's description of itself. Raises HrmError if it is not an hrm-agent
    environment, or isolates less than `least`.
    """
    try:
        greeting = _GREETING.validate_json(text)
        if greeting["service"] != SERVICE:
            raise stranger(address)
        if greeting["protocol"] != PROTOCOL:
            raise HrmError(
                f"{address} speaks version {greeting['protocol']} of the protocol, this program"
                f" version {PROTOCOL}.",
                "Run the same version of hrm-agent on both sides.",
            )
        about = _ABOUT.validate_json(text, strict=True)
        level = Isolation(about.isolation)
    except ValueError:
        raise stranger(address) from None
    if not level.holds(least):
        raise HrmError(
            f"{address} isolates at level {about.isolation}, which is less than the required"
            f" {least}.",
            "Run `hrm-agent doctor environment` on the server to see what is missing, or accept"
            " less with --isolation.",
        )
    return about


def stranger(address: Address) -> HrmError:
    return HrmError(
        f"What answers at {address} is not an hrm-agent environment.", "Is the port the right one?"
    )


def wrong_token(address: Address) -> HrmError:
    return HrmError(
        f"{address} refuses the token.",
        f"Put the right token into {TOKEN_VARIABLE}. When the server started, it said where its"
        " token is, or that each client has its own.",
    )
