"""Client's memory of its sessions, by which a restarted server can rebuild them.

The server's own memory is more complete. The client's memory is only used if the server's is lost.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.environment.base import Cell, ExecutionResult, SessionState, Submission
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = ["SessionMemory"]

_SESSIONS = 10_000
_CELLS = 2000
_CHARACTERS = 4 * 1024 * 1024
"""Maximum number of characters of one session's cells. The cells of a session with more than
`_CELLS` cells or more characters are forgotten.
"""
_DEADLY = (ToolStatus.TIMEOUT, ToolStatus.OUT_OF_MEMORY, ToolStatus.INFRASTRUCTURE)
"""Statuses of cells that have killed their process. Such cells are left out of the history."""


@dataclass(slots=True)
class _Log:
    boot: str = ""
    """Id of the server process whose session has run `cells` (empty before its first answer)."""
    cells: list[Cell] | None = field(default_factory=list[Cell])
    """Known cells (None if some are unknown)."""
    open: int = 0
    """Number of running calls of the session."""

    def add(self, cell: Cell) -> None:
        if self.cells is not None:
            self.cells.append(cell)
            if len(self.cells) > _CELLS or sum(len(each.code) for each in self.cells) > _CHARACTERS:
                self.cells = None


class SessionMemory:
    """Cells of this process's sessions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs = BoundedMap[str, _Log](_SESSIONS)

    def opened(self, session: str) -> None:
        """Note a call of the session as submitted."""
        with self._lock:
            log = self._logs.pop(session, None) or _Log()
            log.open += 1
            self._logs[session] = log

    def history(self, submission: Submission, boot: str) -> tuple[Cell, ...] | None:
        """History to send with a call to the server process `boot` (None if the server needs none).
        Raises HrmError if the server needs the history and this memory does not have all of it.
        """
        if submission.history is not None or submission.session is None:
            return submission.history
        with self._lock:
            log = self._logs.get(submission.session)
            if log is None or log.boot in ("", boot):
                return None
            if log.cells is None:
                raise HrmError(
                    "The server was restarted, and the session's earlier calls are not all known."
                )
            if log.open > 1:
                raise HrmError(
                    "The server was restarted while several calls of the session were running."
                )
            return tuple(log.cells)

    def ended(self, submission: Submission, result: ExecutionResult | None, boot: str) -> None:
        """Note the end of a call on the server process `boot`. `result`: None if the caller is
        gone.
        """
        with self._lock:
            log = self._logs.get(submission.session or "")
            if log is None:
                return
            log.open -= 1
            if result is None or result.session is None:
                return
            if submission.history is not None:
                log.cells = list(submission.history)
            elif result.session is SessionState.NEW:
                log.cells = []
            elif not log.boot:  # this client's first call found cells of another client
                log.cells = None
            log.boot = boot
            if result.status not in _DEADLY:
                log.add(Cell(submission.code, result.digest))

    def gone(self, session: str, boot: str) -> bool:
        """True if the server process `boot` does not know the session, but this memory has its
        cells.
        """
        with self._lock:
            log = self._logs.get(session)
            return log is not None and log.boot not in ("", boot) and log.cells is not None

    def copy(self, source: str, target: str) -> None:
        with self._lock:
            log = self._logs.get(source)
            if log is None:
                self._logs.pop(target, None)
            else:
                self._logs[target] = _Log(log.boot, None if log.cells is None else list(log.cells))

    def forget(self, session: str) -> None:
        with self._lock:
            self._logs.pop(session, None)
