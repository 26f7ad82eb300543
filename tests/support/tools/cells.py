"""An environment of a few lines, in this process. It keeps its calls, and its sessions behave as
the interface promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from dataclasses import replace
from typing import Any

from hrm_agent.environment.base import Cell, Environment, ExecutionResult, Submission
from hrm_agent.trajectory import SessionState, ToolStatus


class Cells(Environment):
    """Runs the tests' own harmless code. `raise SystemExit("timeout")` makes a snippet end with
    that status.
    """

    def __init__(self) -> None:
        self.asked: list[Submission] = []
        self.ended: list[str] = []
        self.living: dict[str, tuple[dict[str, Any], list[Cell]]] = {}
        self.together = 1
        """Number of cells that have to be open at once before any of them runs (0: no cell ever
        runs).
        """
        self.open = 0
        self.most_open = 0

    @property
    def isolation(self) -> str:
        return "L0"

    async def run(self, submission: Submission) -> ExecutionResult:
        self.asked.append(submission)
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        await asyncio.sleep(0)
        while self.most_open < self.together or not self.together:
            await asyncio.sleep(0.01)
        self.open -= 1
        if submission.session is None:
            return _run(submission.code, {}, None)
        names, cells, found, changed = self._visit(submission.session, submission.history)
        result = replace(_run(submission.code, names, found), changed_cells=changed)
        cells.append(Cell(submission.code, result.digest))
        if result.status in (ToolStatus.OK, ToolStatus.ERROR):
            self.living[submission.session] = names, cells
        else:
            self.living.pop(submission.session, None)
        return result

    def _visit(
        self, name: str, history: Any
    ) -> tuple[dict[str, Any], list[Cell], SessionState, tuple[int, ...]]:
        names, cells = self.living.get(name, ({}, []))
        if history is None or cells == list(history):
            return names, cells, SessionState.KEPT if cells else SessionState.NEW, ()
        names, found = {}, SessionState.REPLAYED if history else SessionState.NEW
        ran = [_run(cell.code, names, None).digest == cell.digest for cell in history]
        changed = tuple(number for number, same in enumerate(ran, 1) if not same)
        return names, list(history), SessionState.DIFFERS if changed else found, changed

    async def fork_session(self, source: str, target: str, *, run: str = "") -> None:
        raise NotImplementedError

    async def end_session(self, session: str, *, run: str = "") -> None:
        self.ended.append(session)
        self.living.pop(session, None)

    async def metrics(self) -> str:
        return ""

    async def close(self) -> None:
        self.living.clear()


def _run(code: str, names: dict[str, Any], session: SessionState | None) -> ExecutionResult:
    *before, last = code.splitlines()
    status, value, error, stdout = ToolStatus.OK, None, "", io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout):
            exec("\n".join(before), names)
            try:
                value = repr(eval(last, names))
            except SyntaxError:
                exec(last, names)
    except SystemExit as end:
        status = ToolStatus(str(end))
    except Exception as failure:
        status, error = ToolStatus.ERROR, f"{type(failure).__name__}: {failure}"
    return ExecutionResult(
        status,
        stdout.getvalue(),
        error,
        value,
        isolation="L0",
        session=session,
        cpu_seconds=0.5,
        peak_memory_bytes=9,
    )
