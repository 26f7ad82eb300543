"""Rollout worker that is an actor of a Ray cluster, and its handle in the process that has the
engine.

Ray runs the actor's methods in an event loop. Graphs run in another event loop, in a thread. So a
node that blocks the graphs' loop while it waits for an answer of the engine still gets the answer,
as in a worker process.

Ray places the actor, carries the messages, and reports the actor's death. The worker's messages
come as one streaming call, as long as the worker lives. Messages to the worker go in calls, one
call at a time, and messages that arrive meanwhile share the next call. So messages keep their
order, which Ray does not promise for concurrent calls of an asynchronous actor, and a busy engine
makes few, large calls. The number of open runs bounds the number of waiting messages.

Ray must neither restart an actor nor repeat a call, since a restarted actor knows nothing of its
runs, and a repeated call would give it runs that other workers have. Instead the pool starts a new
actor and gives it runs that are open then.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hrm_agent import __version__
from hrm_agent.environment.on_ray.connection import line_of
from hrm_agent.errors import ConfigError
from hrm_agent.models import Engine
from hrm_agent.training.workers.handle import GRACE_SECONDS, WorkerDiedError, WorkerHandle
from hrm_agent.training.workers.process import Parent, serve
from hrm_agent.training.workers.wire import Message, WorkerSetup, unpacked

__all__ = ["ActorSide", "RayWorker", "this_host", "worker_class"]

_SPEAKS_IN = "If it wrote a message, it is in /tmp/ray/session_latest/logs on its node."


class ActorSide:
    """Connection between Ray's event loop and the thread that runs graphs. It has to be created in
    Ray's event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = SimpleQueue[Sequence[Message]]()
        self._outbox: list[bytes] = []
        self._something = asyncio.Event()
        self._over = False
        threading.Thread(target=self._work, name="rollouts", daemon=True).start()

    def take(self, frames: Sequence[bytes]) -> None:
        """Take the trainer's messages, in order. An empty sequence means that there are no more."""
        for frame in frames:
            self._inbox.put(unpacked(frame))
        if not frames:
            self._inbox.put(())

    async def says(self) -> AsyncGenerator[list[bytes]]:
        """Yield the worker's messages as frames, in order. Frames that are waiting at the same time
        come in one list. The iterator ends when the worker's work has ended.
        """
        while True:
            await self._something.wait()
            self._something.clear()
            frames = self._outbox
            self._outbox = []
            if frames:
                yield frames
            elif self._over:
                return

    def _work(self) -> None:
        try:
            asyncio.run(serve(Parent(self._inbox.get, self._write)))
        finally:
            self._write(None)

    def _write(self, frame: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, since the actor ends
            self._loop.call_soon_threadsafe(self._note, frame)

    def _note(self, frame: bytes | None) -> None:
        if frame is None:
            self._over = True
        else:
            self._outbox.append(frame)
        self._something.set()


def this_host() -> str:
    """Boot id of this machine's kernel, which identifies the machine better than a host name, since
    two containers may have the same name. If it is not available, it is the host name.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def worker_class() -> type[Any]:
    """Class of the actor. It is defined inside a function, so that Ray sends its whole code. So a
    node without hrm_agent, or with another version, can still run the class and report this.
    """

    class RolloutWorker:
        async def hello(
            self, version: str, folder: str, paths: list[str], on_host: str
        ) -> tuple[str, int, str, str]:
            """Returns the ids of the node and of the process, then the reason why the node is
            unusable and a hint (both empty if the node is usable).

            `version`: hrm_agent's version in the trainer. `folder`, `paths`: the trainer's working
            directory and module search paths. `on_host`: machine that has the store's file (empty
            if every machine reaches the store).
            """
            import os
            import sys

            import ray

            where = ray.get_runtime_context().get_node_id(), os.getpid()
            if os.path.isdir(folder):  # noqa: ASYNC240, PTH112 - the process runs nothing else yet
                os.chdir(folder)
            sys.path += [path for path in paths if path not in sys.path]
            install = f"Install hrm-agent {version} on that node, with its extras ray and train."
            try:
                from hrm_agent import __version__

                if __version__ != version:
                    return (
                        *where,
                        f"It has hrm_agent {__version__}, but the trainer has {version}.",
                        install,
                    )
                from hrm_agent.training.workers.ray_worker import ActorSide, this_host
            except Exception as error:
                return (
                    *where,
                    f"It cannot import hrm_agent: {type(error).__name__}: {error}.",
                    install,
                )
            if on_host and this_host() != on_host:
                shared = "Record in PostgreSQL, which all nodes reach: --store postgresql://..."
                return *where, "The store is a file of another machine.", shared
            self.side = ActorSide()
            return *where, "", ""

        async def take(self, frames: list[bytes]) -> None:
            self.side.take(frames)

        async def says(self) -> AsyncGenerator[list[bytes]]:
            async for frames in self.side.says():
                yield frames

    return RolloutWorker


class RayWorker(WorkerHandle):
    """Handle of an actor on a Ray cluster. The actor takes one CPU of Ray's count."""

    def __init__(
        self, engines: dict[str, Engine], ray: Any, refused: Collection[str], on_host: str
    ) -> None:
        """`refused`: ids of nodes to avoid. `on_host`: the only machine that is allowed (empty:
        any).
        """
        super().__init__(engines)
        self._ray = ray
        self._refused = refused
        self._on_host = on_host
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
                frames = self._outbox
                self._outbox = []
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
            ended: Exception = self._died("the thread that runs its graphs has ended")
        except self._ray.exceptions.RayError as error:
            ended = self._died(error)
        except Exception as error:  # any error has to end all waiting futures
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
