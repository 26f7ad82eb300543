"""Interface of the workers that the scheduler hands calls to: the host's side of snippet
processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hrm_agent.environment.base import ExecutionResult, Limits

__all__ = ["Work", "Workers"]


@dataclass(slots=True, eq=False)
class Work:
    """Code to be run now in a slot."""

    code: str
    """Python source to run."""
    limits: Limits
    """Resource limits of the code."""
    done: Callable[[ExecutionResult, bool], None]
    """Callback with two arguments: the outcome, and True if the call was lost, which means that the
    infrastructure failed before the code had begun to act. It is called once, from any thread. The
    callback's owner sets `queued_seconds`, `attempt` and `session` of the outcome.
    """
    session: int = 0
    """Number of the session whose process runs the code (0 for a fresh process)."""
    fresh: bool = False
    """True if this work starts the session's process. If it is false and the process is gone, the
    call is lost.
    """
    seed: int = 0
    """Seed of the snippet's random generators. In a session, the seed of its first call counts."""
    again: bool = False
    """True if the call was lost before. It then gets a new slot, since existing slots may be dying
    too.
    """


class Workers(Protocol):
    """Processes that run snippets. Thread-safe. No method but `responds` and `close` blocks longer
    than the start of a process takes.
    """

    @property
    def isolation(self) -> str:
        """Isolation level in force."""
        ...

    @property
    def faults(self) -> int:
        """Unexpected errors of the serving thread so far. Each ended at most one call or slot, and
        was logged.
        """
        ...

    slots: int
    """Number of works that may run at once. The caller must not start more. Idle sessions do not
    count as works.
    """
    slot_deaths: int
    """Number of slots that died and were replaced so far."""

    def start(self, work: Work) -> None:
        """Start `work`. A session may have only one work at a time."""
        ...

    def kill(self, work: Work) -> None:
        """Kill a work that was started. Its `done` is called with status `infrastructure`. Harmless
        if the work has ended.
        """
        ...

    def end_session(self, session: int) -> None:
        """Kill the process of an idle session. An unknown session is ignored."""
        ...

    def on_session_death(self, callback: Callable[[int], None]) -> None:
        """Set a callback for the end of a session's process. If a work ended the process, the
        callback is called before `done` of the work.
        """
        ...

    def responds(self, seconds: float) -> bool:
        """True if the serving thread responds within `seconds`. Blocks until it does. False once
        the workers are closed.
        """
        ...

    def close(self) -> None:
        """Kill all processes. Every open work ends with status `infrastructure`."""
        ...
