"""Rollout worker on a node of a Ray cluster, whose messages go over Ray.

Ray runs the actor's methods on an event loop of its own. Graphs run on another one, in a thread: a
node that blocks it while it waits for an answer of the engine still gets that answer, as in a
process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hrm_agent.training.workers.process import Parent, serve
from hrm_agent.training.workers.wire import Message, unpacked

__all__ = ["ActorSide", "this_host", "worker_class"]


class ActorSide:
    """Connection between Ray's event loop and the thread that runs graphs. To be created on the
    former.
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
        """Yield the worker's messages as frames, in order, those that came together in one list.
        Ends with its work.
        """
        while True:
            await self._something.wait()
            self._something.clear()
            frames, self._outbox = self._outbox, []
            if frames:
                yield frames
            elif self._over:
                return

    def _work(self) -> None:
        try:
            asyncio.run(serve(Parent(self._inbox.get, self._write)))
        finally:
            self._later(None)

    def _write(self, frame: bytes) -> None:
        self._later(frame)

    def _later(self, frame: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the actor ends
            self._loop.call_soon_threadsafe(self._note, frame)

    def _note(self, frame: bytes | None) -> None:
        if frame is None:
            self._over = True
        else:
            self._outbox.append(frame)
        self._something.set()


def this_host() -> str:
    """Boot id of this machine's kernel, or the host name if it is not available. Two containers may
    have one name.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def worker_class() -> type[Any]:
    """Class of the actor. Defined here, it is sent whole, so that a node without hrm_agent, or with
    another version, can report it.
    """

    class RolloutWorker:
        async def hello(
            self, version: str, folder: str, paths: list[str], on_host: str
        ) -> tuple[str, int, str, str]:
            """Node and process id, then the reason why the node is unusable and what to do (both
            empty if it is usable).

            `version`: version of the trainer. `folder`, `paths`: working directory of the trainer,
            and its module search paths. `on_host`: host of a store that is a file (empty for any).
            """
            import os
            import sys

            import ray

            where = ray.get_runtime_context().get_node_id(), os.getpid()
            if os.path.isdir(folder):  # noqa: ASYNC240, PTH112 - nothing else runs here yet
                os.chdir(folder)
            sys.path += [path for path in paths if path not in sys.path]
            install = f"Install hrm-agent {version} on that node, with its extras ray and train."
            try:
                from hrm_agent import __version__

                if __version__ != version:
                    return (
                        *where,
                        f"It has hrm_agent {__version__}, and the trainer has {version}.",
                        install,
                    )
                from hrm_agent.training.workers.ray_actor import ActorSide, this_host
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
