"""What commands that serve have in common: a token that is kept for this user, and an end by signal."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hrm_agent.errors import HrmError

__all__ = ["Token", "kept_token", "read_token", "until_signal"]

_TOKEN_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Token:
    """What a server asks of its clients."""

    text: str
    origin: str
    """The variable or the file that it is in."""
    made: bool = False


def kept_token(file: Path | None, variable: str, default: Path) -> Token:
    """That of `file`, else of the variable, else of the default file; a file that is missing is made."""
    if file is None and os.environ.get(variable):
        return Token(_checked(os.environ[variable], variable), variable)
    path = file or default
    with suppress(FileNotFoundError):
        return read_token(path)
    text = secrets.token_urlsafe(_TOKEN_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=stat.S_IRWXU)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(text + "\n")
    except OSError as error:
        raise HrmError(f"The token cannot be kept in {path}: {error.strerror}.", "Name another --token-file.") from None
    return Token(text, str(path), made=True)


def read_token(path: Path) -> Token:
    """Raises FileNotFoundError, and HrmError for a file that others may read."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise HrmError(f"The token file {path} cannot be read: {error}.", "Name another --token-file.") from None
    if mode & _OTHERS:
        raise HrmError(f"Others may read the token file {path}.", f"chmod 600 {path}, and put another token into it.")
    if not text.strip():
        raise HrmError(f"The token file {path} is empty.", "Remove it: a new token is made at the next start.")
    return Token(_checked(text, str(path)), str(path))


def _checked(text: str, origin: str) -> str:
    found = text.strip()
    if not (found and found.isascii() and found.isprintable()):
        raise HrmError(f"{origin} has characters that no token has.", "Printable ASCII, without line breaks.")
    return found


async def until_signal() -> None:
    """Until SIGTERM or SIGINT; a second one ends the process at once."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    for number in signals:
        loop.remove_signal_handler(number)
