"""Options shared by commands that serve: address, the user's token, and shutdown by signal."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.errors import ConfigError, HrmError

__all__ = [
    "Token",
    "add_place",
    "announce",
    "check_place",
    "check_port",
    "hosts_of",
    "kept_token",
    "read_token",
    "until_signal",
    "url_of",
]

_HOST = "127.0.0.1"

_TOKEN_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Token:
    """Token that a server requires from clients."""

    text: str
    """Token text, printable ASCII (empty if each client has a token of its own)."""
    origin: str
    """Environment variable or file with the token, or file of clients."""
    made: bool = False
    """True if the token was created at this start. It is then shown once."""


def add_place(parser: Parser, port: int, token_file: Path) -> None:
    """Add the options for address and access."""
    add = parser.add_argument
    add("--host", default=_HOST, help=f"address to listen on [{_HOST}]")
    add("--port", type=int, default=port, help=f"port; 0 takes a free one [{port}]")
    add("--allow-remote", action="store_true", help="allow a --host that other machines reach")
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file of the token; created if missing [{token_file}]",
    )
    add(
        "--drain-seconds",
        type=float,
        default=30.0,
        help="on SIGTERM, seconds for running requests to finish [30]",
    )


def check_port(arguments: Arguments) -> None:
    """Check the port. Raises `ConfigError`."""
    if not 0 <= arguments.port < 2**16:
        raise ConfigError(
            f"--port {arguments.port} is not a port.",
            "Give a number from 1 to 65535, or 0 for any free port.",
        )


def check_place(arguments: Arguments) -> None:
    """Check address and access options. Raises `ConfigError`."""
    check_port(arguments)
    if not 0 <= arguments.drain_seconds < float("inf"):
        raise ConfigError(
            f"--drain-seconds {arguments.drain_seconds} is not a time to wait.",
            "Give seconds, 0 or more.",
        )


def hosts_of(arguments: Arguments) -> tuple[str, ...]:
    """Allowed Host headers of requests (empty: any)."""
    return (
        () if arguments.allow_remote else (arguments.host.lower(), "localhost", "127.0.0.1", "::1")
    )


def url_of(host: str, listener: socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def announce(output: Output, token: Token, url: str, what: str, **facts: Any) -> None:
    """Print the server's address and token. A new token is shown only this once."""
    made = {"token": token.text} if token.made else {}
    output.result({"url": url, **facts, "pid": os.getpid(), "token_from": token.origin, **made})
    output.say(f"{url}: {what}")
    where = (
        f"{token.text}  (shown once, kept in {token.origin})"
        if token.made
        else f"as in {token.origin}"
    )
    output.say(
        "token:"
        f" {where if token.text else f'each client has its own, {token.origin} has their hashes'}"
    )


def kept_token(file: Path | None, variable: str, default: Path) -> Token:
    """Token from `file`, else from the environment variable, else from the default file. If the
    file is missing, it is created with a new token.
    """
    if file is None and os.environ.get(variable):
        return Token(_checked(os.environ[variable], variable), variable)
    path = file or default
    with suppress(FileNotFoundError):
        return read_token(path)
    text = secrets.token_urlsafe(_TOKEN_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=stat.S_IRWXU)
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR
        )
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(text + "\n")
    except OSError as error:
        raise HrmError(
            f"The token cannot be kept in {path}: {error.strerror}.", "Name another --token-file."
        ) from None
    return Token(text, str(path), made=True)


def read_token(path: Path) -> Token:
    """Read a token from a file. Raises `FileNotFoundError`, and `HrmError` if other users may read
    the file, or if it has no valid token.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise HrmError(
            f"The token file {path} cannot be read: {error}.", "Name another --token-file."
        ) from None
    if mode & _OTHERS:
        raise HrmError(
            f"Other users may read the token file {path}.",
            f"Run `chmod 600 {path}` and put a new token into it.",
        )
    if not text.strip():
        raise HrmError(
            f"The token file {path} is empty.",
            "Remove the file. A new token is made at the next start.",
        )
    return Token(_checked(text, str(path)), str(path))


def _checked(text: str, origin: str) -> str:
    found = text.strip()
    if not (found and found.isascii() and found.isprintable()):
        raise HrmError(
            f"{origin} holds characters that a token cannot have.",
            "Use printable ASCII without line breaks.",
        )
    return found


async def until_signal(ready: Callable[[], object]) -> None:
    """Wait for SIGTERM or SIGINT.

    A second signal ends the process at once. `ready` is called once signals are handled. So a
    client can stop the server as soon as it is reported ready.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    ready()
    await stopped.wait()
    for number in signals:
        loop.remove_signal_handler(number)
