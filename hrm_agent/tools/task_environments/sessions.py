"""Sessions of this process with environments, opened on one event loop of their own.

A server may allow few sessions at a time (OpenEnv's default is one). Once it has said how many,
further sessions wait here, in order, until one of ours is closed. Sessions of other clients take
places as well, so a refused session is tried again for a while.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from hrm_agent.basics.async_bridge import BackgroundLoop
from hrm_agent.basics.http_client import backoff
from hrm_agent.tools.task_environments.servers import last_words, served, server_url, settle
from hrm_agent.tools.task_environments.source import EnvironmentSource
from hrm_agent.tools.task_environments.wire import (
    AtCapacityError,
    EnvironmentFault,
    Observed,
    WireSession,
)

__all__ = ["OpenSession", "background", "on_loop"]

SECONDS_FOR_A_PLACE = 120.0
"""Longest time in seconds that a session is tried again while a server has none free."""
_FIRST, _LONGEST = 0.05, 1.0
_Result = TypeVar("_Result")
_lock = threading.Lock()
_loops: dict[int, BackgroundLoop] = {}
_places: dict[tuple[int, str], _Places] = {}


class _Places:
    """Sessions of this process on one server. Used on the background loop only."""

    def __init__(self) -> None:
        self.most: int | None = None
        """Number of sessions that the server allows (None: it has not refused any)."""
        self._open = 0
        self._changed = asyncio.Condition()

    async def take(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.most is None or self._open < self.most)
            self._open += 1

    async def give_back(self) -> None:
        async with self._changed:
            self._open -= 1
            self._changed.notify_all()


class OpenSession:
    """Episode of an environment: one session on its server. Its methods run on the background
    loop.
    """

    def __init__(self, source: EnvironmentSource) -> None:
        self._source = source
        self._wire: WireSession | None = None
        self._places: _Places | None = None
        self._acts = 0
        self._total: float | None = None

    async def reset(self, arguments: Mapping[str, Any]) -> Observed:
        """Begin the episode, as soon as the server has a place."""
        until = time.monotonic() + SECONDS_FOR_A_PLACE
        attempt = 0
        while True:
            try:
                seen = await self._begin(arguments)
                self._total = seen.reward or None  # 0 is a default, not a reward
                return seen
            except AtCapacityError as error:
                places = self._places
                most = error.most
                await self.close()
                if places is not None and most is not None:
                    places.most = min(most, places.most or most)
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(backoff(attempt, _FIRST, _LONGEST))
                attempt += 1
            except BaseException as error:
                await self.close()
                if isinstance(error, EnvironmentFault) and not self._source.url:
                    said = await asyncio.to_thread(last_words, self._source)
                    raise EnvironmentFault(f"{error} Its server said: {said}.") from error
                raise

    async def _begin(self, arguments: Mapping[str, Any]) -> Observed:
        url = await asyncio.to_thread(server_url, self._source)
        places = _places.setdefault((os.getpid(), url), _Places())
        await places.take()
        self._places = places
        self._wire = WireSession(self._source, url)
        return await self._wire.reset(arguments)

    async def act(self, action: Mapping[str, Any]) -> Observed:
        """Take an action. Raises `EnvironmentFault` if the episode ends without a reward."""
        if self._wire is None:
            raise EnvironmentFault("The session with the environment is closed.")
        try:
            seen = await self._wire.act(action)
        except EnvironmentFault:
            if not self._source.url:
                await asyncio.to_thread(settle, self._source)
            raise
        self._acts += 1
        served(self._source)
        if seen.reward is not None:
            self._total = (self._total or 0.0) + seen.reward
        fault = ""
        if seen.done and self._total is None:
            fault = "The environment ended the episode without a reward."
        elif self.is_over and self._total is None:
            fault = f"The environment gave no reward in the {self._acts} acts of `steps`."
        elif not math.isfinite(self._total or 0.0):
            fault = "The sum of the environment's rewards is not a finite number."
        if fault:
            await self.close()
            raise EnvironmentFault(fault)
        return seen

    async def count(self) -> int | None:
        """Number of tasks of a taskset (None: endless)."""
        url = await asyncio.to_thread(server_url, self._source)
        wire = WireSession(self._source, url)
        try:
            return await wire.count()
        except EnvironmentFault as error:
            said = await asyncio.to_thread(last_words, self._source)
            raise EnvironmentFault(f"{error} Its server said: {said}.") from error
        finally:
            await wire.close()

    @property
    def total(self) -> float:
        """Sum of the rewards so far."""
        return self._total or 0.0

    @property
    def is_over(self) -> bool:
        """True after as many acts as the source allows."""
        return self._source.steps is not None and self._acts >= self._source.steps

    async def close(self) -> None:
        """End the session, and free its place."""
        wire = self._wire
        places = self._places
        self._wire = None
        self._places = None
        try:
            if wire is not None:
                await wire.close()
        finally:
            if places is not None:
                await places.give_back()


async def on_loop(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work` on the background loop of sessions."""
    return await background().run_async(work)


def background() -> BackgroundLoop:
    """Loop on which all sessions of this process live."""
    with _lock:
        pid = os.getpid()
        if pid not in _loops:
            _loops[pid] = BackgroundLoop("task-environments")
        return _loops[pid]
