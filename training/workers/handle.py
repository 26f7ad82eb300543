"""Handle of a rollout worker in the process that has the engine. It forwards runs, requests and
answers, and notices the worker's end.

Subclasses define the transport of messages: a socket (`hrm_agent.training.workers.subprocess`), or
Ray (`hrm_agent.training.workers.ray_worker`).
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
"""Seconds that a worker has to release its leases before it is killed."""


class WorkerDiedError(Exception):
    """Raised if a worker ended while it had runs. The error's text describes the end: `by signal 9
    (Killed)`.
    """

    speaks_in = "If it wrote a message, it is above."
    """Hint on where the output of the worker can be found."""


class WorkerHandle(ABC):
    """Handle of one worker. All methods are called in one event loop."""

    place = ""
    """Node of a cluster on which the worker runs. If the node fails, all workers of the same place
    are lost (empty: no such node).
    """

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._host = EngineHost(engines, self.send)
        self._numbers = count(1)
        self._runs: dict[int, asyncio.Future[Trajectory]] = {}
        self._stopping: dict[int, tuple[str, asyncio.Event]] = {}
        """Number of a cancelled run that may not be over yet -> its thread, and an event that is
        set when it is over.
        """
        self._loading: set[asyncio.Task[None]] = set()
        self._told_to_end = False
        self._ended: Exception | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.owner = ""
        """Owner of the worker's leases in the store."""
        self.excused = False
        """True if another worker of the same place has died, and this one has ended no run since.
        If this worker dies, too, both count as one death.
        """

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id on the worker's machine."""

    @property
    def runs(self) -> int:
        """Number of open runs."""
        return len(self._runs)

    @abstractmethod
    async def open(self, setup: WorkerSetup) -> None:
        """Start the worker, and wait until it is ready.

        Raises the error that the worker reports, or `WorkerDiedError` if the worker ended.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let the worker cancel its runs and release its leases, then end it."""

    @abstractmethod
    async def kill(self) -> None:
        """End the worker, and all processes that its graphs have started."""

    @abstractmethod
    def write(self, frame: bytes) -> None:
        """Send a frame, after all earlier frames. If the worker has ended, do nothing."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages. If the worker was asked to end, do nothing, since an engine may still
        answer the worker's requests then.
        """
        if not self._told_to_end:
            self.write(packed(messages))

    async def set_up(self, setup: WorkerSetup) -> None:
        """Send the setup, and wait until the worker has opened it. Raises as `open` does."""
        self.send([("setup", pickle.dumps(setup))])
        await self._opened

    async def run(self, episode: Episode, version: int) -> Trajectory:
        """Run an episode and return its trajectory. Raises `WorkerDiedError` if the worker dies."""
        number = next(self._numbers)
        ended = asyncio.get_running_loop().create_future()
        try:
            frame = packed([("run", number, pickle.dumps(episode), version)])
        except Exception as error:  # by an object in the metadata or the options
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
            if self._ended is None and ended.cancelled():  # if not, the run was over already
                self._stopping[number] = episode.thread_id, asyncio.Event()
                self.send([("stop", number)])
            raise
        finally:
            del self._runs[number]

    async def stopped(self, thread_id: str) -> None:
        """Wait until cancelled runs of the thread have released it."""
        for event in [event for thread, event in self._stopping.values() if thread == thread_id]:
            await event.wait()

    def _has_stopped(self, number: int) -> None:
        if number in self._stopping:
            self._stopping.pop(number)[1].set()

    def end_all(self, ended: Exception) -> None:
        """Mark the worker as ended. Its runs, and a pending `open`, raise `ended`."""
        self._ended = ended
        for number in list(self._stopping):
            self._has_stopped(number)
        self._host.close()
        for waiting in (self._opened, *self._runs.values()):
            if not waiting.done():
                waiting.set_exception(ended)
                waiting.exception()  # mark as retrieved, so that asyncio does not warn

    def take(self, kind: str, *rest: Any) -> None:
        """Handle a message of the worker."""
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
