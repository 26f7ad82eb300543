"""The Environment interface: `Submission` in, `ExecutionResult` out.

One interface for every way of running code: on this machine (`LocalEnvironment`), on a server
(`RemoteEnvironment`), on the nodes of a Ray cluster (`RayEnvironment`). A contract suite runs
against each.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from hrm_agent.errors import HrmError
from hrm_agent.trajectory import SessionState, ToolStatus

__all__ = ["Cell", "Environment", "ExecutionResult", "Limits", "SessionState", "Submission"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one snippet may use. Enforced from outside the snippet's process."""

    wall_seconds: float = 5.0
    """Wall-clock time from the moment it begins; the time in the queue is not the snippet's."""
    cpu_seconds: float = 5.0
    """CPU time of the whole tree of processes."""
    memory_bytes: int = 512 * 1024 * 1024
    """Beyond the warm interpreter, of the whole tree of processes. Of a session: fixed by its first
    call.
    """
    output_bytes: int = 16 * 1024
    """Of stdout and of stderr each; what is above is cut from the middle, and its size told."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An earlier call of a session."""

    code: str
    """Its Python source."""
    digest: str = ""
    """`ExecutionResult.digest` of what it came to; empty if that is not known,
    or does not matter.
    """


@dataclass(frozen=True, slots=True)
class Submission:
    """One call."""

    code: str
    """Python source to run."""
    session: str | None = None
    """Names calls that share their variables; None runs in a fresh process."""
    history: tuple[Cell, ...] | None = None
    """The session's earlier calls, in order: where its process does not stand exactly there, they
    are run again in a new one. None: those that the environment remembers.
    """
    limits: Limits = field(default_factory=Limits)
    """What the code may use."""
    id: str | None = None
    """Submitted again under its id, a call is not run again: it is given the first answer."""
    run: str = ""
    """On whose behalf: among runs, slots are shared out evenly."""
    priority: int = 0
    """Higher goes first, among the calls of one client; from -100 to 100."""
    deadline_seconds: float | None = None
    """From now, 0 to 604,800 (a week); a call that has not begun by then ends with status
    `infrastructure`. None waits as long as it takes.
    """
    client: str = ""
    """Set by a server: whose call it is. Slots are shared out evenly among clients first, then
    among the runs of each. It is not sent to a server.
    """


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The outcome of one snippet, as the enforcing side saw it."""

    status: ToolStatus
    """How the snippet ended."""
    stdout: str = ""
    """What it wrote to standard output, cut in the middle where it is long."""
    stderr: str = ""
    """What it wrote to standard error, cut in the middle where it is long; at its end, how the
    process ended.
    """
    value: str | None = None
    """repr of the last expression, else of the variable `RESULT`; None if there is neither."""
    value_json: str | None = None
    """The value as JSON; None where it has none."""
    duration_seconds: float = 0.0
    """Wall clock, from the beginning to the end of the snippet."""
    cpu_seconds: float = 0.0
    """CPU time of the whole tree of processes."""
    peak_memory_bytes: int = 0
    """Largest resident memory, the warm interpreter's included; of a session, since it began."""
    stdout_bytes: int = 0
    """Bytes written to stdout, before the middle was cut."""
    stderr_bytes: int = 0
    """Bytes written to stderr, before the middle was cut."""
    isolation: str = ""
    """The level in force: `L3` to `L0`."""
    session: SessionState | None = None
    """None outside sessions."""
    changed_cells: tuple[int, ...] = ()
    """Numbers, from 1, of the session's earlier cells that gave another result when they were run
    again for this call; the first sixteen.
    """
    queued_seconds: float = 0.0
    """Time in seconds that the call waited before it began."""
    attempt: int = 1
    """1; 2 where the infrastructure lost the first attempt."""
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    """System call -> how often it was refused; the sixteen most frequent."""

    @property
    def digest(self) -> str:
        """Equal for runs that came to the same: status, output and value, not time and memory."""
        parts = (self.status, self.stdout, self.value or "")
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Environment(ABC):
    """Runs model-written Python."""

    @property
    @abstractmethod
    def isolation(self) -> str:
        """The level in force: `L3` to `L0`."""

    @abstractmethod
    async def run(self, submission: Submission) -> ExecutionResult:
        """Run one call; never raises for what the snippet does. Cancelling kills it, and frees its
        slot at once.

        Raises HrmError where the environment is closed or out of reach.
        """

    async def execute(
        self, code: str, *, session: str | None = None, limits: Limits | None = None
    ) -> ExecutionResult:
        """`run` for most uses."""
        return await self.run(Submission(code, session=session, limits=limits or Limits()))

    @abstractmethod
    async def fork_session(self, source: str, target: str, *, run: str = "") -> None:
        """Make `target` a copy of the session `source` as it is now, on behalf of `run` (as in
        `Submission`).

        Raises HrmError if there is no such session, or one of the two belongs to another run.
        """

    @abstractmethod
    async def end_session(self, session: str, *, run: str = "") -> None:
        """Forget a session of `run`; an unknown one is no error. Raises HrmError if it belongs to
        another run.
        """

    @abstractmethod
    async def metrics(self) -> str:
        """Counts and times so far, in Prometheus' text format."""

    async def check_health(self, seconds: float = 5.0) -> str:
        """Why it cannot run calls now; empty if it can. Asks what serves them, and waits `seconds`
        for each answer.
        """
        try:
            await asyncio.wait_for(self.metrics(), seconds)
        except TimeoutError:
            return f"the environment has not answered within {seconds:g} s"
        except HrmError as error:
            return str(error)
        return ""

    @abstractmethod
    async def close(self) -> None:
        """Kill whatever still runs; open calls end with status `infrastructure`."""
