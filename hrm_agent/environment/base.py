"""Environment interface: `Submission` in, `ExecutionResult` out.

All places where code can run share it: this machine (`LocalEnvironment`), a server
(`RemoteEnvironment`) and the nodes of a Ray cluster (`RayEnvironment`). One suite of tests runs
against each of them.
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
    """Resource limits of one snippet, enforced from outside its process."""

    wall_seconds: float = 5.0
    """Wall-clock limit in seconds from the start of the snippet, without the time in the queue."""
    cpu_seconds: float = 5.0
    """CPU time limit in seconds of the whole process tree."""
    memory_bytes: int = 512 * 1024 * 1024
    """Memory limit in bytes of the whole process tree, beyond the warm interpreter. A session keeps
    the limit of its first call.
    """
    output_bytes: int = 16 * 1024
    """Limit in bytes of stdout and of stderr each. In longer output, a note with the number of
    bytes replaces the middle.
    """


@dataclass(frozen=True, slots=True)
class Cell:
    """Earlier call of a session."""

    code: str
    """Python source."""
    digest: str = ""
    """`ExecutionResult.digest` of the cell's result (empty if the result is unknown, or is not to
    be compared).
    """


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of an environment."""

    code: str
    """Python source to run."""
    session: str | None = None
    """Name of the session whose variables the call shares (None: the call runs in a fresh
    process).
    """
    history: tuple[Cell, ...] | None = None
    """Earlier calls of the session, in order (None: those that the environment remembers). If the
    session's process has not run exactly these calls, they are run again in a new process.
    """
    limits: Limits = field(default_factory=Limits)
    """Resource limits of the code."""
    id: str | None = None
    """Idempotency key: a second call with the same id is not run again, but gets the first
    result.
    """
    run: str = ""
    """Run that the call belongs to. Slots are shared evenly among runs."""
    priority: int = 0
    """Priority among the calls of one client, from -100 to 100. Higher goes first."""
    deadline_seconds: float | None = None
    """Seconds from now, 0 to 604,800 (a week). A call that has not begun by then ends with status
    `infrastructure` (None: the call waits without limit).
    """
    client: str = ""
    """Name of the client. A server sets it; a client does not send it. Slots are shared evenly
    among clients first, then among the runs of each client.
    """


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Outcome of one snippet, as measured by the enforcing side."""

    status: ToolStatus
    """Status of the call: how the snippet ended."""
    stdout: str = ""
    """Standard output, without its middle if it is long."""
    stderr: str = ""
    """Standard error, without its middle if it is long. Its end describes how the process ended."""
    value: str | None = None
    """`repr` of the last expression, else of the variable `RESULT` (None if there is neither)."""
    value_json: str | None = None
    """Value as JSON (None if it has no JSON form)."""
    duration_seconds: float = 0.0
    """Wall-clock time in seconds from start to end of the snippet."""
    cpu_seconds: float = 0.0
    """CPU time in seconds of the whole process tree."""
    peak_memory_bytes: int = 0
    """Largest resident memory, including the warm interpreter. For a session: since it began."""
    stdout_bytes: int = 0
    """Bytes written to stdout, before the middle was cut."""
    stderr_bytes: int = 0
    """Bytes written to stderr, before the middle was cut."""
    isolation: str = ""
    """Isolation level in force: `L3` to `L0`."""
    session: SessionState | None = None
    """State of the session (None outside sessions)."""
    changed_cells: tuple[int, ...] = ()
    """Numbers, from 1, of the session's earlier cells whose result changed when they were run again
    for this call. At most the first sixteen.
    """
    queued_seconds: float = 0.0
    """Time in seconds that the call waited before it began."""
    attempt: int = 1
    """Number of the attempt: 1, or 2 if the infrastructure lost the first attempt."""
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
    """Refused system calls: name -> number of refusals, the sixteen most frequent."""

    @property
    def digest(self) -> str:
        """Hash of status, stdout and value. Equal for runs with the same result, whatever time and
        memory they took.
        """
        parts = (self.status, self.stdout, self.value or "")
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Environment(ABC):
    """Runs model-written Python."""

    @property
    @abstractmethod
    def isolation(self) -> str:
        """Isolation level in force: `L3` to `L0`."""

    @abstractmethod
    async def run(self, submission: Submission) -> ExecutionResult:
        """Run one call; never raises for what the snippet does. Cancelling kills the snippet and
        frees its slot at once.

        Raises HrmError if the environment is closed or unreachable.
        """

    async def execute(
        self, code: str, *, session: str | None = None, limits: Limits | None = None
    ) -> ExecutionResult:
        """Run `code`: a short form of `run`."""
        return await self.run(Submission(code, session=session, limits=limits or Limits()))

    @abstractmethod
    async def fork_session(self, source: str, target: str, *, run: str = "") -> None:
        """Copy session `source` to `target` once its running call has ended, on behalf of `run`
        (see `Submission`).

        Raises HrmError if there is no such session, or one of the two belongs to another run.
        """

    @abstractmethod
    async def end_session(self, session: str, *, run: str = "") -> None:
        """End a session of `run`. An unknown session is ignored. Raises HrmError if the session
        belongs to another run.
        """

    @abstractmethod
    async def metrics(self) -> str:
        """Counts and times so far, in the text format of Prometheus."""

    async def check_health(self, seconds: float = 5.0) -> str:
        """Reason why calls cannot run now (empty if they can). Waits up to `seconds` for each part
        that serves calls.
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
        """Close the environment and kill all its processes. Open calls end with status
        `infrastructure`.
        """
