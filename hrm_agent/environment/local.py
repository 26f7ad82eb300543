"""Runs model-written Python on this machine, in a fresh process per call, fenced off by the kernel.

The code is taken to be hostile: a policy under reinforcement learning finds whatever pays. So nothing that decides
about reward or blame is asked of the process that runs it. A *zygote*, one small warm interpreter with an empty
environment, forks a child per call (which costs a tenth of starting an interpreter) and watches it from outside: wall
clock, CPU time, death and its cause are the zygote's observation; output and value are bounded bytes in memory files,
read after the end and never unpickled. Each child has

* its own user, pid, mount and ipc namespaces; when it ends, everything that it started is killed by the kernel
* no network (an empty network namespace), a read-only root with the interpreter and the system's libraries and
  programs, and a private /tmp in memory, gone with it
* an unprivileged user without capabilities, no inherited variable or descriptor
* hard limits on address space, CPU, file size, processes (32) and descriptors, which it cannot raise

Calls queue first in, first out for a bounded number of slots; the wall clock of a call starts when it is forked, not
while it waits. A session is a child that lives on between calls; its calls run one at a time, a timeout or a
cancellation ends it. Threads and processes that a snippet leaves behind end with its last statement.

What is **not** covered:

* Kernel holes. There is no seccomp filter and no Landlock: all system calls of the kernel are open to the snippet.
  Where that is not enough, run the whole program in a virtual machine.
* Memory of a whole tree. The limit holds per process, and a call may have 32 of them; memory files and the 64 MiB of
  /tmp count for none. The kernel is told to kill snippets before the trainer when memory runs out.
* CPU time of the processes that a snippet starts: the limit holds for each; the wall clock bounds all of them.
* Sockets that no network namespace holds (vsock on a virtual machine). Abstract unix sockets reach other calls that
  run at the same moment: two snippets that conspire can talk to each other, though not to anything else.
* Reading system files under /usr and the interpreter's own folder, which are world-readable there.
* Fixed at a session's first call: memory and file size. Each call has its own wall clock and CPU time.
* The exit code and the value are the program's own claims. A snippet may pass off its failure as a success of its own,
  but never as another status, call or duration, and never as a fault of the infrastructure.
* Packages. Snippets see the standard library only.

Without user namespaces (some containers, some distributions) construction is refused; with `allow_weak_isolation=True`
(on the command line `--weak-isolation`) only resource limits and the change of user remain, and `isolation` says so:
`rlimits` instead of `namespaces+rlimits`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from hrm_agent.environment.outcome import OUTPUT_FACTOR, CallFiles, infrastructure_failure, outcome
from hrm_agent.environment.process import ZygoteProcess, start_zygote
from hrm_agent.environment.result import ExecutionResult, Limits
from hrm_agent.environment.sandbox.protocol import Ended, Operation, Reply, Request
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = ["LocalEnvironment"]

MAX_ATTEMPTS = 2
"""A call that the infrastructure lost is run once more; a session's call only if it had not begun to act."""
MAX_SILENT_DEATHS = 3
"""The zygote is given up when it died so often without answering a single call."""


@dataclass(slots=True, eq=False)
class _Call:
    code: str
    session: str | None
    limits: Limits
    future: Future[ExecutionResult] = field(default_factory=Future[ExecutionResult])
    number: int = 0
    """Of the current attempt, from 1."""
    attempts: int = 0
    files: CallFiles | None = None

    @property
    def may_retry(self) -> bool:
        started = self.files is not None and self.files.started
        return self.attempts < MAX_ATTEMPTS and (self.session is None or not started)


@dataclass(slots=True)
class _Session:
    number: int
    busy: bool = True
    waiting: deque[_Call] = field(default_factory=deque[_Call])


class LocalEnvironment:
    """An `Environment` on this machine. Thread-safe, and usable from any number of event loops."""

    def __init__(self, *, slots: int | None = None, max_sessions: int = 64, allow_weak_isolation: bool = False) -> None:
        """`slots`: calls that run at once; by default two per core, because a call's wall clock runs while it waits for
        a core. `max_sessions`: living sessions, at least `slots`; the one idle longest makes room.
        """
        self.slots = slots or min(64, max(4, 2 * (os.cpu_count() or 1)))
        self.max_sessions = max(max_sessions, self.slots)
        self._allow_weak_isolation = allow_weak_isolation
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._queue: deque[_Call] = deque()
        self._running: dict[int, _Call] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._numbers = count(1)
        self._down = ""
        started: Future[ZygoteProcess] = Future()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="sandbox", daemon=True)
        self._thread.start()
        self._zygote = started.result()

    @property
    def isolation(self) -> str:
        """The layers in force."""
        return self._zygote.isolation

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._zygote.pid

    async def execute(self, code: str, *, session: str | None = None, limits: Limits | None = None) -> ExecutionResult:
        """Run `code`; cancelling kills it. Raises HrmError if the environment was closed."""
        call = _Call(code, session, limits or Limits())
        self._submit(call)
        return await asyncio.wrap_future(call.future)

    async def end_session(self, session: str) -> None:
        """Kill the session's process; a call of it that is under way comes to `infrastructure`."""
        with self._lock:
            known = self._sessions.get(session)
            if known is not None:
                self._send(Request(Operation.END_SESSION, 0, known.number), [])
                if not known.busy:
                    del self._sessions[session]

    async def close(self) -> None:
        """Kill whatever still runs; open calls come to `infrastructure`."""
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """`close` for where there is no event loop."""
        with self._lock:
            self._fail_all("the environment was closed")
            self._zygote.hang_up()
        if self._owner == os.getpid():
            self._thread.join()

    def _submit(self, call: _Call) -> None:
        with self._lock:
            if self._down or self._owner != os.getpid():
                why = self._down or "it belongs to the process that this one was forked from"
                raise HrmError(f"The environment cannot run code: {why}.", "Make a new LocalEnvironment.")
            call.future.add_done_callback(lambda future: self._cancel(call) if future.cancelled() else None)
            self._queue.append(call)
            self._pump()

    def _pump(self) -> None:
        """Start what may start, in the order of arrival. The lock is held, here and in the rest of the scheduling."""
        while self._queue and len(self._running) < self.slots and not self._down:
            call = self._queue.popleft()
            if call.future.cancelled():
                continue
            session = self._sessions.get(call.session) if call.session is not None else None
            if session is not None and session.busy:
                session.waiting.append(call)
            else:
                self._start(call)

    def _start(self, call: _Call) -> None:
        limits = call.limits
        try:
            call.files = CallFiles(call.code)
        except OSError as error:
            self._resolve(call, infrastructure_failure(f"no memory file for the call: {error}", self.isolation))
            return
        call.number, call.attempts = next(self._numbers), call.attempts + 1
        self._running[call.number] = call
        request = Request(
            Operation.RUN,
            call.number,
            session=0 if call.session is None else self._claim_session(call.session),
            wall_seconds=limits.wall_seconds,
            cpu_seconds=limits.cpu_seconds,
            memory_bytes=limits.memory_bytes,
            file_bytes=limits.output_bytes * OUTPUT_FACTOR,
            value_bytes=limits.output_bytes,
        )
        self._send(request, call.files.descriptors)

    def _claim_session(self, name: str) -> int:
        """Mark the session busy; a new one may end the one that has been idle longest."""
        session = self._sessions.get(name)
        if session is None:
            idle = next((other for other, known in self._sessions.items() if not known.busy), None)
            if len(self._sessions) >= self.max_sessions and idle is not None:
                self._send(Request(Operation.END_SESSION, 0, self._sessions.pop(idle).number), [])
            session = self._sessions[name] = _Session(next(self._numbers))
        session.busy = True
        self._sessions.move_to_end(name)
        return session.number

    def _release_session(self, name: str, *, alive: bool) -> None:
        session = self._sessions[name]
        self._queue.extendleft(reversed(session.waiting))
        session.waiting.clear()
        session.busy = False
        if not alive:
            del self._sessions[name]

    def _send(self, request: Request, descriptors: list[int]) -> None:
        with suppress(OSError):  # the zygote is gone: the thread that reads from it sees that too, and recovers
            self._zygote.send(request, descriptors)

    def _cancel(self, call: _Call) -> None:
        with self._lock:
            if call.number in self._running:
                self._send(Request(Operation.KILL_CALL, call.number), [])

    def _serve(self, started: Future[ZygoteProcess]) -> None:
        """The thread that starts the zygote, so that its death takes the zygote along, and reads its replies."""
        try:
            self._zygote = start_zygote(allow_weak_isolation=self._allow_weak_isolation)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(self._zygote)
        silent_deaths = 0
        while not self._down:
            reply = self._zygote.receive()
            if reply is not None:
                silent_deaths = 0
                self._finish(reply)
            elif not self._down:
                silent_deaths += 1
                self._recover(silent_deaths)
        self._zygote.wait()

    def _finish(self, reply: Reply) -> None:
        with self._lock:
            call = self._running[reply.call]
            if call.session is not None:
                self._release_session(call.session, alive=reply.ended == Ended.ANSWERED)
            files = call.files
            assert files is not None
            result = outcome(reply, files, call.limits, self.isolation)
            lost = result.status is ToolStatus.INFRASTRUCTURE and not files.started
            self._settle(call, result, lost=lost)
            self._pump()

    def _settle(self, call: _Call, result: ExecutionResult, *, lost: bool) -> None:
        """Take a call off its slot: back to the queue if it was lost and may be run again, else with its result."""
        del self._running[call.number]
        call.number = 0
        if lost and call.may_retry:
            self._queue.appendleft(call)
        else:
            self._resolve(call, result)
        if call.files is not None:
            call.files.close()

    def _resolve(self, call: _Call, result: ExecutionResult) -> None:
        if call.future.set_running_or_notify_cancel():
            call.future.set_result(result)

    def _recover(self, silent_deaths: int) -> None:
        """The zygote died: start another, and run again what may be run again."""
        dead = self._zygote
        dead.wait()
        with self._lock:
            if self._down:
                return
            try:
                if silent_deaths > MAX_SILENT_DEATHS:
                    raise HrmError(f"the sandbox process keeps dying ({dead.last_words()})")
                self._zygote = start_zygote(allow_weak_isolation=self._allow_weak_isolation)
            except (HrmError, OSError) as error:
                self._fail_all(str(error))
                return
            for name in list(self._sessions):
                self._release_session(name, alive=False)
            for call in reversed(list(self._running.values())):
                died = infrastructure_failure("the sandbox process died", self.isolation)
                self._settle(call, died, lost=True)
            self._pump()

    def _fail_all(self, reason: str) -> None:
        """Nothing runs any more: give every open call its result."""
        self._down = self._down or reason
        waiting = [call for session in self._sessions.values() for call in session.waiting]
        for call in (*self._running.values(), *self._queue, *waiting):
            if call.files is not None:
                call.files.close()
            self._resolve(call, infrastructure_failure(reason, self.isolation))
        self._running.clear()
        self._queue.clear()
        self._sessions.clear()
