"""What running a snippet comes to, and the limits it runs under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hrm_agent.trajectory import ToolStatus

__all__ = ["Environment", "ExecutionResult", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one snippet may use. Enforced from outside the snippet's process."""

    wall_seconds: float = 5.0
    cpu_seconds: float = 5.0
    memory_bytes: int = 512 * 1024 * 1024
    output_bytes: int = 16 * 1024
    """Of stdout and of stderr each; what is above is cut from the middle, and its size told."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The outcome of one snippet, as the enforcing side saw it."""

    status: ToolStatus
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """repr of the last expression, else of the variable `RESULT`; None if there is neither."""
    duration_seconds: float = 0.0
    isolation: str = ""
    """Which layers were in force, for example `L2`."""


class Environment(Protocol):
    """Runs model-written Python."""

    async def execute(self, code: str, *, session: str | None = None, limits: Limits | None = None) -> ExecutionResult:
        """Run `code` and return its outcome; never raises for what the snippet does.

        `session` names calls that share their variables; None runs in a fresh process.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Forget a session; an unknown one is no error."""
        ...

    async def close(self) -> None:
        """Kill whatever still runs."""
        ...
