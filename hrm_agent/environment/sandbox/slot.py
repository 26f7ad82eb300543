"""A slot: a place for one call after another, fenced off once, watched from outside the call's process.

It sees no code and no output: it clones a child, keeps its time, looks at its memory, kills it as a whole and says what
the kernel said of it. The child reads the code from a memory file, and closes it, before anything of the snippet runs.

A session is a child that lives on. Its next calls reach it through a channel; a call that ends says so with one byte,
which is the snippet's own claim, like its exit code. While it stands idle it is stopped.
"""

from __future__ import annotations

# pathlib would cost memory that every child pays for, and the package is loaded under another name (see __init__).
# ruff: noqa: PTH101, PTH104, PTH106, PTH108, PTH116, PTH208, TID252
import os
import select
import signal
import socket
import stat
import time
from contextlib import suppress
from types import ModuleType
from typing import NoReturn

from . import kernel, landlock, snippet
from .memory import Tree
from .protocol import REPLY, REQUEST, Ended, Operation, Reply, Request

try:
    from . import _serve  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
except ImportError:
    _serve = None
"""The compiled body: answers the plain calls, and leaves all others to what is written here (see `_serve.c`)."""

__all__ = ["CODE", "HOST", "PROC", "Slot"]

CODE, HOST, PROC, CHANNEL = 4, 5, 6, 7
"""Descriptors in a slot; 0 to 3 are null, stdout, stderr and value."""
TICK_SECONDS = 0.05
"""Between two looks at the memory of a tree of processes."""
SHORTEST_LOOK = 0.001
"""Seconds between two looks at a process that is close to its CPU limit."""
PARK_SECONDS = 0.2
"""Idle for so long, a session's processes are stopped."""


class Child:
    """The process of a call, or of a session."""

    __slots__ = ("channel", "memory_bytes", "pid", "pidfd", "seen_seconds", "tree")

    def __init__(self, pid: int, pidfd: int, memory_bytes: int, tree: Tree) -> None:
        self.pid, self.pidfd, self.memory_bytes, self.tree = pid, pidfd, memory_bytes, tree
        self.seen_seconds = 0.0
        """CPU time of its tree when it was last looked at."""
        self.channel: socket.socket | None = None
        """To a session's process."""

    def cpu_seconds(self) -> float:
        """CPU time so far, without that of processes which it started: the kernel's clock id is made of the pid."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def used_seconds(self, until: float) -> float:
        """CPU time of its whole tree so far, where that is more than one process."""
        own = self.cpu_seconds()
        return max(own, self.tree.look(until)[1]) if self.tree.several else own

    def has_spoken(self) -> bool:
        """True if a session's process has said something before it was asked, or cannot be asked any more."""
        try:
            if self.channel is not None:
                self.channel.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


class Slot:
    """One event loop over three descriptors: the host's socket, the child's death, the session's channel."""

    def __init__(self, host: socket.socket, folder: str, *, isolated: bool, sampled: bool, compiled: bool) -> None:
        """`sampled`: the /proc at descriptor `PROC` shows this slot's children. `compiled`: where that body exists."""
        self._host = host
        self._isolated = isolated
        self._proc = PROC if sampled else None
        self._folder = folder
        """The working folder, emptied after each call."""
        self._folder_mode = stat.S_IMODE(os.stat(folder).st_mode)
        self._base_bytes = _address_space()
        """Of the warm interpreter."""
        self._module = snippet.new_module()
        self._body = _serve.serve if _serve is not None and compiled and isolated else None
        self._session: Child | None = None
        self._poll = select.poll()
        self._poll.register(HOST, select.POLLIN)

    def serve(self) -> None:
        """Until the host closes its end, or the slot cannot be made clean."""
        while True:
            request = self._next_request()
            if request is None:
                break
            if request.operation == Operation.RUN and not self._run(request):
                break
            if request.operation == Operation.END_SESSION:
                if self._session is not None:
                    self._reap(self._session, kill=True)
                clean = self._sweep()
                self._send(Reply(request.call, Ended.KILLED, last=not clean))
                if not clean:
                    break
        if self._session is not None:
            self._reap(self._session, kill=True)

    def _next_request(self) -> Request | None:
        """None when the host is gone. An idle session is watched meanwhile, and stopped after a while."""
        while self._session is not None:
            child = self._session
            events = self._poll.poll(None if child.tree.stopped else PARK_SECONDS * 1000)
            if not events:
                self._park(child)
            elif any(descriptor == child.pidfd for descriptor, _ in events):
                status, _, _ = self._reap(child, kill=False)
                self._send(Reply(0, Ended.EXITED, status, last=not self._sweep()))
            elif any(descriptor == HOST for descriptor, _ in events):
                break
            else:  # it speaks without being asked, or has closed its end
                self._reap(child, kill=True)
                self._send(Reply(0, Ended.BROKEN, last=not self._sweep()))
        return self._receive() if self._body is None else self._next_unusual()

    def _next_unusual(self) -> Request | None:
        """The first request that the compiled body does not answer. What it has begun and not ended is ended here."""
        while self._body is not None:
            given = self._folder, self._folder_mode, self._base_bytes, self._run_alone
            data, pid, pidfd, started = self._body(*given)
            request = Request(*REQUEST.unpack(data)) if data else None
            if request is None or not pid:
                return request
            child = Child(pid, pidfd, request.memory_bytes, Tree(self._proc, pid))
            self._poll.register(pidfd, select.POLLIN)
            if not self._end(child, request, started):
                break
        return None

    def _park(self, child: Child) -> None:
        """Stop an idle session; end one whose processes went on to take more than they may hold."""
        child.tree.stop()
        held, _ = child.tree.look(time.monotonic() + TICK_SECONDS)
        if held > child.memory_bytes:
            child.tree.signal(signal.SIGKILL)

    def _receive(self) -> Request | None:
        data = self._host.recv(REQUEST.size)
        return Request(*REQUEST.unpack(data)) if len(data) == REQUEST.size else None

    def _send(self, reply: Reply) -> None:
        self._host.send(REPLY.pack(*reply))

    def _run(self, request: Request) -> bool:
        """False if the slot is to end."""
        started = time.monotonic()
        child = self._session
        if child is None and request.session and not request.fresh:  # it died when the host had not heard of it yet
            self._send(Reply(request.call, Ended.GONE))
            return True
        before = child.used_seconds(started + TICK_SECONDS) if child is not None else 0.0
        broken = child is not None and child.has_spoken()
        try:
            if child is None:
                child = self._clone(request)
            elif not broken:
                self._resume(child, request)
        except OSError:
            self._send(Reply(request.call, Ended.NOT_STARTED))
            return True
        return self._end(child, request, started, before, broken=broken)

    def _end(
        self, child: Child, request: Request, started: float, before: float = 0.0, *, broken: bool = False
    ) -> bool:
        """Watch a call to its end, and answer it. False if the slot is to end."""
        ended = Ended.BROKEN if broken else self._watch(child, request, started, before)
        seconds = time.monotonic() - started
        if ended is Ended.ANSWERED and child.channel is not None:
            byte = child.channel.recv(1)
            if not child.has_spoken():
                used, peak = child.used_seconds(started + TICK_SECONDS + seconds) - before, child.tree.peak_bytes()
                self._send(Reply(request.call, ended, (byte or b"\1")[0] << 8, seconds, used, peak))
                return True
            ended = Ended.BROKEN
        status, used, peak = self._reap(child, kill=True)
        clean = self._sweep()
        self._send(Reply(request.call, ended, status, seconds, used - before, peak, not clean))
        return clean

    def _clone(self, request: Request) -> Child:
        ours, theirs = socket.socketpair() if request.session else (None, None)
        pid, pidfd = kernel.clone(isolated=self._isolated)
        if pid == 0:
            self._become_child(request, theirs)
        child = Child(pid, pidfd, request.memory_bytes, Tree(self._proc, pid))
        self._poll.register(pidfd, select.POLLIN)
        if ours is not None and theirs is not None:
            theirs.close()
            os.dup2(ours.detach(), CHANNEL)
            child.channel = socket.socket(fileno=CHANNEL)
            self._poll.register(CHANNEL, select.POLLIN)
            self._session = child
            child.channel.send(REQUEST.pack(*request))
        return child

    def _resume(self, child: Child, request: Request) -> None:
        if child.tree.stopped:
            child.tree.go_on()
        if child.channel is not None:
            with suppress(OSError):  # its process is dying: that is seen next
                child.channel.send(REQUEST.pack(*request))

    def _watch(self, child: Child, request: Request, started: float, before: float) -> Ended:
        """Until the call has ended by itself, or has to be ended."""
        deadline = started + request.wall_seconds
        look = min(deadline, started + TICK_SECONDS, started + request.cpu_seconds)
        while True:
            for descriptor, event in self._poll.poll(max(0.0, look - time.monotonic()) * 1000 + 0.5):
                if descriptor == child.pidfd:
                    return Ended.EXITED
                if descriptor == HOST:
                    other = self._receive()
                    if other is None or (other.operation == Operation.KILL and other.call == request.call):
                        return Ended.KILLED
                elif event & select.POLLIN and _has_said(child):
                    return Ended.ANSWERED
                else:
                    self._poll.unregister(CHANNEL)  # it has closed its end; its death follows, or the time limit
            now = time.monotonic()
            if now < look:
                continue
            held, seconds = child.tree.look(deadline)
            child.seen_seconds = max(child.seen_seconds, child.cpu_seconds(), seconds)
            cpu_left = request.cpu_seconds - child.seen_seconds + before
            if now >= deadline or cpu_left <= 0:
                return Ended.TIMEOUT
            if held > child.memory_bytes:
                return Ended.OUT_OF_MEMORY
            look = min(deadline, now + TICK_SECONDS, now + max(cpu_left, SHORTEST_LOOK))

    def _reap(self, child: Child, *, kill: bool) -> tuple[int, float, int]:
        """End a child and all that it started: its wait status, CPU seconds and largest resident memory."""
        if kill:
            with suppress(OSError):
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        if not self._isolated:
            child.tree.signal(signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        child.tree.close()
        if child.channel is not None:
            with suppress(KeyError):
                self._poll.unregister(CHANNEL)
            child.channel.close()
            self._session = None
        if not self._isolated:
            self._kill_orphans()
        used = max(usage.ru_utime + usage.ru_stime, child.seen_seconds)
        return status, used, max(usage.ru_maxrss * 1024, child.tree.peak)

    def _kill_orphans(self) -> None:
        """Without a process-id namespace what a call started outlives it, as a child of this subreaper."""
        below = Tree(self._proc, os.getpid())
        for _ in range(100):
            below.signal(signal.SIGKILL, itself=False)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(SHORTEST_LOOK)

    def _sweep(self) -> bool:
        """Empty the working folder, if anything is in it. False if something stays."""
        if stat.S_IMODE(os.stat(self._folder).st_mode) != self._folder_mode:
            os.chmod(self._folder, self._folder_mode)
        if not os.listdir(self._folder):
            return True
        _empty(self._folder)
        return not os.listdir(self._folder)

    def _become_child(self, request: Request, channel: socket.socket | None) -> NoReturn:
        """Shed everything of the slot, then run. Never returns into the slot's frames."""
        try:
            kernel.die_with_parent()
            if self._isolated:
                kernel.drop_capabilities()
            else:  # in one process-id namespace with the slot, which it could signal
                with suppress(OSError):
                    landlock.scope()
            os.setsid()
            seconds = None if channel is not None else request.cpu_seconds
            kernel.limit_child(self._base_bytes + request.memory_bytes, request.file_bytes, seconds)
            if channel is None:
                source = snippet.read_code(CODE)
                os.closerange(CODE, kernel.MAX_DESCRIPTORS)
                self._run_alone(source, request.seed, request.value_bytes)
            else:
                snippet.reseed(request.seed)
                _serve_session(channel, self._module)
        finally:
            os._exit(1)

    def _run_alone(self, source: str, seed: int, value_bytes: int) -> NoReturn:
        """The rest of a stateless call's process, which has shed everything of the slot and read its code."""
        code = 1
        try:
            if snippet.may_draw(source):
                snippet.reseed(seed)
            code = snippet.run(source, self._module, value_bytes)
        finally:
            os._exit(code)


def _has_said(child: Child) -> bool:
    """False if there is nothing but the end of its channel."""
    with suppress(ConnectionError):  # it ended without having read all that it was sent
        return child.channel is not None and bool(child.channel.recv(1, socket.MSG_PEEK))
    return False


def _serve_session(channel: socket.socket, module: ModuleType) -> None:
    """Call after call in one module, until the slot is gone."""
    own = os.dup2(channel.detach(), CODE + 1)
    os.closerange(own + 1, kernel.MAX_DESCRIPTORS)
    requests = socket.socket(fileno=own)
    while True:
        data = requests.recv(REQUEST.size)
        if len(data) < REQUEST.size:
            return
        snippet.open_streams()
        source = snippet.read_code(CODE)
        requests.send(bytes([snippet.run(source, module, Request(*REQUEST.unpack(data)).value_bytes)]))


def _address_space() -> int:
    descriptor = os.open("self/statm", os.O_RDONLY, dir_fd=PROC)
    pages = int(os.read(descriptor, 256).split()[0])
    os.close(descriptor)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _empty(folder: str) -> None:
    """Remove what is in a folder, whatever its modes; links are not followed, and no depth is too deep."""
    with suppress(OSError):
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _take_apart(entry.path, folder)
                else:
                    os.unlink(entry.path)


def _take_apart(path: str, folder: str) -> None:
    """Remove a folder; the folders in it are moved up into `folder`."""
    os.chmod(path, stat.S_IRWXU)
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, stat.S_IRWXU)
            os.rename(entry.path, f"{folder}/{os.urandom(8).hex()}")
        else:
            os.unlink(entry.path)
    os.rmdir(path)
