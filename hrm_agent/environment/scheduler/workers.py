"""The host's side of the processes that snippets run in: what the scheduler hands a call to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hrm_agent.environment.base import ExecutionResult, Limits

__all__ = ["Work", "Workers"]


@dataclass(slots=True, eq=False)
class Work:
    """One call that is to begin now."""

    code: str
    """Python source to run."""
    limits: Limits
    """What the code may use."""
    done: Callable[[ExecutionResult, bool], None]
    """Called once, from any thread, with the outcome and whether it was lost: true if the
    infrastructure failed before the code had begun to act. `queued_seconds`, `attempt` and
    `session` of the outcome are the caller's to fill in.
    """
    session: int = 0
    """Number of the session whose process runs it; 0: a process of this call's own."""
    fresh: bool = False
    """Of a session: its process is made with this call. Else a session whose process is gone has
    lost the call.
    """
    seed: int = 0
    """Of the snippet's random generators; of a session, its first call's counts."""
    again: bool = False
    """The call was lost before: what stands ready may be dying, too, so that it is given something
    new.
    """


class Workers(Protocol):
    """Thread-safe. Never blocks for longer than starting a process takes."""

    @property
    def isolation(self) -> str:
        """The level in force."""
        ...

    @property
    def faults(self) -> int:
        """Surprises of the serving thread so far: each ended one call or one slot at most, and was
        logged.
        """
        ...

    slots: int
    """Works that may run at once; the caller keeps to it. Idle sessions do not count."""
    slot_deaths: int
    """Slots that died so far, and were replaced."""

    def start(self, work: Work) -> None:
        """Begin `work`; one at a time per session."""
        ...

    def kill(self, work: Work) -> None:
        """End a work that was started: `done` is called with `infrastructure`. None that has ended
        is an error.
        """
        ...

    def end_session(self, session: int) -> None:
        """Kill an idle session's process; an unknown one is no error."""
        ...

    def on_session_death(self, callback: Callable[[int], None]) -> None:
        """`callback(session)` whenever the process of a session is gone; before `done`, if a call
        ended it.
        """
        ...

    def responds(self, seconds: float) -> bool:
        """True if the serving thread has answered within `seconds`; blocks until then. False once
        it is closed.
        """
        ...

    def close(self) -> None:
        """Kill whatever runs; every open work ends with status `infrastructure`."""
        ...
