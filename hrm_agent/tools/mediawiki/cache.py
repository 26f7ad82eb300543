"""Disk cache for the answers of a wiki, shared by processes.

If others may write to the cache's folder, this must not give them access to this process. So only
JSON is read, and only the cache's own files are removed. (diskcache itself unpickles a row that is
marked as a pickle, even with its JSONDisk, and removes any file that a row names.) Whoever can
write to the folder can still forge answers of the wiki, so keep the cache with your private data.

If the cache is damaged, locked or full, the wiki is asked again, and no answer is lost.
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
"""diskcache's mode of a row that is a pickle."""
_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]+\.val")
_DAMAGE = (OSError, sqlite3.Error, Timeout, zlib.error, ValueError, TypeError, RecursionError)


class _OnlyJSON(JSONDisk):
    """Disk format that reads only JSON rows, and accesses only files with the names of cached
    values.
    """

    def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:
        if mode == _MODE_PICKLE or not (filename is None or _FILE.fullmatch(str(filename))):
            raise ValueError("a row of the cache was not written by this cache")
        return super().fetch(mode, filename, value, read)

    def get(self, key: Any, raw: Any) -> Any:
        if not raw:
            raise ValueError("a key of the cache was not written by this cache")
        return super().get(key, raw)

    def remove(self, file_path: Any) -> None:
        if _FILE.fullmatch(str(file_path)):
            super().remove(file_path)


class AnswerCache:
    """Cache of JSON objects by key, for `seconds` each. Beyond 256 MiB the oldest are dropped."""

    def __init__(self, folder: Path | str, seconds: float) -> None:
        self._seconds = seconds
        self._warned = False
        try:
            self._cache = Cache(
                str(folder), timeout=_SECONDS_FOR_A_LOCK, disk=_OnlyJSON, size_limit=_MAX_BYTES
            )
        except _DAMAGE as error:
            raise ConfigError(
                f"{folder} cannot be used as a cache of a wiki's answers: {error}",
                "Name an empty folder that you may write to.",
            ) from error

    async def get(self, key: str) -> dict[str, Any] | None:
        """Cached answer (None if missing or expired)."""
        kept = await self._try(lambda: self._cache.get(key))
        return cast("dict[str, Any]", kept) if isinstance(kept, dict) else None

    async def set(self, key: str, answer: dict[str, Any]) -> None:
        await self._try(lambda: self._cache.set(key, answer, expire=self._seconds))

    def close(self) -> None:
        self._cache.close()

    async def _try(self, step: Callable[[], Any]) -> Any:
        """Run a step in a thread, so that waiting for a lock on the disk does not block other
        requests. None if the cache cannot be used.
        """
        try:
            return await asyncio.to_thread(step)
        except _DAMAGE as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("The cache %s cannot be used: %s", self._cache.directory, error)
            return None
