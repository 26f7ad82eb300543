"""Rollout worker that is an actor of a Ray cluster, seen from the process that has the engine.

Ray places the actor, carries the messages, and reports its death. The worker's messages come as one
streaming call, for as long as it lives. Messages to it go in calls, one at a time, and those that
arrive meanwhile share the next call. So messages keep their order, which Ray does not promise for
calls of an async actor, and a busy engine makes few and large calls. The number of waiting messages
is bounded by the open runs.

Ray is not asked to restart an actor, nor to repeat a call: a new one knows nothing of its runs, and
a repeated call would give it runs that others have. A new actor is requested, with the runs that
are then open.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from hrm_agent import __version__
from hrm_agent.environment.on_ray.connection import line_of
from hrm_agent.errors import ConfigError
from hrm_agent.models import Engine
from hrm_agent.training.workers.handle import GRACE_SECONDS, WorkerDiedError, WorkerHandle
from hrm_agent.training.workers.ray_actor import worker_class
from hrm_agent.training.workers.wire import WorkerSetup, unpacked

__all__ = ["RayWorker"]

_SPEAKS_IN = "What it said, if anything, stands in /tmp/ray/session_latest/logs on its node."


class RayWorker(WorkerHandle):
    """Actor on a Ray cluster. It takes one CPU of Ray's account."""

    def __init__(
        self, engines: dict[str, Engine], ray: Any, refused: Collection[str], on_host: str
    ) -> None:
        """`refused`: ids of nodes to avoid. `on_host`: the only host allowed (empty for any)."""
        super().__init__(engines)
        self._ray, self._refused, self._on_host = ray, refused, on_host
        self._actor: Any = None
        self._pid = 0
        self._outbox: list[bytes] = []
        self._something = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        return self._pid

    async def open(self, setup: WorkerSetup) -> None:
        elsewhere = {"ray.io/node-id": f"!in({','.join(self._refused)})"} if self._refused else None
        actor: Any = self._ray.remote(worker_class())
        self._actor = actor.options(
            num_cpus=1,
            scheduling_strategy="SPREAD",
            label_selector=elsewhere,
            max_restarts=0,
            max_task_retries=0,
        ).remote()
        paths = [path or str(Path.cwd()) for path in sys.path]
        asked = __version__, str(Path.cwd()), paths, self._on_host
        try:
            self.place, self._pid, refusal, hint = await self._actor.hello.remote(*asked)
        except self._ray.exceptions.RayError as error:
            raise self._died(error) from error
        if refusal:
            raise ConfigError(refusal, hint)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send())]
        await self.set_up(setup)

    def write(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._something.set()

    async def _send(self) -> None:
        """Send the queued messages, one call at a time."""
        try:
            while True:
                await self._something.wait()
                self._something.clear()
                frames, self._outbox = self._outbox, []
                if frames:
                    await self._actor.take.remote(frames)
        except Exception as error:
            self.end_all(self._died(error))

    async def _listen(self) -> None:
        """Receive the worker's messages as they arrive."""
        try:
            async for reference in self._actor.says.options(num_returns="streaming").remote():
                for frame in await reference:
                    for message in unpacked(frame):
                        self.take(*message)
            ended: Exception = self._died("what its graphs are run by has ended")
        except self._ray.exceptions.RayError as error:
            ended = self._died(error)
        except Exception as error:  # whatever the error, all waiting futures must end
            ended = error
        self.end_all(ended)

    def _died(self, error: object) -> WorkerDiedError:
        where = (
            f"on the node {self.place[:8]} (process {self._pid})"
            if self.place
            else "before it had a place"
        )
        died = WorkerDiedError(f"{where}: {line_of(error).rstrip('.')}")
        died.speaks_in = _SPEAKS_IN
        return died

    async def close(self) -> None:
        self._told_to_end = True
        # the actor still answers, even if the cluster's head is gone
        if self._tasks and not self._tasks[0].done():
            with suppress(Exception):
                self._actor.take.remote([])
            await asyncio.wait(self._tasks[:1], timeout=GRACE_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._actor is not None:
            with suppress(Exception):
                self._ray.kill(self._actor)
