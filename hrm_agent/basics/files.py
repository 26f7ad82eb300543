"""Files that are complete at any moment, folders that are used by one process at a time, and JSON
that every reader accepts.

A file is written beside its path, then renamed over the previous file. A process that is killed
while it writes, or finds the disk full, leaves the previous file unchanged.
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
"""Folders whose locks this task holds."""


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Yield a path to write to. At the end of the block its file is renamed to `path`, or removed
    if the block failed. Makes the folder if it is missing.
    """
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        with part.open("rb") as written:
            # without this, a power cut after the rename could leave an empty file at `path`
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_whole(path: Path) -> str | None:
    """Text of a short file (None if the file is missing, or empty after a power cut)."""
    try:
        return path.read_text(encoding="utf-8").strip("\0 \r\n\t") or None
    except FileNotFoundError:
        return None


def json_line(value: Any) -> str:
    """One line of strict JSON. nan and infinity become null. Objects that have no JSON form become
    text.
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
    """Hold the lock of a run folder, since two processes in one folder would run the same threads.

    The lock ends with its process, however the process ends. A nested block of the same task keeps
    the lock. Raises RunError if another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = _held.get()
    place = folder.resolve()
    if place in held:
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"Another process is using {folder}.",
                "Wait until it has ended, or name another folder.",
            ) from None
        _held.set(held | {place})
        try:
            yield
        finally:
            _held.set(_held.get() - {place})


@contextmanager
def locked_folder(folder: Path, how: int = 0) -> Generator[None]:
    """Hold an exclusive lock of a folder until the block or the process ends. With `how=LOCK_NB`,
    raises `BlockingIOError` if another process holds the lock.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(opened)
