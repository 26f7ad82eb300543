"""Rollout worker that is a process of this machine, connected by a private socket."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from hrm_agent.basics.worker_process import WorkerProcess
from hrm_agent.models import Engine
from hrm_agent.training.workers.handle import GRACE_SECONDS, WorkerDiedError, WorkerHandle
from hrm_agent.training.workers.wire import WorkerSetup, unpacked

__all__ = ["SubprocessWorker", "open_subprocess"]


class SubprocessWorker(WorkerHandle):
    """Handle of a worker that is a local process."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        super().__init__(engines)
        self._process = WorkerProcess("hrm_agent.training.workers.process", str(os.getpid()))
        self._listening: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def open(self, setup: WorkerSetup) -> None:
        await self._process.connect()
        self._listening = asyncio.create_task(self._listen())
        await self.set_up(setup)

    def write(self, frame: bytes) -> None:
        self._process.send(frame)

    async def _listen(self) -> None:
        try:
            while frame := await self._process.receive():
                for message in unpacked(frame):
                    self.take(*message)
            code = await self._process.wait()
            how = (
                f"by signal {-code} ({signal.strsignal(-code)})"
                if code < 0
                else f"with exit code {code}"
            )
            ended: Exception = WorkerDiedError(f"{how} (process {self.pid})")
        except Exception as error:  # any error has to end all waiting futures
            ended = error
        self.end_all(ended)

    async def close(self) -> None:
        self._told_to_end = True
        self._process.finish()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        self._process.kill()
        if self._listening is not None:
            await self._listening
        await self._process.close()


async def open_subprocess(engines: dict[str, Engine], setup: WorkerSetup) -> SubprocessWorker:
    """Start a worker, and return it when it is ready. If it does not get ready, ends its process
    and raises the error of `open`.
    """
    worker = SubprocessWorker(engines)
    try:
        await worker.open(setup)
    except BaseException:
        await worker.kill()
        raise
    return worker
