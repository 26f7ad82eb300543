"""Correspondence of the ids of a replay and the recorded ones, learned from its checkpoints while
it runs.

A recorded answer can hold ids of the state that it was given (a tool that hands over to another
agent returns all messages). It must be returned with the current ids of these messages, or
LangGraph takes them for new ones. So before each answer is returned, the checkpoints that the
replay has made since the last answer, including those of subgraphs, are compared with the recorded
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import takewhile

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.runtime.execution.loading import Graph
from hrm_agent.runtime.replay.checkpoint_diff import state_changes
from hrm_agent.runtime.replay.renaming import Renaming
from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver
from hrm_agent.runtime.state import StateReader
from hrm_agent.runtime.time_travel.scratch_saver import ScratchSaver
from hrm_agent.store import StoreSaver

__all__ = ["RecordedStates", "learner", "root_of"]


class RecordedStates:
    """Checkpoints that led to the end of a thread, those of subgraphs included, by their place."""

    def __init__(
        self,
        saver: StoreSaver,
        line: Sequence[CheckpointTuple],
        places: TaskPathResolver,
        graph: Graph,
    ) -> None:
        self._saver = saver
        self._line = line
        self._places = places
        self._graph = graph

    @cached_property
    def reader(self) -> StateReader:
        """Reader of the checkpoints' states."""
        return StateReader(self._saver, self._graph, (*self._within, *self._line))

    @cached_property
    def by_place(self) -> dict[TaskPath, CheckpointTuple]:
        """Checkpoints with the values of all channels; the newest if several share a place."""
        found = (*self._within[::-1], *self._line)
        return {self._places.of_checkpoint(each): self.reader.complete(each) for each in found}

    def memories(self, until: CheckpointTuple) -> list[CheckpointTuple]:
        """Newest checkpoints of the subgraphs that keep their state between runs, from before the
        checkpoint `until`.
        """
        before = {
            found.checkpoint["id"]
            for found in takewhile(lambda found: found is not until, self._line)
        }
        newest: dict[str, CheckpointTuple] = {}
        for found in self._within:
            namespace = _configured(found, "checkpoint_ns")
            if root_of(found) in before and not any(
                part.task_id for part in namespace_parts(namespace)
            ):
                newest.setdefault(namespace, self.reader.alone(found))
        return [*newest.values()]

    @cached_property
    def _within(self) -> list[CheckpointTuple]:
        """Checkpoints of subgraphs, newest first."""
        roots = {found.checkpoint["id"] for found in self._line}
        thread: RunnableConfig = {
            "configurable": {"thread_id": _configured(self._line[0], "thread_id")}
        }
        inner = (found for found in self._saver.list(thread) if _configured(found, "checkpoint_ns"))
        return [found for found in inner if root_of(found) in roots]


def root_of(found: CheckpointTuple) -> str | None:
    """Id of the outermost graph's checkpoint whose step contains a subgraph's checkpoint."""
    return found.metadata.get("parents", {}).get("")


def learner(
    recorded: RecordedStates,
    scratch: ScratchSaver,
    now: StateReader,
    paths: TaskPathResolver,
    renaming: Renaming,
) -> Callable[[], None]:
    """Return a function that learns from the checkpoints made since its last call. `now` reads
    their states.
    """

    def learn() -> None:
        for found in _fresh(scratch):
            there = recorded.by_place.get(paths.of_checkpoint(found))
            if there is not None:
                state_changes(scratch.serde, there, now.complete(found), renaming.learn)

    return learn


def _fresh(scratch: ScratchSaver) -> Iterable[CheckpointTuple]:
    while scratch.unread:
        found = scratch.get_tuple(scratch.unread.pop(0))
        if found is not None:
            yield found


def _configured(found: CheckpointTuple, name: str) -> str:
    return str(found.config.get("configurable", {}).get(name, ""))
