"""Slot: runs one call after another. It is confined once, and watches each call from outside the
call's process.

A slot sees neither code nor output. It clones a child, measures the child's time and memory, kills
the child's whole process tree, and reports what the kernel reported. The child reads the code from
a memory file and closes the file before any code of the snippet runs.

A session is a child that is kept. Its next calls reach it through a pipe. The child reports the end
of a call by one byte on another pipe, which is the snippet's claim, like its exit code. An idle
session is stopped (parked) after a while. The filter's notifications about it are then not answered
(`supervisor`), so it cannot make processes that would have to be stopped too.
"""

from __future__ import annotations

# pathlib would cost memory in every child, and the package is loaded under another name (see __init__).
# ruff: noqa: TID252
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from . import kernel, seccomp, snippet
from .cgroup import NO_GROUP, CallTree, SlotGroup
from .child import CHANNEL, PROC, REQUESTS, Child, Inside, reserve_channel
from .host_line import HostLine
from .memory import Tree, kill_orphans
from .protocol import REQUEST, Ended, Handed, Operation, Reply, Request
from .supervisor import Supervisor
from .working_folder import WorkingFolder

try:
    from . import _serve  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
except ImportError:
    _serve = None
"""Compiled body (`_serve.c`, None if it was not built). It answers plain calls, and leaves all
others to this module.
"""

__all__ = ["GROUP", "HOST", "LISTENER", "PROC", "Slot"]

HOST, LISTENER = 5, 8
"""File descriptors in a slot. Descriptors 0 to 3 are null, stdout, stderr and value. `child`
defines the others.
"""
GROUP = CHANNEL
"""Descriptor of the environment's cgroup, below which the slot makes its own cgroups. It is only
valid until `Slot` is made, which uses the number for CHANNEL.
"""
TICK_SECONDS = 0.05
"""Seconds between two samples of a process tree's memory."""
SHORTEST_LOOK = 0.001
"""Seconds between two checks of a process that is close to its CPU limit."""
PARK_SECONDS = 0.2
"""Idle time in seconds after which a session's processes are stopped."""
FIRST_LOOK_SECONDS, PARKED_LOOK_SECONDS = 0.01, 5.0
"""First and longest interval in seconds between checks that a parked session is still stopped. The
interval is doubled after each check.
"""


class Slot:
    """Slot with one event loop over the host's socket, the child's death, the session's channel and
    the filter's notifications.
    """

    def __init__(
        self,
        host: socket.socket,
        folder: str,
        *,
        isolated: bool,
        confined: bool,
        sampled: bool,
        compiled: bool,
        supervised: bool,
        group: SlotGroup | None,
    ) -> None:
        """Make a slot. `confined`: the slot is not isolated, but its signals reach only its
        children. `sampled`: the /proc at descriptor `PROC` shows its children. `compiled`: use the
        compiled body, if it exists. `supervised`: the filter reports refused calls on `LISTENER`.
        `group`: the cgroup of the slot's calls (None without cgroups).
        """
        self._isolated = isolated
        self._confined = confined
        self._proc = PROC if sampled else None
        self._folder = WorkingFolder(folder)
        self._inside = Inside(isolated=isolated, grouped=group is not None)
        self._body = _serve.serve if _serve is not None and compiled and isolated else None
        self._session: Child | None = None
        self._group = group
        self._spent = 0.0
        """CPU time of the slot's calls before the current one, if they have a cgroup."""
        reserve_channel()
        self._poll = select.poll()
        self._poll.register(HOST, select.POLLIN)
        self._supervisor = (
            Supervisor(LISTENER, PROC, folder, isolated=isolated) if supervised else None
        )
        self._line = HostLine(host, self._supervisor)
        self._supervise(on=True)

    def serve(self) -> None:
        """Serve requests until the host closes its end, or the slot cannot be cleaned."""
        while True:
            request = self._next_request()
            if request is None:
                break
            if request.operation == Operation.RUN and not self._run(request):
                break
            if request.operation == Operation.END_SESSION:
                if self._session is not None:
                    self._reap(self._session, kill=True)
                clean = self._tidy()
                self._line.send(Reply(request.call, Ended.KILLED, last=not clean))
                if not clean:
                    break
        if self._session is not None:
            self._reap(self._session, kill=True)

    def _next_request(self) -> Request | None:
        """Wait for the next request (None if the host is gone)."""
        while True:
            if self._session is not None:
                try:
                    asked = self._is_asked(self._session)
                except Exception:  # the session's processes may have caused any error
                    asked = self._break_off(self._session, Ended.UNWATCHED)
                if asked:
                    return self._line.receive()
            elif self._body is None:
                return self._line.receive()
            elif (request := self._next_unusual()) is not None or self._session is None:
                return request

    def _is_asked(self, child: Child) -> bool:
        """Watch an idle session until the host sends a request, and stop the session after a while.
        False if the session has ended.
        """
        park_at = time.monotonic() + PARK_SECONDS
        look = FIRST_LOOK_SECONDS
        while self._session is not None:
            parked = child.tree.stopped
            events = self._poll.poll(
                (look if parked else max(0.0, park_at - time.monotonic())) * 1000 + 0.5
            )
            if (not parked and time.monotonic() >= park_at) or (
                parked and not events and not child.tree.is_still()
            ):
                self._stop(child)
            elif not events:
                look = min(2 * look, PARKED_LOOK_SECONDS)
            elif self._answered(events):
                if self._is_foreign():
                    self._break_off(child, Ended.DENIED)
            elif any(descriptor == child.pidfd for descriptor, _ in events):
                status, _, _ = self._reap(child, kill=False)
                self._line.send(Reply(0, Ended.EXITED, status, last=not self._tidy()))
            elif any(descriptor == HOST for descriptor, _ in events):
                return True
            else:  # the process sent data without a request, or has closed its end of the pipe
                self._break_off(child, Ended.BROKEN)
        return False

    def _break_off(self, child: Child, ended: Ended) -> bool:
        """End an idle session. Returns False, since the session takes no more requests."""
        self._reap(child, kill=True)
        self._line.send(Reply(0, ended, last=not self._tidy() or ended is Ended.UNWATCHED))
        return False

    def _stop(self, child: Child) -> None:
        """Park an idle session. If parking fails, the session is ended now, so that no call is sent
        to a dying process.
        """
        if not self._park(child):
            status, _, _ = self._reap(child, kill=True)
            self._line.send(Reply(0, Ended.EXITED, status, last=not self._tidy()))

    def _next_unusual(self) -> Request | None:
        """First request that the compiled body does not answer. A call that the body has started
        and not finished is finished by this method.

        None if the host is gone, if the slot has to end, or if a session remains whose first call
        the body has started.
        """
        while self._body is not None and self._session is None:
            listener = LISTENER if self._supervisor is not None else -1
            run = self._inside.run_alone, self._inside.run_session, snippet.rehearse
            given = self._folder.path, self._folder.mode, self._inside.base_bytes, *run, listener
            group = (
                (*self._group.given, seccomp.without_spawning())
                if self._group is not None
                else NO_GROUP
            )
            data, pid, pidfd, started, before, self._spent, *pipes, state = self._body(
                *given, *group
            )
            request = Request(*REQUEST.unpack(data)) if data else None
            if request is None or not pid:
                return request
            child = Child(pid, pidfd, request.memory_bytes, self._tree(pid))
            self._poll.register(pidfd, select.POLLIN)
            if request.session:
                self._keep(child, *pipes)
            clean = (
                self._end(child, request, started, before)
                if state == Handed.AT_WORK
                else self._rest(child, state)
            )
            del data, request  # the next child shares this memory and must not find the seed
            if not clean:
                break
        return None

    def _rest(self, child: Child, state: int) -> bool:
        """Take over an idle session from the compiled body."""
        if state == Handed.RESTLESS:
            self._stop(child)
        elif state == Handed.STOPPED:
            self._supervise(on=False)
            child.tree.stopped = True
        return True

    def _park(self, child: Child) -> bool:
        """Stop an idle session. False if it cannot be stopped, or if its processes exceed their
        memory limit.
        """
        self._supervise(on=False)
        child.tree.stop()
        if not (self._isolated or self._confined or child.tree.stays_stopped()):
            return False
        held, _ = child.tree.look(time.monotonic() + TICK_SECONDS)
        return held <= child.memory_bytes

    def _supervise(self, *, on: bool) -> None:
        """Watch the filter's notifications, or leave them waiting."""
        if self._supervisor is not None:
            with suppress(KeyError):
                (
                    self._poll.register(LISTENER, select.POLLIN)
                    if on
                    else self._poll.unregister(LISTENER)
                )

    def _answered(self, events: Sequence[tuple[int, int]]) -> bool:
        """Answer the filter's notification, if there is one. True if there was a notification."""
        told = self._supervisor is not None and any(
            descriptor == LISTENER for descriptor, _ in events
        )
        if told and self._supervisor is not None:
            self._supervisor.answer()
        return told

    def _is_foreign(self) -> bool:
        return self._supervisor is not None and self._supervisor.foreign

    def _run(self, request: Request) -> bool:
        """Run a call; False if the slot has to end."""
        started = time.monotonic()
        child = self._session
        # the session's process has died, and the host did not know yet
        if child is None and request.session and not request.fresh:
            self._line.send(Reply(request.call, Ended.GONE))
            return True
        if child is not None:
            return self._go_on(child, request, started)
        try:
            child = self._clone(request)
        except OSError:
            self._line.send(Reply(request.call, Ended.NOT_STARTED))
            return True
        return self._end(child, request, started)

    def _go_on(self, child: Child, request: Request, started: float) -> bool:
        """Run another call of a session; False if the slot has to end."""
        before = 0.0
        ended = None
        try:
            before = child.used_seconds(started + TICK_SECONDS)
            if child.has_spoken():
                ended = Ended.BROKEN
            else:
                self._resume(child, request)
        except Exception:
            ended = Ended.UNWATCHED
        return self._end(child, request, started, before, ended)

    def _end(
        self,
        child: Child,
        request: Request,
        started: float,
        before: float = 0.0,
        ended: Ended | None = None,
    ) -> bool:
        """Watch a call until it ends, and send its reply. False if the slot has to end. `ended`:
        how the call has ended, if it already has.

        If the processes of a snippet cannot be inspected, the snippet has caused this, and only its
        call ends.
        """
        try:
            ended = ended or self._watch(child, request, started, before)
            if ended is Ended.ANSWERED and child.is_session:
                if self._pass_on(child, request, started, before):
                    return True
                ended = Ended.BROKEN
        except Exception:
            ended = Ended.UNWATCHED
        seconds = time.monotonic() - started
        status, used, peak = self._reap(child, kill=True)
        if (
            ended is Ended.EXITED
            and self._group is not None
            and status == signal.SIGKILL
            and self._group.ran_out()
        ):
            ended = Ended.OUT_OF_MEMORY
        clean = self._tidy() and ended is not Ended.UNWATCHED
        self._line.send(Reply(request.call, ended, status, seconds, used - before, peak, not clean))
        return clean

    def _pass_on(self, child: Child, request: Request, started: float, before: float) -> bool:
        """Send the reply for a call of a session. False if the session's process has sent more than
        one byte.
        """
        seconds = time.monotonic() - started
        byte = os.read(CHANNEL, 1)
        if child.has_spoken():
            return False
        used = child.used_seconds(started + TICK_SECONDS + seconds) - before
        peak = child.tree.peak_bytes()
        self._line.send(
            Reply(request.call, Ended.ANSWERED, (byte or b"\1")[0] << 8, seconds, used, peak)
        )
        return True

    def _clone(self, request: Request) -> Child:
        pipes = (*os.pipe(), *os.pipe()) if request.session else ()
        try:
            if self._group is not None:
                self._group.begin(request.memory_bytes)
                self._spent = self._group.seconds()
            pid, pidfd = kernel.clone(
                isolated=self._isolated, into=self._group.folder if self._group else -1
            )
        except OSError:
            for descriptor in pipes:
                os.close(descriptor)
            raise
        if pid == 0:
            self._inside.begin(request, (pipes[3], pipes[0]) if pipes else ())
        child = Child(pid, pidfd, request.memory_bytes, self._tree(pid))
        self._poll.register(pidfd, select.POLLIN)
        if pipes:
            os.close(pipes[0])
            os.close(pipes[3])
            self._keep(child, pipes[2], pipes[1])
        return child

    def _keep(self, child: Child, answers: int, requests: int) -> None:
        """Keep a child as the session. `answers`, `requests`: the slot's ends of the child's
        pipes.
        """
        for own, given in ((CHANNEL, answers), (REQUESTS, requests)):
            os.dup2(given, own)
            os.close(given)
            os.set_blocking(own, False)
        self._poll.register(CHANNEL, select.POLLIN)
        self._session = child
        child.is_session = True

    def _resume(self, child: Child, request: Request) -> None:
        if child.tree.stopped:
            self._supervise(on=True)
            child.tree.go_on()
        with suppress(OSError):  # the session's process is dying, which `_watch` will notice
            os.write(REQUESTS, REQUEST.pack(*request))

    def _watch(self, child: Child, request: Request, started: float, before: float) -> Ended:
        """Watch a call until it ends by itself or has to be killed."""
        deadline = started + request.wall_seconds
        look = min(deadline, started + TICK_SECONDS, started + request.cpu_seconds)
        while True:
            for descriptor, event in self._poll.poll(
                max(0.0, look - time.monotonic()) * 1000 + 0.5
            ):
                ended = self._end_told_by(descriptor, event, child, request)
                if ended is not None:
                    return ended
            now = time.monotonic()
            if now < look:
                continue
            held = self._look(child, deadline)
            cpu_left = (
                request.cpu_seconds - child.seen_seconds - self._line.charged_seconds + before
            )
            if now >= deadline or cpu_left <= 0:
                return Ended.TIMEOUT
            if held > child.memory_bytes:
                return Ended.OUT_OF_MEMORY
            # only counted where the kernel does not limit the number of processes itself
            if child.tree.threads > kernel.MAX_PROCESSES:
                return Ended.TOO_MANY
            look = min(deadline, now + TICK_SECONDS, now + max(cpu_left, SHORTEST_LOOK))

    def _look(self, child: Child, deadline: float) -> int:
        """Memory of the child's process tree in bytes. Its CPU time is stored in `seen_seconds`."""
        began = time.thread_time()
        held, seconds = child.tree.look(deadline)
        child.seen_seconds = max(child.seen_seconds, child.cpu_seconds(), seconds)
        self._line.own_seconds += time.thread_time() - began
        return held

    def _end_told_by(
        self, descriptor: int, event: int, child: Child, request: Request
    ) -> Ended | None:
        """End of a call caused by an event (None if it goes on)."""
        if descriptor == LISTENER:
            self._answered([(descriptor, event)])
            return Ended.DENIED if self._is_foreign() else None
        if descriptor == child.pidfd:
            return Ended.EXITED
        if descriptor == HOST:
            other = self._line.receive()
            if other is None or (other.operation == Operation.KILL and other.call == request.call):
                return Ended.KILLED
        elif event & select.POLLIN:
            return Ended.ANSWERED
        else:
            # the session's process has closed its end: it dies next, or the time limit kills it
            self._poll.unregister(CHANNEL)
        return None

    def _tree(self, pid: int) -> Tree:
        if self._group is not None:
            return CallTree(self._group, self._proc, pid, self._spent)
        return Tree(
            self._proc, pid, None if self._isolated else os.getpid(), confined=self._confined
        )

    def _reap(self, child: Child, *, kill: bool) -> tuple[int, float, int]:
        """End a child with its whole tree. Returns (wait status, CPU seconds, largest resident
        memory).
        """
        if kill:
            with suppress(OSError):
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        if not self._isolated:
            child.tree.signal(signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        if self._group is not None:
            child.seen_seconds = child.tree.look(0.0)[1]
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        child.tree.close()
        if child.is_session:
            with suppress(KeyError):
                self._poll.unregister(CHANNEL)
            reserve_channel()
            self._session = None
            self._supervise(on=True)
        if not self._isolated:
            kill_orphans(self._proc, confined=self._confined)
        used = max(usage.ru_utime + usage.ru_stime, child.seen_seconds)
        return status, used, max(usage.ru_maxrss * 1024, child.tree.peak)

    def _tidy(self) -> bool:
        """Clean up after a call. False if files are left, or sockets that are held in each other's
        buffers.
        """
        began = time.thread_time()
        try:
            ended = self._supervisor is None or self._supervisor.end()
            return self._folder.sweep() and ended
        except OSError:
            return False
        finally:
            self._line.own_seconds += time.thread_time() - began
