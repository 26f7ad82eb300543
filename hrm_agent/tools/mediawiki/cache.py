"""Disk cache for the answers of a wiki, shared by processes.

A cache that is damaged, locked or full never costs an answer: the wiki is asked again.
"""

from __future__ import annotations

import asyncio
import logging
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
_DAMAGE = (OSError, sqlite3.Error, Timeout, zlib.error, ValueError, TypeError, RecursionError)


class AnswerCache:
    """Cache of JSON objects by key, for `seconds` each. At 256 MiB the oldest are dropped."""

    def __init__(self, folder: Path | str, seconds: float) -> None:
        self._seconds, self._warned = seconds, False
        try:
            self._cache = Cache(
                str(folder), timeout=_SECONDS_FOR_A_LOCK, disk=JSONDisk, size_limit=_MAX_BYTES
            )
        except _DAMAGE as error:
            raise ConfigError(
                f"{folder} cannot hold the answers of a wiki: {error}",
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
        """Run a step in a thread, as a lock on the disk must not block other requests."""
        try:
            return await asyncio.to_thread(step)
        except _DAMAGE as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("The cache %s cannot be used: %s", self._cache.directory, error)
            return None
