"""Store of a recorded program, and its running invocations.

A graph without a checkpointer gets the store's checkpointer for the run. LangGraph begins each
invocation of such a graph afresh, so each invocation is a trajectory of its own. A graph with its
own checkpointer keeps it and reads only from it. The record gets a copy of each checkpoint
(`OwnThread`), and each further invocation of a thread is a turn of its trajectory. So recording
does not change what a program does. Recorded threads can be resumed, replayed and forked.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, NamedTuple
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from hrm_agent.basics.async_bridge import may_block
from hrm_agent.basics.unicode import text_of
from hrm_agent.errors import RunError
from hrm_agent.langgraph_format import CHECKPOINTER as SAVER
from hrm_agent.langgraph_format import TASK, agent_of, checkpointer_of, config_in_force
from hrm_agent.models.external.recorded import record_external_models
from hrm_agent.runtime.execution.conversation import (
    ABORTED,
    CHECKPOINTER,
    CONFIGURABLE,
    RECORDED,
    close_tool_calls,
    reopened,
    with_turn,
)
from hrm_agent.runtime.execution.graph_names import graph_name
from hrm_agent.runtime.execution.graph_run import GraphRun, as_state
from hrm_agent.runtime.execution.input_prompt import Asked, asked_by, is_resumption
from hrm_agent.runtime.execution.run_context import (
    GIVEN,
    GIVEN_CONTEXT,
    InvocationNotes,
    given_options,
)
from hrm_agent.runtime.failures import run_failed
from hrm_agent.runtime.recording.observation import (
    Losses,
    MirroredSaver,
    Observation,
    ObservedThread,
)
from hrm_agent.store import RunStore, StoreSaver, open_store
from hrm_agent.tools.external_tools import record_external_tools
from hrm_agent.trajectory import (
    NOT_RECORDED,
    TASK_INPUTS,
    Recording,
    RunStatus,
    StopReason,
    TaskRef,
    Trajectory,
    TurnEnd,
    content_hash,
    recording,
)

__all__ = ["Invocation", "Recorder"]

Graph = Pregel[Any, Any, Any, Any]


class Invocation:
    """Record of one run of a root graph. Only its first end counts. Its methods do not raise."""

    def __init__(
        self,
        graph: Graph,
        config: RunnableConfig,
        store: RunStore,
        record: Trajectory,
        holds: ExitStack,
        losses: Losses,
        on_end: Callable[[Invocation], None],
    ) -> None:
        self.graph, self.config = graph, config
        """Graph, and the config that it is given."""
        self.record = record
        self._store = store
        self._holds = holds
        self._losses = losses
        self._on_end = on_end
        self._calls = Observation(store.journal, record.thread_id, losses, self._answered_by)
        self._calls.agent = agent_of(graph)
        self._lock = threading.Lock()
        self._over = False

    def in_force(self) -> AbstractContextManager[Recording]:
        """Apply the recording to a step of the graph: model and tool calls inside it are
        recorded.
        """
        return recording(self._calls)

    def _answered_by(self, model: str) -> None:
        """Set the record's policy to the model that answered, at its first answer."""
        if not self.record.policy and not self._losses.store_is_away:
            self._write(self.record.model_copy(update={"policy": model}))

    # the state at the end

    @property
    def place(self) -> RunnableConfig | None:
        """Config for reading the graph's state (None if it has no checkpointer)."""
        if self.graph.checkpointer is False:
            return None
        named = self.config.get("configurable", {})
        kept = {name: value for name, value in named.items() if not name.startswith("checkpoint_")}
        return {"configurable": kept}

    def finished(self, snapshot: StateSnapshot | None) -> None:
        """Record that the graph ended by itself, at `snapshot`."""
        values: Any = snapshot.values if snapshot is not None else {}
        end = GraphRun(self.graph, self.config, None, lambda: None, self.record).outcome(
            as_state(values)
        )
        if snapshot is not None and (snapshot.interrupts or snapshot.next):
            waits = {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.INTERRUPT}
            end = end.model_copy(update=waits)
        self.end(end)

    def failed(self, error: BaseException) -> None:
        """Record that the graph raised `error`, or was cancelled."""
        if isinstance(error, GraphRecursionError):
            self.end(TurnEnd(status=RunStatus.TRUNCATED, stop_reason=StopReason.RECURSION_LIMIT))
        elif isinstance(error, Exception):
            self.end(run_failed(error))
        else:
            self.end(ABORTED)

    def end(self, ended: TurnEnd) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        models = self._calls.models
        changes = ended.model_dump() | {"ended_at": max(time.time(), self.record.started_at)}
        if models and not self.record.turns:
            changes["policy"] = models.most_common(1)[0][0]
        if self._losses.first is not None:
            task = self.record.task
            metadata = {**task.metadata, NOT_RECORDED: self._losses.first}
            changes["task"] = task.model_copy(update={"metadata": metadata})
        self._write(self.record.model_copy(update=changes))
        try:
            with may_block():
                self._holds.close()
        except Exception as error:
            self._losses(error)
        self._on_end(self)

    def _write(self, record: Trajectory) -> None:
        self.record = record
        try:
            with may_block():
                self._store.journal.write_trajectory(record)
        except Exception as error:
            self._losses(error)


_MOST_OF_AN_INPUT = 1 << 16
"""Maximum characters of JSON of a recorded input. The header of a trajectory is read for each list
of runs; the checkpoint has the whole input.
"""
_MOST_AHEAD = 100
"""Maximum number of checkpoints that a thread may have beyond its newest recorded one. A thread
with more counts as another thread.
"""
_log = logging.getLogger("hrm_agent.record")


class OwnThread(NamedTuple):
    """State of a thread in a program's own checkpointer before it is invoked, compared with the
    record.
    """

    saver: BaseCheckpointSaver[Any]
    """The program's checkpointer."""
    newest: CheckpointTuple | None
    """Checkpoint that the invocation begins at (None for a new thread)."""
    missing: Sequence[CheckpointTuple]
    """Unrecorded checkpoints between the newest recorded one and `newest`, oldest first."""
    known_as: str | None
    """Recorded thread that has the earlier checkpoints (None if there is none)."""


class Recorder:
    """Store that is open for recording."""

    def __init__(self, where: str, **options: Any) -> None:
        """Open the store. `options`: as for `open_store`. Raises `StoreError`."""
        self.where = where
        self._options = options
        self.closed = False
        self._lock = threading.Lock()
        self._store: RunStore | None = open_store(where, **options)
        self._of_parent: list[RunStore | None] = []
        """Stores of the parent process, which a forked process must not close."""
        self._under_way = set[Invocation]()
        self._waiting: dict[str, str] = {}
        """Name of a thread in the program -> recorded thread that waits for an answer."""
        self._told = set[str]()
        record_external_models()
        record_external_tools()
        _recorders.add(self)

    def forked(self) -> None:
        """Reset the recorder in a forked process, which opens the store itself when it needs it."""
        self._of_parent.append(self._store)
        self._store = None
        self._lock = threading.Lock()
        self._under_way = set()

    @property
    def store(self) -> RunStore:
        with self._lock:
            if self._store is None:
                self._store = open_store(self.where, **self._options)
            return self._store

    # the program's own checkpointer

    def find_own(self, graph: Graph, config: RunnableConfig | None) -> OwnThread | None:
        """Thread in the graph's own checkpointer (None if there is no checkpointer, or it cannot be
        read).
        """
        try:
            saver, look = self._look(graph, config)
            found = None
            while saver is not None and look is not None:
                found = saver.get_tuple(look.send(found))
        except StopIteration as ended:
            return ended.value
        except Exception as error:  # of a checkpointer that is not ours
            return self.lose(error)
        return None

    async def find_own_async(self, graph: Graph, config: RunnableConfig | None) -> OwnThread | None:
        """Thread in the graph's own checkpointer, read in an event loop (None if there is no
        checkpointer, or it cannot be read).
        """
        try:
            saver, look = self._look(graph, config)
            found = None
            while saver is not None and look is not None:
                found = await saver.aget_tuple(look.send(found))
        except StopIteration as ended:
            return ended.value
        except Exception as error:
            return self.lose(error)
        return None

    def _look(self, graph: Graph, config: RunnableConfig | None) -> tuple[Any, Any]:
        named: dict[str, Any] = (config or {}).get("configurable", {})
        if TASK in named or not (named.get(SAVER) or graph.checkpointer):
            return None, None
        merged = config_in_force(graph.config, config)
        named = merged.get("configurable", {})
        saver = (
            checkpointer_of(graph, merged) if TASK not in named and named.get("thread_id") else None
        )
        if saver is None or (isinstance(saver, StoreSaver) and saver.url == self.store.url):
            return None, None
        return saver, self._find(saver, graph, named)

    def _find(
        self, saver: BaseCheckpointSaver[Any], graph: Graph, named: dict[str, Any]
    ) -> Generator[RunnableConfig, CheckpointTuple | None, OwnThread]:
        """Yield configs of checkpoints, and receive for each the checkpoint of the program's
        checkpointer.
        """
        kept = {
            name: named[name]
            for name in ("thread_id", "checkpoint_ns", "checkpoint_id")
            if named.get(name)
        }
        found = newest = yield {"configurable": kept}
        with may_block():
            begun = self._with_checkpoints(str(named["thread_id"]))
        whole = any(type(channel).__name__ == "DeltaChannel" for channel in graph.channels.values())
        missing = list[CheckpointTuple]()
        while found is not None:
            with may_block():
                known_as = self._holder_of(found.checkpoint["id"], begun)
            if known_as is not None:
                if whole and missing:  # an edit may have written to this one since
                    missing.append(found)
                return OwnThread(saver, newest, missing[::-1], known_as)
            missing.append(found)
            if found.parent_config is None or not (whole or (begun and len(missing) < _MOST_AHEAD)):
                break
            found = yield found.parent_config
        since = missing[::-1] if whole else missing[:1]
        return OwnThread(saver, newest, since, None)

    def _with_checkpoints(self, thread: str) -> list[str]:
        """Recorded threads with checkpoints that the program may have called `thread`."""
        escaped = thread.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        query = "SELECT id FROM threads t WHERE (id = ? OR id LIKE ? ESCAPE ?) AND EXISTS "
        query += "(SELECT 1 FROM checkpoints c WHERE c.thread_id = t.id AND c.ns = ?)"
        with self.store.database.read() as cursor:
            rows = cursor.execute(query, (thread, f"{escaped}#%", "\\", "")).fetchall()
        return [str(name) for (name,) in rows]

    def _holder_of(self, checkpoint_id: str, threads: Sequence[str]) -> str | None:
        query = "SELECT 1 FROM checkpoints WHERE thread_id = ? AND ns = ? AND id = ?"
        with self.store.database.read() as cursor:
            held = (
                name
                for name in threads
                if cursor.execute(query, (name, "", checkpoint_id)).fetchone()
            )
            return next(held, None)

    def begin(
        self,
        graph: Graph,
        given: Any,
        config: RunnableConfig | None,
        context: Any = None,
        own: OwnThread | None = None,
    ) -> Invocation | None:
        """Record an invocation of `graph` (None if it is not a root graph's run, or cannot be
        recorded).
        """
        try:
            merged = config_in_force(graph.config, config)
            if TASK in merged.get("configurable", {}):
                return None
            with may_block():
                invocation = self._begin(graph, given, config, merged, context, own)
        except Exception as error:  # the program continues after any error of the store
            self.lose(error)
            return None
        with self._lock:
            self._under_way.add(invocation)
        return invocation

    def _begin(
        self,
        graph: Graph,
        given: Any,
        config: RunnableConfig | None,
        merged: RunnableConfig,
        context: Any,
        own: OwnThread | None,
    ) -> Invocation:
        named: dict[str, Any] = merged.get("configurable", {})
        thread = str(named.get("thread_id") or "") or time.strftime(
            "recorded-%Y%m%d-%H%M%S-"
        ) + secrets.token_hex(4)
        saver = named.get(SAVER, graph.checkpointer)
        losses = Losses(self.lose)
        with ExitStack() as stack:
            limit = merged.get("recursion_limit")
            # LangGraph's default limit has a type of its own, and is no option of the program.
            beside = given_options(graph, named, context, limit if type(limit) is int else None)
            said = None if context is None else beside.get(GIVEN_CONTEXT, {})
            notes = InvocationNotes(limit, configurable=beside.get(CONFIGURABLE, {}), context=said)
            record = _given(self._record(graph, given, thread, saver, own, stack), beside)
            in_config: RunnableConfig = config or {}
            kept = (
                ObservedThread.of(self.store.checkpointer.allowing(graph), record.thread_id, losses)
                if saver is None or own is not None
                else None
            )
            if kept is not None:
                used = kept if own is None else self._mirrored(own, kept, record.thread_id)
                kept.notes = notes
                in_config = {
                    **in_config,
                    "configurable": {**named, SAVER: used, "thread_id": thread},
                }
            elif isinstance(saver, StoreSaver) and saver.url == self.store.url:
                in_config = {**in_config, "configurable": {**named, SAVER: saver.noting(notes)}}
            self.store.journal.write_trajectory(record)
            return Invocation(
                graph, in_config, self.store, record, stack.pop_all(), losses, self._ended
            )

    def _mirrored(self, own: OwnThread, kept: ObservedThread, thread: str) -> MirroredSaver:
        """Checkpointer that mirrors the program's own. Missing checkpoints are recorded first. If
        the thread began before its record, at least the newest one is recorded.
        """
        missing = own.missing
        if thread != own.known_as:
            missing = own.missing or [found for found in (own.newest,) if found is not None]
            missing = [found._replace(parent_config=None) for found in missing[:1]] + [*missing[1:]]
        for found in missing:
            kept.adopt(found, {})
        if own.newest is not None and own.newest.pending_writes and not missing:
            self._put_lost_writes(own.newest, kept, thread)
        return MirroredSaver(own.saver, kept)

    def _put_lost_writes(self, newest: CheckpointTuple, kept: ObservedThread, thread: str) -> None:
        """Record writes that only the program's checkpointer has, since the process was killed
        after that write and before the recorder's.
        """
        named = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": newest.checkpoint["id"]}
        known = self.store.checkpointer.get_tuple({"configurable": named})
        if known is None:
            return
        on_record = {task for task, _, _ in known.pending_writes or ()}
        lost: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in newest.pending_writes or ():
            if task not in on_record:
                lost.setdefault(task, []).append((channel, value))
        for task, writes in lost.items():
            kept.put_writes(newest.config, writes, task)

    # the trajectory

    def _record(
        self,
        graph: Graph,
        given: Any,
        thread: str,
        saver: Any,
        own: OwnThread | None,
        stack: ExitStack,
    ) -> Trajectory:
        """Trajectory of the invocation, with its thread leased."""
        resumes = is_resumption(given)
        named = self._waiting.get(thread, thread) if resumes and saver is None else thread
        if own is not None:
            named = own.known_as or named
        known = next(iter(self.store.journal.headers("thread_id = ?", (named,))), None)
        if own is not None and own.known_as is None and thread in self._with_checkpoints(thread):
            # another program's thread has this name
            return self._apart(graph, given, thread, saver, stack)
        continues = known is not None and (
            bool(saver) or (resumes and known.stop_reason is StopReason.INTERRUPT)
        )
        if (known is None or continues) and self._is_held(named, stack):
            return (
                self._begun(graph, given, named, saver)
                if known is None
                else self._continued(known, given)
            )
        return self._apart(graph, given, thread, saver, stack)  # in use, or begun afresh

    def _apart(
        self, graph: Graph, given: Any, thread: str, saver: Any, stack: ExitStack
    ) -> Trajectory:
        another = f"{thread}#{secrets.token_hex(4)}"
        stack.enter_context(self.store.lease(another))
        return self._begun(graph, given, another, saver)

    def _is_held(self, thread: str, stack: ExitStack) -> bool:
        with suppress(RunError):
            stack.enter_context(self.store.lease(thread))
            return True
        return False

    def _begun(self, graph: Graph, given: Any, thread: str, saver: Any) -> Trajectory:
        asked = asked_by(given)
        metadata = (
            {} if len(json.dumps(asked.data)) > _MOST_OF_AN_INPUT else {TASK_INPUTS: asked.data}
        )
        if saver is not None:
            metadata[CHECKPOINTER] = type(saver).__name__
        return Trajectory(
            id=content_hash("trajectory", thread)[:16],
            thread_id=thread,
            task=TaskRef(id=thread, family=RECORDED, prompt=asked.prompt, metadata=metadata),
            graph=graph_name(graph),
            policy="",
            started_at=time.time(),
        )

    def _continued(self, known: Trajectory, given: Any) -> Trajectory:
        if is_resumption(given):
            return reopened(known)
        before = ABORTED
        if known.status is RunStatus.RUNNING:  # its process has ended, or its generator was left
            close_tool_calls(self.store.journal, self.store.journal.trajectory(known.id))
        else:
            before = TurnEnd.model_validate(known.model_dump(include=set(TurnEnd.model_fields)))
        return _with_id(with_turn(known, (asked := asked_by(given)).prompt, before), asked)

    # the end

    def _ended(self, invocation: Invocation) -> None:
        record = invocation.record
        name = str(invocation.config.get("configurable", {}).get("thread_id", ""))
        with self._lock:
            self._under_way.discard(invocation)
            if record.stop_reason is StopReason.INTERRUPT:
                self._waiting[name] = record.thread_id
            else:
                self._waiting.pop(name, None)

    def lose(self, error: BaseException) -> None:
        """Log once that something is not recorded."""
        if self.closed:
            return
        said = f"{type(error).__name__}: {text_of(error)}"
        with self._lock:
            if said in self._told or len(self._told) > 100:
                return
            self._told.add(said)
        _log.warning("Not everything is recorded in %s; the program goes on. %s", self.where, said)

    def close(self) -> None:
        """End running invocations as aborted, and close the store."""
        with self._lock:
            left = [*self._under_way]
            store = self._store
        for invocation in left:
            invocation.end(ABORTED)
        try:
            if store is not None:
                store.close()
        except Exception as error:
            self.lose(error)
        self.closed = True


_recorders = WeakSet[Recorder]()


def _in_child() -> None:
    for recorder in [*_recorders]:
        recorder.forked()


os.register_at_fork(after_in_child=_in_child)


def _given(record: Trajectory, beside: Mapping[str, Any]) -> Trajectory:
    """Replace the options of a record by those of the newest invocation, `beside`."""
    kept = {name: value for name, value in record.task.metadata.items() if name not in GIVEN}
    return record.model_copy(
        update={"task": record.task.model_copy(update={"metadata": {**kept, **beside}})}
    )


def _with_id(record: Trajectory, asked: Asked) -> Trajectory:
    """Give the newest turn the id that its message has in the graph's state."""
    if asked.message_id is None:
        return record
    *before, turn = record.turns
    return record.model_copy(
        update={"turns": (*before, turn.model_copy(update={"id": asked.message_id}))}
    )
