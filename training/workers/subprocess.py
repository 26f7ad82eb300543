"""Rollout worker that is a process of this machine, over a private socket.

Workers have sessions of their own: an interrupt from the keyboard reaches only this process, which
ends them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from hrm_agent.models import Engine
from hrm_agent.training.workers.handle import GRACE_SECONDS, WorkerDiedError, WorkerHandle
from hrm_agent.training.workers.wire import LENGTH, WorkerSetup, unpacked

__all__ = ["SubprocessWorker", "open_subprocess"]

_LAST_WORDS_SECONDS = 1.0
"""Seconds to wait for the last output of a worker that has ended. The connection may stay open,
since forked processes hold it, too.
"""


class SubprocessWorker(WorkerHandle):
    """Worker as a local process."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        super().__init__(engines)
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def open(self, setup: WorkerSetup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "hrm_agent.training.workers.process"),
                *(str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                },
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listening = asyncio.create_task(self._listen(reader))
        self._watching = asyncio.create_task(self._watch(self._process, self._listening))
        await self.set_up(setup)

    def write(self, frame: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(LENGTH.pack(len(frame)) + frame)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                for message in unpacked(await reader.readexactly(length)):
                    self.take(*message)
        except (asyncio.IncompleteReadError, ConnectionError):
            ended: Exception = WorkerDiedError(await self._how())
        except Exception as error:  # whatever the error, all waiting futures must end
            ended = error
        self.end_all(ended)

    async def _watch(
        self, process: asyncio.subprocess.Process, listening: asyncio.Task[None]
    ) -> None:
        """Wait for the process to end, then end all processes it started that are in its process
        group.
        """
        await process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait([listening], timeout=_LAST_WORDS_SECONDS)
        self._writer.transport.abort()

    async def _how(self) -> str:
        """Description of the way the process ended."""
        assert self._process is not None
        code = await self._process.wait()
        how = (
            f"by signal {-code} ({signal.strsignal(-code)})"
            if code < 0
            else f"with exit code {code}"
        )
        return f"{how} (process {self._process.pid})"

    async def close(self) -> None:
        if self._process is None:
            return
        self._told_to_end = True
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._watching is not None and self._listening is not None:
            await self._watching
            await self._listening


async def open_subprocess(engines: dict[str, Engine], setup: WorkerSetup) -> SubprocessWorker:
    """Start a worker and return it when ready. Raises as `open` does, after its process ended."""
    worker = SubprocessWorker(engines)
    try:
        await worker.open(setup)
    except BaseException:
        await worker.kill()
        raise
    return worker
