"""Files: whole at any moment, written by one process at a time, and JSON that every reader accepts.

A file is written beside its place, then renamed over what was there: whoever is killed half-way, or
runs out of disk, leaves the old one as it was.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

from hrm_agent.errors import RunError

__all__ = ["alone_in", "json_line", "locked_folder", "read_whole", "replacing"]


_held: ContextVar[frozenset[Path]] = ContextVar("_held", default=frozenset())
"""Folders that this task is alone in."""


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path to write to, renamed to `path` at the end and removed on failure. Makes the folder
    where it is missing.
    """
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        with part.open("rb") as written:
            # before its name is: a power cut would leave an empty file of this name
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_whole(path: Path) -> str | None:
    """A short text; None where there is none, or a power cut has left none of it."""
    try:
        return path.read_text(encoding="utf-8").strip("\0 \r\n\t") or None
    except FileNotFoundError:
        return None


def json_line(value: Any) -> str:
    """One line of strict JSON. JSON has no nan: a mean over nothing is null. What it has no form
    for becomes text.
    """
    return json.dumps(_finite(value), ensure_ascii=False, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {
            key if isinstance(key, (str, int)) else str(key): _finite(item) for key, item in items
        }
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in cast("list[Any]", value)]
    return value


@contextmanager
def alone_in(folder: Path) -> Generator[None]:
    """Two processes in one run folder would run the same threads. The lock goes with its process,
    however that ends.

    Within a block that holds the folder already, it is held on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held, place = _held.get(), folder.resolve()
    if place in held:
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"Another process is at work in {folder}.", "Wait for it, or name another folder."
            ) from None
        _held.set(held | {place})
        try:
            yield
        finally:
            _held.set(_held.get() - {place})


@contextmanager
def locked_folder(folder: Path, how: int = 0) -> Generator[None]:
    """Alone, until the block or the process ends. `LOCK_NB` raises `BlockingIOError` where another
    is.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(opened)
