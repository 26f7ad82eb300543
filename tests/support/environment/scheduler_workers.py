"""Workers for tests of the scheduler. `ThreadWorkers` run calls in threads instead of processes,
and keep the interface's promises. `SteppedWorkers` run nothing: a call ends when the test ends it.

The code of a call is a few words of a small language, by which a test says what is to happen:
`sleep 0.1`, `wait` (until killed), `hold` (until `ThreadWorkers.let_go`), `value 5`, `set 5`, `get`
(the session's variable), `clock` (another value each time), `fail` (status error), `die` (the
process ends, with an error), `timeout`, `lose`, `lose once...`, `break` (an infrastructure failure
after the code had begun). Violations of the interface by incoming calls are kept in `broken`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from hrm_agent.environment.base import ExecutionResult
from hrm_agent.environment.scheduler.workers import Work
from hrm_agent.trajectory import ToolStatus


@dataclass(eq=False)
class Process:
    variable: str = "nothing"
    busy: bool = False


@dataclass
class ThreadWorkers:
    slots: int = 2
    isolation: str = "L0"
    slot_deaths: int = 0
    faults: int = 0
    began: list[str] = field(default_factory=list)
    """Codes, in the order in which they were started."""
    works: list[Work] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    ended_sessions: list[int] = field(default_factory=list)
    processes: dict[int, Process] = field(default_factory=dict)
    most_running: int = 0
    most_processes: int = 0
    let_go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.slots + 8)
        self._lock = threading.Lock()
        self._running: dict[Work, threading.Event] = {}
        self._lost: set[str] = set()
        self._clock = itertools.count()
        self._on_death: Callable[[int], None] = lambda session: None

    def start(self, work: Work) -> None:
        with self._lock:
            self.began.append(work.code)
            self.works.append(work)
            known = work.session in self.processes
            if work.session and not known and not work.fresh:
                self._pool.submit(work.done, failed("its process is gone"), True)
                return
            if work.session and known and work.fresh:
                self.broken.append(f"session {work.session} was made twice")
            process = (
                self.processes.setdefault(work.session, Process()) if work.session else Process()
            )
            if process.busy:
                self.broken.append(f"two calls of session {work.session} at once")
            process.busy = True
            self._running[work] = threading.Event()
            self.most_running = max(self.most_running, len(self._running))
            self.most_processes = max(self.most_processes, len(self.processes))
            if len(self._running) > self.slots:
                self.broken.append("more calls than slots")
        self._pool.submit(self._run, work, process)

    def kill(self, work: Work) -> None:
        with self._lock:
            if work in self._running:
                self._running[work].set()
            elif work not in self.works:
                self.broken.append("killed before it was started")

    def end_session(self, session: int) -> None:
        with self._lock:
            self.ended_sessions.append(session)
            process = self.processes.pop(session, None)
            if process is not None and process.busy:
                self.broken.append(f"session {session} was ended while it was busy")

    def on_session_death(self, callback: Callable[[int], None]) -> None:
        self._on_death = callback

    def responds(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        with self._lock:
            for killed in self._running.values():
                killed.set()
        self._pool.shutdown(wait=True)

    def kill_idle(self, session: int) -> None:
        """End an idle session's process as the kernel might, and report its death."""
        with self._lock:
            del self.processes[session]
        self._on_death(session)

    def _run(self, work: Work, process: Process) -> None:
        killed = self._running[work]
        result, lost, dies = self._result(work, process, killed)
        with self._lock:
            del self._running[work]
            process.busy = False
            if killed.is_set():
                result, lost, dies = failed("killed"), False, True
            dies = bool(work.session and dies)
            if dies:
                self.processes.pop(work.session, None)
        if dies:
            self._on_death(work.session)
        work.done(result, lost)

    def _result(
        self, work: Work, process: Process, killed: threading.Event
    ) -> tuple[ExecutionResult, bool, bool]:
        """Return the outcome, whether the call was lost, and whether it ended its process."""
        word, _, rest = work.code.partition(" ")
        if word in ("sleep", "wait"):
            killed.wait(float(rest or 300))
        if word == "hold":
            self.let_go.wait(60)
        if word == "set":
            process.variable = rest
        if word == "lose" and not (rest.startswith("once") and work.code in self._lost):
            self._lost.add(work.code)
            return failed("lost"), True, True
        values = {
            "get": process.variable,
            "clock": str(next(self._clock)) if word == "clock" else "",
        }
        ends = {
            "fail": (ExecutionResult(ToolStatus.ERROR), False, False),
            "die": (ExecutionResult(ToolStatus.ERROR, stdout="last words"), False, True),
            "timeout": (ExecutionResult(ToolStatus.TIMEOUT), False, True),
            "break": (failed("broken"), False, True),
        }
        return ends.get(
            word, (ExecutionResult(ToolStatus.OK, value=values.get(word, rest)), False, False)
        )


@dataclass
class SteppedWorkers:
    """Workers whose work ends only when the test ends it. `running` is in the order of starts."""

    check: Callable[[Work], None]
    slots: int = 2
    isolation: str = "L0"
    slot_deaths: int = 0
    faults: int = 0
    running: list[Work] = field(default_factory=list)
    ran: dict[int, list[str]] = field(default_factory=dict)
    """Number of a session -> codes that its process has run."""
    broken: list[AssertionError] = field(default_factory=list)

    def start(self, work: Work) -> None:
        try:
            assert work.fresh == (work.session != 0 and work.session not in self.ran)
            assert len(self.running) < self.slots
            assert work.session not in {other.session for other in self.running} - {0}
            self.check(work)
        # raised here, the error would be the call's outcome and not a failure of the test
        except AssertionError as error:
            self.broken.append(error)
        self.running.append(work)
        if work.session:
            self.ran.setdefault(work.session, [])

    def end(self, work: Work, result: ExecutionResult, *, lost: bool) -> None:
        self.running.remove(work)
        if work.session and result.status in (ToolStatus.OK, ToolStatus.ERROR):
            self.ran[work.session].append(work.code)
        elif work.session:
            del self.ran[work.session]
        work.done(result, lost)

    def kill(self, work: Work) -> None:
        if work in self.running:
            self.end(work, failed("killed"), lost=False)

    def end_session(self, session: int) -> None:
        assert session not in [work.session for work in self.running]
        self.ran.pop(session, None)

    def on_session_death(self, callback: Callable[[int], None]) -> None:
        self.died = callback

    def responds(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        for work in list(self.running):
            self.end(work, failed("closed"), lost=False)


def failed(why: str) -> ExecutionResult:
    return ExecutionResult(ToolStatus.INFRASTRUCTURE, stderr=why)
