"""The fork server: one small warm interpreter that forks a child per call, watches its time and reports its death.

Started with no environment and one descriptor of its own, the control socket. It reads requests of fixed size, passes
the descriptors that come with them to a child, and forgets them. It waits on process descriptors, so a child cannot
answer in its place: a child's death, its duration and its CPU time are what the kernel says of it. When the control
socket closes, because the host ended it or died, the zygote exits, and being process 1 of its own pid namespace it
takes everything below with it.
"""

from __future__ import annotations

# pathlib would cost the zygote memory, and the package is loaded under another name (see __init__).
# ruff: noqa: PTH123, TID252
import fcntl
import gc
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import NoReturn

from . import kernel, snippet
from .protocol import HANDSHAKE_BYTES, REPLY, REQUEST, Ended, Operation, Reply, Request

__all__ = ["main"]

SHORTEST_LOOK = 0.001
"""Seconds between two looks at a process that is close to its CPU limit."""
WARM_SNIPPET = (
    "import fractions, itertools, collections\ndef f(n: int) -> int:\n    return sum(range(n))\nprint(f(3))\n"
)


@dataclass(slots=True)
class Child:
    """A live process: of one call, or of a session."""

    pid: int
    pidfd: int
    session: int
    channel: socket.socket | None
    """To a session's process; None for a process of one call."""
    folder: str | None
    """The private folder where there is no mount namespace to hold it."""
    call: Request | None = None
    """The call under way; None while a session is idle."""
    started: float = 0.0
    look_at: float = 0.0
    """When to compare wall-clock and CPU time with the limits."""
    cpu_before: float = 0.0
    """CPU seconds that a session's process had used when the call began."""
    ending: Ended = Ended.EXITED
    """Why it was killed, if it was."""

    @property
    def watched(self) -> bool:
        """True while a call runs that nobody has killed."""
        return self.call is not None and self.ending is Ended.EXITED


class Zygote:
    """Children by pidfd and session; one event loop, no threads."""

    def __init__(self, control: socket.socket, proc: int | None) -> None:
        self._control = control
        self._proc = proc
        """Descriptor of /proc; None without namespaces."""
        self._ids = (os.getuid(), os.getgid())
        self._children: dict[int, Child] = {}
        self._sessions: dict[int, Child] = {}
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        """Until the host closes the control socket."""
        while True:
            for descriptor, _ in self._poll.poll(self._next_look()):
                if descriptor == self._control.fileno():
                    if not self._take_request():
                        return
                elif descriptor in self._children:
                    self._bury(self._children[descriptor])
                else:
                    self._hear(descriptor)
            self._enforce()

    def kill_all(self) -> None:
        """What the pid namespace does by itself, for where there is none."""
        for child in self._children.values():
            self._kill(child, Ended.KILLED)
            _remove(child.folder)

    def _next_look(self) -> float:
        waiting = [child.look_at for child in self._children.values() if child.watched]
        return max(0.0, min(waiting) - time.monotonic()) + 0.0005 if waiting else -1

    def _take_request(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, REQUEST.size, 4)
        if len(data) < REQUEST.size:
            return False
        request = Request(*REQUEST.unpack(data))
        if request.operation == Operation.RUN:
            self._start(request, descriptors)
        else:
            for child in self._children.values():
                if _is_meant(child, request):
                    self._kill(child, Ended.KILLED)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, request: Request, descriptors: list[int]) -> None:
        child = self._sessions.get(request.session) if request.session else None
        started = time.monotonic()
        try:
            child = child or self._fork(request, descriptors)
            child.call, child.started, child.ending = request, started, Ended.EXITED
            child.look_at = started + min(request.wall_seconds, request.cpu_seconds)
            if child.channel is not None:
                child.cpu_before = _cpu_seconds(child.pid)
                socket.send_fds(child.channel, [REQUEST.pack(*request)], descriptors)
        except OSError:  # no process to be had, or the session's died just now: its code is unread, the host sees that
            if child is not None:
                self._kill(child, Ended.KILLED)
            else:
                self._send(Reply(request.call, Ended.KILLED, 0, time.monotonic() - started, 0.0))

    def _fork(self, request: Request, descriptors: list[int]) -> Child:
        ours, theirs = socket.socketpair() if request.session else (None, None)
        folder = None if self._proc is not None else tempfile.mkdtemp(prefix="snippet-")
        pid, pidfd = kernel.clone(isolated=self._proc is not None)
        if pid == 0:
            self._become_child(request, descriptors, theirs, folder)
        child = Child(pid, pidfd, request.session, ours, folder)
        self._children[pidfd] = child
        self._poll.register(pidfd, select.EPOLLIN)
        if ours is not None and theirs is not None:
            theirs.close()
            self._sessions[request.session] = child
            self._poll.register(ours.fileno(), select.EPOLLIN)
        return child

    def _become_child(
        self, request: Request, descriptors: list[int], channel: socket.socket | None, folder: str | None
    ) -> NoReturn:
        """Shed everything of the zygote, then run. Never returns into the zygote's frames."""
        code = 1
        try:
            os.setsid()
            if self._proc is not None:
                kernel.enter_cell(self._proc, self._ids)
            elif folder is not None:
                os.chdir(folder)
                tempfile.tempdir = folder
                kernel.die_with_parent()
            isolated = self._proc is not None
            kernel.set_limits(request.memory_bytes, request.cpu_seconds, request.file_bytes, isolated=isolated)
            gc.enable()
            if channel is None:
                code = _serve_call(request, descriptors)
            else:
                _serve_session(channel)
        finally:
            os._exit(code)

    def _hear(self, descriptor: int) -> None:
        """One byte from a session's process: it has finished its call."""
        child = next((c for c in self._sessions.values() if c.channel and c.channel.fileno() == descriptor), None)
        if child is None or child.channel is None:
            return
        try:
            byte = child.channel.recv(1, socket.MSG_DONTWAIT)
        except OSError:
            byte = b""
        if not byte:
            self._poll.unregister(descriptor)  # it has closed its end; its death follows, or the time limit
        elif child.call is None:
            self._kill(child, Ended.KILLED)  # speaks without being asked
        else:
            self._answer(child, Ended.ANSWERED, byte[0] << 8, 0.0)
            child.call = None

    def _bury(self, child: Child) -> None:
        """A process is dead, and with it all that it started: report its call, forget it."""
        _kill_group(child.pid)
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid == 0:
            return
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pidfd]
        if self._sessions.get(child.session) is child:
            del self._sessions[child.session]
        if child.channel is not None:
            child.channel.close()  # also takes it out of the poll set
        _remove(child.folder)
        if child.call is not None:
            self._answer(child, child.ending, status, usage.ru_utime + usage.ru_stime)

    def _answer(self, child: Child, ended: Ended, status: int, cpu_seconds: float) -> None:
        if child.call is not None:
            self._send(Reply(child.call.call, ended, status, time.monotonic() - child.started, cpu_seconds))

    def _send(self, reply: Reply) -> None:
        self._control.sendall(REPLY.pack(*reply))

    def _enforce(self) -> None:
        """Kill what is over its wall-clock or CPU time; look at the others again when they can be."""
        now = time.monotonic()
        for child in self._children.values():
            if child.call is None or not child.watched or child.look_at > now:
                continue
            used = _cpu_seconds(child.pid) - child.cpu_before
            wall_left = child.started + child.call.wall_seconds - now
            cpu_left = child.call.cpu_seconds - used
            if wall_left <= 0 or cpu_left <= 0:
                self._kill(child, Ended.TIMEOUT)
            else:
                child.look_at = now + min(wall_left, max(cpu_left, SHORTEST_LOOK))

    def _kill(self, child: Child, ending: Ended) -> None:
        child.ending = ending
        _kill_group(child.pid)
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)


def _is_meant(child: Child, request: Request) -> bool:
    if request.operation == Operation.END_SESSION:
        return child.session == request.session
    return child.call is not None and child.call.call == request.call


def _serve_call(request: Request, descriptors: list[int]) -> int:
    source = _install(descriptors, highest=snippet.VALUE_DESCRIPTOR)
    return snippet.run(source, snippet.new_module(), request.value_bytes)


def _serve_session(channel: socket.socket) -> None:
    """Call after call in one module, until the zygote is gone."""
    module = snippet.new_module()
    own = os.dup2(channel.detach(), snippet.VALUE_DESCRIPTOR + 1)
    os.closerange(own + 1, 4096)
    requests = socket.socket(fileno=own)
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, REQUEST.size, 4)
        if len(data) < REQUEST.size:
            return
        source = _install(descriptors, highest=own)
        requests.send(bytes([snippet.run(source, module, Request(*REQUEST.unpack(data)).value_bytes)]))


def _install(descriptors: list[int], highest: int) -> str:
    """Null, stdout, stderr and value on descriptors 0 to 3, everything above `highest` closed. Returns the code."""
    null = os.open("/dev/null", os.O_RDONLY)
    aside = [fcntl.fcntl(source, fcntl.F_DUPFD, 10) for source in (null, *descriptors[1:])]
    source = snippet.read_code(descriptors[0])
    for target, descriptor in enumerate(aside):
        os.dup2(descriptor, target)
    os.closerange(highest + 1, 4096)
    snippet.open_streams()
    return source


def _cpu_seconds(pid: int) -> float:
    """CPU time of another process so far: the kernel's clock id for it is made of its pid."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove(folder: str | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _warm_up() -> None:
    """Do once what a snippet does, so that children find it done: imports, compiling, a traceback."""
    for name in ("json", "math", "decimal", "random", "statistics", "datetime", "re", "functools", "heapq", "string"):
        __import__(name)
    saved = sys.stdout, sys.stderr, os.dup(2)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 2)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    snippet.run(WARM_SNIPPET, ModuleType("warm"), 0)
    snippet.run("1/0", ModuleType("warm"), 0)
    sys.stdout, sys.stderr = saved[:2]
    os.dup2(saved[2], 2)
    os.close(saved[2])
    os.close(null)


def _isolate() -> int:
    """Enter the namespaces and become process 1 of a new one, in the fork. Returns the descriptor of /proc."""
    kernel.enter_namespaces()
    pid = os.fork()
    if pid:
        kernel.die_with_parent()
        os.closerange(3, 256)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    proc = kernel.build_root()
    kernel.drop_root()
    kernel.die_with_parent()
    return proc


def _try_cell(proc: int) -> None:
    """One empty child: whether what each call needs can be had."""
    ids = (os.getuid(), os.getgid())
    pid, pidfd = kernel.clone(isolated=True)
    if pid == 0:
        try:
            kernel.enter_cell(proc, ids)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
    os.close(pidfd)
    if failed := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise OSError(failed, f"namespaces of a call: {os.strerror(abs(failed))}")


def main() -> None:
    """`argv`: the control socket's descriptor, and `namespaces` or `weak`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.environ.clear()
    kernel.prefer_as_victim()
    _warm_up()
    proc, missing = None, ""
    try:
        if sys.argv[2] == "namespaces":
            proc = _isolate()
            _try_cell(proc)
        else:
            kernel.drop_root()
            kernel.die_with_parent()
            if not os.access(os.__file__, os.R_OK):
                missing = f"{sys.base_prefix} is readable by root only"
    except (OSError, AttributeError) as error:
        missing = str(error)
    control.sendall(missing.encode()[:HANDSHAKE_BYTES].ljust(HANDSHAKE_BYTES, b"\0"))
    if missing:
        return
    gc.disable()
    gc.freeze()
    zygote = Zygote(control, proc)
    zygote.serve()
    zygote.kill_all()
