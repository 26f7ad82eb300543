"""Which session of the environment a call of the Python tool runs in, and which cells led to it.

A session belongs to one agent: one loop of a graph on one thread, known by the namespace around the
node that calls. Two tool nodes of one loop share their variables; two solvers side by side do not.

What a session holds is decided by the record, not by what happens to run: the cells that led here
are read from the journal, in the order in which they ran. They are those of the steps before this
one (a fork has those that it inherited, a branch those of its own ancestors) and those of this step
that have ended. The environment keeps the process that ran exactly these, or runs them again in
another. Outside of a recording nobody but the environment keeps them; without a thread there is no
session, and each call is given a fresh interpreter.

Where LangGraph's checkpoints lie in another saver than the journal's store, or are not written when
the next step begins (`durability="exit"`), the calls of a thread are taken for one line, by the
times in their ids.
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
from hrm_agent.langgraph_format import namespace_around
from hrm_agent.tools.call_order import OrderedAccess
from hrm_agent.trajectory import (
    CheckpointLineage,
    GraphIdentity,
    Recording,
    ToolCall,
    ToolStatus,
    content_hash,
    open_recording,
)

__all__ = ["RecordingSessions", "SessionPlace", "end_sessions", "scope_of", "sessions_of"]

SECONDS_TO_APPEAR = 0.05
"""So long a call waits for a checkpoint that LangGraph is still writing; once for a thread whose
are never found.
"""
SECONDS_BETWEEN_LOOKS = 0.002
SECONDS_TO_END = 5.0
"""So long the end of an episode waits for an environment to forget its sessions."""
_LIVED_ON = (ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OUTPUT_LIMIT)
"""After any other outcome the session's process is gone, with whatever the call had done."""
_processes: dict[int, str] = {}


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """A session as a call finds it."""

    name: str
    """The environment's name of the session."""
    history: tuple[Cell, ...] | None
    """Cells that led here, in order; None: the environment's own memory of it counts."""


@dataclass(frozen=True, slots=True)
class _Ran:
    """A finished call of a session."""

    scope: str
    """Namespace around the node that called: which agent's session it was."""
    checkpoint_id: str
    """Checkpoint of the outermost graph that its step started from."""
    started_at: float
    """Unix time in seconds."""
    cell: Cell | None
    """None: its process did not live on."""


class RecordingSessions:
    """The sessions of one recording. It is handed in, so that this goes when the recording goes."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Those that were used."""
        self.begun: set[str] = set()
        """Those that have been given the variables that they begin with."""
        self.turns = OrderedAccess()
        self._ran: dict[str, _Ran | None] = {}
        """By id of its record; None for a call of no session. What has finished does not change."""
        self._without_line: set[str] = set()
        """Threads whose checkpoints do not appear in the journal's store."""

    async def place(
        self, recording: Recording, identity: GraphIdentity, record_id: str
    ) -> SessionPlace:
        """Name and cells of the session that a call is about to run in, to be asked when it is its
        turn.
        """
        own = identity.thread_id, scope_of(identity)
        if open_recording() is None:
            place = SessionPlace(content_hash("session", _this_process(), *own), None)
        else:
            line = await self._line(recording, identity)
            ran = await recording.apart(self._before, recording, identity, line)
            # The id of the first call tells apart threads of one name, in two runs or stores:
            # LangGraph's are unique. It decides the session's random numbers too, which a fork that
            # runs its cells again is to draw again.
            first = ran[0][0] if ran else record_id
            name = content_hash("session", *own, "" if identity.checkpoint_ns else _this_process())
            place = SessionPlace(
                f"{first}~{name[:16]}", tuple(call.cell for _, call in ran if call.cell is not None)
            )
        self.names.add(place.name)
        return place

    async def _line(self, recording: Recording, identity: GraphIdentity) -> CheckpointLineage:
        """The steps that led here."""
        thread, journal = identity.thread_id, recording.journal
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
        """The finished calls that led to one, with the ids of their records, in the order in which
        they ran.
        """
        journal, thread, scope = recording.journal, identity.thread_id, scope_of(identity)
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
        if record_id not in self._ran:
            record = recording.journal.find_tool_call(record_id, thread)
            if record is None or record.status is None:
                return None
            self._ran[record_id] = _ran(record)
        return self._ran[record_id]


_sessions: WeakKeyDictionary[Recording, RecordingSessions] = WeakKeyDictionary()
_lock = threading.Lock()


def sessions_of(recording: Recording) -> RecordingSessions:
    """The sessions that a recording has used, and will use."""
    with _lock:
        return _sessions.setdefault(recording, RecordingSessions())


async def end_sessions(recording: Recording, environment: Environment) -> None:
    """Let an environment forget the sessions of a recording. One that is out of reach forgets them
    in its own time.
    """
    sessions = sessions_of(recording)
    names = sessions.names
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_TO_END):
            ends = (environment.end_session(name, run=recording.run_id) for name in names)
            await asyncio.gather(*ends, return_exceptions=True)
    names.clear()
    sessions.begun.clear()


def scope_of(identity: GraphIdentity) -> str:
    """The namespace around the node that calls: that of its loop."""
    return namespace_around(identity.checkpoint_ns)


def _ran(record: ToolCall) -> _Ran | None:
    if record.session is None or record.status is None or isinstance(record.arguments, str):
        return None
    digest = ExecutionResult(record.status, stdout=record.stdout, value=record.value).digest
    cell = (
        Cell(str(record.arguments.get("code", "")), digest) if record.status in _LIVED_ON else None
    )
    return _Ran(scope_of(record.identity), record.identity.checkpoint_id, record.started_at, cell)


def _this_process() -> str:
    """What is called outside of a graph has ids that are no more unique than the process."""
    return _processes.setdefault(os.getpid(), uuid4().hex)
