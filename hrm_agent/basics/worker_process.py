"""Python processes of this package that exchange frames of bytes with this one.

A process is started as `python -m MODULE DESCRIPTOR ...` with one end of a private socket. It leads
a session and a process group of its own. So an interrupt from the keyboard does not reach it, and
it is killed together with all processes that it has started in its group. A frame is a length and
that many bytes, at least one. The callers define the contents. Frames from a process that runs a
stranger's code must not be unpickled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["FrameSocket", "WorkerProcess", "parent_socket", "signal_group", "start_module"]

_LENGTH = struct.Struct("<Q")
_LAST_WORDS_SECONDS = 1.0
"""Seconds to wait for the last frames of a process that has ended. The end of the connection cannot
be waited for, since forked processes may hold it open.
"""


class FrameSocket:
    """Blocking socket that carries frames. Several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, frame: bytes) -> None:
        """Send a frame. Does nothing if the other end is gone, which `receive` shows."""
        with self._sending, suppress(OSError):
            self.connection.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> bytes:
        """Wait for the next frame (empty at the end of the connection)."""
        with suppress(OSError):
            header = self._file.read(_LENGTH.size)
            if len(header) == _LENGTH.size:
                (length,) = _LENGTH.unpack(header)
                frame = self._file.read(length)
                if len(frame) == length:
                    return frame
        return b""

    def close(self) -> None:
        """Close both directions."""
        self._file.close()
        self.connection.close()


def parent_socket() -> FrameSocket:
    """Connection to the parent, in a process that was started by `start_module`. The descriptor is
    the first argument, which is removed from `sys.argv`. Programs that the process starts do not
    inherit the connection.
    """
    descriptor = int(sys.argv.pop(1))
    os.set_inheritable(descriptor, False)
    return FrameSocket(socket.socket(fileno=descriptor))


def start_module(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a module in a new process, and return the process and this process's end of the socket.
    The new process can import what this process can.
    """
    ours, theirs = socket.socketpair()
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**(os.environ if environment is None else environment), "PYTHONPATH": paths},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return process, ours


def signal_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to all processes of a group. Does nothing if the group is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


class WorkerProcess:
    """Process that runs a module, to be used in one event loop."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> None:
        """Start the process. `stdout`: descriptor that gets the process's output (None: the stdout
        of this process).
        """
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._process, self._socket = start_module(
            module, *arguments, environment=environment, stdout=stdout
        )
        self._writer: asyncio.StreamWriter | None = None
        threading.Thread(target=self._watch, name="worker-process", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def connect(self) -> None:
        """Open this end of the socket. Has to be called before anything is sent."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)

    def send(self, frame: bytes) -> None:
        """Queue a frame. Does nothing if the process has ended."""
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(frame)) + frame)

    def finish(self) -> None:
        """Send the end of the connection after all frames."""
        if self._writer is not None:
            with suppress(OSError, RuntimeError):
                self._writer.write_eof()

    async def receive(self) -> bytes:
        """Wait for the next frame (empty at the end of the process)."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def wait(self) -> int:
        """Wait for the end of the process and return its exit code (negative for a signal)."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill the process and its group."""
        if not self._ended.done():
            signal_group(self.pid)

    async def close(self) -> None:
        """Kill the process and its group, wait for its end, and close the connection."""
        self.kill()
        await self.wait()
        self._disconnect()

    def _watch(self) -> None:
        # the process is not reaped yet, so its id cannot belong to another process when the group
        # is killed
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        signal_group(self.pid)
        code = self._process.wait()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)
        self._loop.call_later(_LAST_WORDS_SECONDS, self._disconnect)

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._socket.close()
