"""Checkpointer in memory on which a replay runs and edits are tried. It begins with one stored
checkpoint.

Subgraphs that keep their state between runs (`compile(checkpointer=True)`) begin with their state
at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Interrupt

from hrm_agent.langgraph_format import INTERRUPT, RESUME
from hrm_agent.store import StoreSaver

__all__ = ["ScratchSaver", "StopStepReached"]


class StopStepReached(Exception):  # not an error: the end of the replayed part
    """Raised after the step at which the graph is to stop."""


class ScratchSaver(InMemorySaver):
    """Checkpointer that holds a thread from a stored checkpoint on. It numbers versions as the
    store does, since old and new are compared.
    """

    def __init__(
        self,
        store: StoreSaver,
        start: CheckpointTuple,
        stop_at: int | None,
        memories: Iterable[CheckpointTuple] = (),
    ) -> None:
        """`start`, `memories` of subgraphs: checkpoints that need no ancestors
        (`StateReader.alone`).
        """
        super().__init__(serde=store.serde)
        self._store = store
        self.stop_at: int | None = None
        """Step after which the graph is stopped (None: it ends by itself)."""
        self.unread: list[RunnableConfig] = []
        """Configs of new checkpoints that are not read yet."""
        self._task_paths: dict[str, str] = {}
        thread_id = start.config.get("configurable", {})["thread_id"]
        self._thread = {"thread_id": str(thread_id), "checkpoint_ns": ""}
        for found in (*memories, start):
            namespace = found.config.get("configurable", {}).get("checkpoint_ns", "")
            place: RunnableConfig = {"configurable": {**self._thread, "checkpoint_ns": namespace}}
            self.put(place, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
        self.stop_at = stop_at

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        saved = super().put(config, checkpoint, metadata, new_versions)
        self.unread.append(saved)
        outermost = not config.get("configurable", {}).get("checkpoint_ns")
        if outermost and self.stop_at is not None and metadata.get("step", -1) >= self.stop_at:
            raise StopStepReached
        return saved

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        super().put_writes(config, writes, task_id, task_path)
        if task_path:
            self._task_paths[task_id] = task_path

    def task_path(self, task_id: str) -> str:
        """LangGraph's name of a task that has written; empty if unknown."""
        return self._task_paths.get(task_id, "")

    def get_next_version(self, current: Any, channel: None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._store.get_next_version(current, channel)

    @property
    def thread_id(self) -> str:
        return self._thread["thread_id"]

    @property
    def head(self) -> CheckpointTuple:
        """The newest checkpoint of the outermost graph."""
        found = self.get_tuple({"configurable": self._thread})
        assert found is not None, "the saver begins with a checkpoint"
        return found

    def at(self, step: int) -> CheckpointTuple | None:
        """The newest checkpoint of the outermost graph that a step led to."""
        return next(
            (found for found in self.list({"configurable": self._thread}, filter={"step": step})),
            None,
        )

    def questions(self) -> Iterator[tuple[str, str, str, Interrupt, int]]:
        """Waiting `interrupt()`s as (namespace, checkpoint, task, question, number of answers that
        the task already had).

        A nested question, of a subgraph or of a called task, is also stored with all tasks around
        it. It is answered where it was asked.
        """
        innermost: dict[str, tuple[str, str, str, Interrupt, int]] = {}
        for namespace in self.storage[self._thread["thread_id"]]:
            newest = self.get_tuple({"configurable": {**self._thread, "checkpoint_ns": namespace}})
            writes = (newest.pending_writes or ()) if newest is not None else ()
            for task, channel, asked in writes:
                if newest is None or channel != INTERRUPT:
                    continue
                answered = next((value for t, c, value in writes if (t, c) == (task, RESUME)), [])
                for question in asked:
                    known = innermost.get(question.id)
                    if known is None or self._depth(known[0], known[2]) < self._depth(
                        namespace, task
                    ):
                        innermost[question.id] = (
                            namespace,
                            newest.checkpoint["id"],
                            task,
                            question,
                            len(answered),
                        )
        yield from innermost.values()

    def _depth(self, namespace: str, task_id: str) -> tuple[int, int]:
        """Sort key that is greater for a nested task."""
        return len(namespace), len(self.task_path(task_id))
