"""Sessions of the environment for calls of the Python tool, with the cells that led to them.

A session belongs to one agent: one loop of a graph on one thread, identified by the namespace
around the calling node. Two tool nodes of one loop share their variables. Two parallel solvers do
not.

The content of a session follows from the record, not from running processes. Its cells are read
from the journal, in the order in which they ran: first the cells of earlier steps, then the
finished cells of this step. Earlier steps are those in the lineage of the current checkpoint, so a
fork has the cells that it inherited, and a branch has the cells of its own ancestors.

The environment keeps a process that has run exactly these cells, or runs them again in a new one.
Outside of a recording, only the environment keeps the cells. Without a thread there is no session,
and each call gets a fresh interpreter.

LangGraph's checkpoints may be missing in the journal's store, because they are in another saver or
are written only later (`durability="exit"`). All calls of the thread then count as one lineage,
ordered by the times in their ids.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4
from weakref import WeakKeyDictionary

from hrm_agent.environment import Environment
from hrm_agent.environment.base import Cell, ExecutionResult
from hrm_agent.tools.call_order import OrderedAccess
from hrm_agent.trajectory import (
    CheckpointLineage,
    GraphIdentity,
    Recording,
    ToolStatus,
    content_hash,
    open_recording,
)

__all__ = ["RecordingSessions", "SessionPlace", "end_sessions", "sessions_of"]

SECONDS_TO_APPEAR = 0.05
"""Longest wait in seconds for a checkpoint that LangGraph is still writing. If a thread's
checkpoint does not appear, its later calls do not wait.
"""
SECONDS_BETWEEN_LOOKS = 0.002
SECONDS_TO_END = 5.0
"""Longest wait in seconds for an environment to end its sessions after an episode."""
_LIVED_ON = (ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OUTPUT_LIMIT)
"""Statuses after which the session's process is alive. After any other status, the process and the
effects of the call are gone.
"""
_processes: dict[int, str] = {}


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """Session of a call."""

    name: str
    """Name of the session in the environment."""
    history: tuple[Cell, ...] | None
    """Earlier cells of the session, in order (None: those that the environment remembers)."""


@dataclass(frozen=True, slots=True)
class _Ran:
    """Finished call of a session."""

    scope: str
    """Namespace around the calling node, which identifies the agent."""
    checkpoint_id: str
    """Checkpoint of the agent's graph from which the call's step started."""
    started_at: float
    """Unix time in seconds."""
    cell: Cell | None
    """Code and digest of the call (None if it ended the session's process)."""


class RecordingSessions:
    """Sessions of one recording. This object does not hold the recording, which its methods take as
    an argument, so that both can be freed.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Names of the sessions that were used."""
        self.begun: set[str] = set()
        """Names of the sessions whose initial variables were set."""
        self.turns = OrderedAccess()
        self._ran: dict[str, _Ran | None] = {}
        """Finished calls by record id, which do not change any more (None for a call without a
        session).
        """
        self._without_line: set[str] = set()
        """Threads whose checkpoints do not appear in the journal's store."""

    async def place(
        self, recording: Recording, identity: GraphIdentity, record_id: str
    ) -> SessionPlace:
        """Name and cells of the session for a call. The caller must have waited for the call's turn
        (`turns`).
        """
        own = identity.thread_id, identity.scope
        if open_recording() is None:
            place = SessionPlace(content_hash("session", _this_process(), *own), None)
        else:
            line = await self.line(recording, identity)
            ran = await recording.apart(self._before, recording, identity, line)
            # The name begins with the id of the session's first call. It distinguishes threads of
            # the same name in two runs or stores, since LangGraph's ids are unique. It also seeds
            # the session's random numbers, so that a fork draws the same numbers when it runs the
            # inherited cells again.
            first = ran[0][0] if ran else record_id
            name = content_hash("session", *own, "" if identity.checkpoint_ns else _this_process())
            place = SessionPlace(
                f"{first}~{name[:16]}", tuple(call.cell for _, call in ran if call.cell is not None)
            )
        self.names.add(place.name)
        return place

    async def line(self, recording: Recording, identity: GraphIdentity) -> CheckpointLineage:
        """Steps that led to the current step of a thread."""
        thread = identity.thread_id
        journal = recording.journal
        patience = (
            0.0 if thread in self._without_line or not journal.is_blocking else SECONDS_TO_APPEAR
        )
        while True:
            line = await recording.apart(journal.line, thread, "", identity.step)
            if line.order or patience <= 0:
                break
            patience -= SECONDS_BETWEEN_LOOKS
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        if not line.order:
            self._without_line.add(thread)
        return line

    def _before(
        self, recording: Recording, identity: GraphIdentity, line: CheckpointLineage
    ) -> list[tuple[str, _Ran]]:
        """Finished calls that led to a call, with the ids of their records, in the order in which
        they ran.
        """
        journal = recording.journal
        thread = identity.thread_id
        scope = identity.scope
        inner = journal.line(thread, scope, identity.checkpoint_id) if scope else line
        found: list[tuple[tuple[int, str], float, str, _Ran]] = []
        for record_id, step in journal.steps_of_tool_calls(thread):
            at = line.place(step)
            ran = self._read(recording, record_id, thread) if at is not None else None
            if at and ran and ran.scope == scope and inner.place(ran.checkpoint_id) is not None:
                found.append((at, ran.started_at, record_id, ran))
        return [
            (record_id, ran) for _, _, record_id, ran in sorted(found, key=lambda entry: entry[:3])
        ]

    def _read(self, recording: Recording, record_id: str, thread: str) -> _Ran | None:
        if record_id in self._ran:
            return self._ran[record_id]
        record = recording.journal.find_tool_call(record_id, thread)
        if record is None or record.status is None:
            return None
        ran: _Ran | None = None
        if record.session is not None and not isinstance(record.arguments, str):
            result = ExecutionResult(record.status, stdout=record.stdout, value=record.value)
            code = str(record.arguments.get("code", ""))
            cell = Cell(code, result.digest) if record.status in _LIVED_ON else None
            at = record.identity
            ran = _Ran(at.scope, at.checkpoint_id, record.started_at, cell)
        self._ran[record_id] = ran
        return ran


_sessions: WeakKeyDictionary[Recording, RecordingSessions] = WeakKeyDictionary()
_lock = threading.Lock()


def sessions_of(recording: Recording) -> RecordingSessions:
    """Sessions of a recording."""
    with _lock:
        return _sessions.setdefault(recording, RecordingSessions())


async def end_sessions(recording: Recording, environment: Environment) -> None:
    """End the sessions of a recording in an environment. If the environment is unreachable, it ends
    them later by itself.
    """
    sessions = sessions_of(recording)
    names = sessions.names
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_TO_END):
            ends = (environment.end_session(name, run=recording.run_id) for name in names)
            await asyncio.gather(*ends, return_exceptions=True)
    names.clear()
    sessions.begun.clear()


def _this_process() -> str:
    """Random id of this process. It is a part of session names outside of graphs, where ids of
    calls are unique only within a process.
    """
    return _processes.setdefault(os.getpid(), uuid4().hex)
