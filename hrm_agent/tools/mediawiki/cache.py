"""Answers of a wiki on disk, shared by processes.

A folder that others may write to is no way into this process: only JSON is read, and only files of
the cache's own are removed. (diskcache by itself unpickles a row that says it is a pickle, with its
JSONDisk as well, and removes whatever file a row names.) Who can write to it can still put words
into the wiki's mouth: keep it where your other data is.

A cache that is damaged, locked or full never costs an answer: the wiki is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from diskcache import Cache, JSONDisk, Timeout

from hrm_agent.errors import ConfigError

__all__ = ["AnswerCache"]

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 256 * 2**20
_SECONDS_FOR_A_LOCK = 5
_MODE_PICKLE = 4
"""diskcache's mark of a row that is a pickle."""
_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]+\.val")
_DAMAGE = (OSError, sqlite3.Error, Timeout, zlib.error, ValueError, TypeError, RecursionError)


class _OnlyJSON(JSONDisk):
    """Reads what JSONDisk wrote, and touches no files but those."""

    def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:
        if mode == _MODE_PICKLE or not (filename is None or _FILE.fullmatch(str(filename))):
            raise ValueError("a row of the cache is none that was put there")
        return super().fetch(mode, filename, value, read)

    def get(self, key: Any, raw: Any) -> Any:
        if not raw:
            raise ValueError("a key of the cache is none that was put there")
        return super().get(key, raw)

    def remove(self, file_path: Any) -> None:
        if _FILE.fullmatch(str(file_path)):
            super().remove(file_path)


class AnswerCache:
    """JSON objects by key, for so many seconds, in at most 256 MiB: the oldest are dropped."""

    def __init__(self, folder: Path | str, seconds: float) -> None:
        self._seconds, self._warned = seconds, False
        try:
            self._cache = Cache(
                str(folder), timeout=_SECONDS_FOR_A_LOCK, disk=_OnlyJSON, size_limit=_MAX_BYTES
            )
        except _DAMAGE as error:
            raise ConfigError(
                f"{folder} cannot hold the answers of a wiki: {error}",
                "Name an empty folder that you may write to.",
            ) from error

    async def get(self, key: str) -> dict[str, Any] | None:
        """An answer that is there and not too old."""
        kept = await self._try(lambda: self._cache.get(key))
        return cast("dict[str, Any]", kept) if isinstance(kept, dict) else None

    async def set(self, key: str, answer: dict[str, Any]) -> None:
        await self._try(lambda: self._cache.set(key, answer, expire=self._seconds))

    def close(self) -> None:
        self._cache.close()

    async def _try(self, step: Callable[[], Any]) -> Any:
        """In a thread: a lock on the disk is not to keep other requests waiting."""
        try:
            return await asyncio.to_thread(step)
        except _DAMAGE as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("The cache %s cannot be used: %s", self._cache.directory, error)
            return None
