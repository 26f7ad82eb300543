"""A rollout worker, seen from the process that has the engine: what it is asked, what it answers,
and how it ends.

How messages reach it, a subclass says: over a socket (`worker_subprocess`), or over Ray
(`on_ray.worker`).
"""

from __future__ import annotations

import asyncio
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import Any

from hrm_agent.errors import ConfigError
from hrm_agent.models import Engine
from hrm_agent.runtime.episode import Episode
from hrm_agent.training.workers.engine_proxy import EngineHost
from hrm_agent.training.workers.wire import Message, WorkerSetup, error_of, packed
from hrm_agent.trajectory import Trajectory

__all__ = ["GRACE_SECONDS", "WorkerDiedError", "WorkerHandle"]

GRACE_SECONDS = 10.0
"""For a worker to give back what it holds; then it is killed."""


class WorkerDiedError(Exception):
    """A worker ended while it had work. Its text says how: `by signal 9 (Killed)`."""

    speaks_in = "What it said, if anything, stands above."
    """Where the words of a worker are to be found."""


class WorkerHandle(ABC):
    """One worker. To be used in one event loop."""

    place = ""
    """What it would be lost with, such as a node of a cluster; empty: with nothing else."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._host = EngineHost(engines, self.send)
        self._numbers = count(1)
        self._runs: dict[int, asyncio.Future[Trajectory]] = {}
        self._stopping: dict[int, tuple[str, asyncio.Event]] = {}
        """Runs that were cancelled and may not be over: their threads, and when they are."""
        self._loading: set[asyncio.Task[None]] = set()
        self._told_to_end = False
        self._ended: Exception | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.owner = ""
        """By which it owns leases in the store."""
        self.excused = False
        """Another worker of its place has died since it ended a run: if it dies too, that is the
        same death.
        """

    @property
    @abstractmethod
    def pid(self) -> int:
        """Number of its process, on its machine."""

    @property
    def runs(self) -> int:
        """How many it has open."""
        return len(self._runs)

    @abstractmethod
    async def open(self, setup: WorkerSetup) -> None:
        """Start it, and wait until it has loaded what it needs.

        Raises what it could not be opened by, `WorkerDiedError` if it has ended.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let it give back what it holds, then end it."""

    @abstractmethod
    async def kill(self) -> None:
        """End it, and all that its graphs have started."""

    @abstractmethod
    def write(self, frame: bytes) -> None:
        """Send a frame, after those before it. One that has ended gets none."""

    def send(self, messages: Sequence[Message]) -> None:
        """Nothing any more once the worker was told to end: an engine may still answer what was
        asked before.
        """
        if not self._told_to_end:
            self.write(packed(messages))

    async def set_up(self, setup: WorkerSetup) -> None:
        """Send the setup, and wait until the worker has opened it. Raises as `open` does."""
        self.send([("setup", pickle.dumps(setup))])
        await self._opened

    async def run(self, episode: Episode, version: int) -> Trajectory:
        """The trajectory, when the episode has ended.
        Raises `WorkerDiedError` if the worker has.
        """
        number, ended = next(self._numbers), asyncio.get_running_loop().create_future()
        try:
            frame = packed([("run", number, pickle.dumps(episode), version)])
        except Exception as error:  # of an object among the task's metadata or the graph's options
            raise ConfigError(
                f"Thread {episode.thread_id} cannot be handed to a worker process:"
                f" {type(error).__name__}: {error}.",
                "Give the task and the graph's options plain values, or run in one process.",
            ) from error
        if self._ended is not None:
            raise self._ended
        self._runs[number] = ended
        try:
            self.write(frame)
            return await ended
        except asyncio.CancelledError:
            if self._ended is None and ended.cancelled():  # else it was over already
                self._stopping[number] = episode.thread_id, asyncio.Event()
                self.send([("stop", number)])
            raise
        finally:
            del self._runs[number]

    async def stopped(self, thread_id: str) -> None:
        """Wait until a run of the thread that was cancelled here has given it back."""
        for event in [event for thread, event in self._stopping.values() if thread == thread_id]:
            await event.wait()

    def _has_stopped(self, number: int) -> None:
        if number in self._stopping:
            self._stopping.pop(number)[1].set()

    def end_all(self, ended: Exception) -> None:
        """It answers no more: whoever waits for it is told."""
        self._ended = ended
        for number in list(self._stopping):
            self._has_stopped(number)
        self._host.close()
        for waiting in (self._opened, *self._runs.values()):
            if not waiting.done():
                waiting.set_exception(ended)
                waiting.exception()  # told: asyncio has nothing to complain of where nobody waits

    def take(self, kind: str, *rest: Any) -> None:
        """Something that it has said."""
        match kind:
            case "ask":
                self._host.ask(*rest[:2])
            case "cancel":
                self._host.cancel(rest[0])
            case "load":
                task = asyncio.create_task(self._host.load(*rest))
                self._loading.add(task)
                task.add_done_callback(self._loading.discard)
            case "open":
                self.owner = rest[0]
                self._opened.set_result(None)
            case "refused":
                self._opened.set_exception(error_of(*rest[0]))
            case "stopped":
                self._has_stopped(rest[0])
            case _:
                number, found = rest
                self._has_stopped(number)
                ended = self._runs.get(number)
                if ended is None or ended.done():
                    return
                if kind == "ended":
                    ended.set_result(found)
                else:
                    ended.set_exception(error_of(*found))
