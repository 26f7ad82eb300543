"""Record of one invocation of a graph by a program, from its first step to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from hrm_agent.basics.async_bridge import may_block
from hrm_agent.runtime.execution.conversation import ABORTED
from hrm_agent.runtime.execution.graph_run import GraphRun, as_state
from hrm_agent.runtime.failures import run_failed
from hrm_agent.runtime.recording.observation import Losses, Observation
from hrm_agent.store import RunStore
from hrm_agent.trajectory import (
    NOT_RECORDED,
    Recording,
    RunStatus,
    StopReason,
    Trajectory,
    TurnEnd,
    recording,
)

__all__ = ["Invocation"]

Graph = Pregel[Any, Any, Any, Any]


class Invocation:
    """Record of one root graph's run. It ends once. Its methods do not raise."""

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
        self._store, self._holds, self._losses, self._on_end = store, holds, losses, on_end
        self._calls = Observation(store.journal, record.thread_id, losses, self._answered_by)
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

    # state at its end

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
        self.end(self._ended_at(snapshot))

    def _ended_at(self, snapshot: StateSnapshot | None) -> TurnEnd:
        values: Any = snapshot.values if snapshot is not None else {}
        end = GraphRun(self.graph, self.config, None, lambda: None, self.record).outcome(
            as_state(values)
        )
        if snapshot is not None and (snapshot.interrupts or snapshot.next):
            waits = {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.INTERRUPT}
            return end.model_copy(update=waits)
        return end

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
