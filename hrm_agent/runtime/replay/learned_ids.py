"""Which ids of a replay stand for which on record, as far as its checkpoints tell: learned while it runs.

A recorded answer can hold ids of the state that it was given (a tool that hands over to another agent returns all
messages). It has to be given out with the ids that these messages have now, or LangGraph takes them for new ones. So
before an answer is given out, the checkpoints that the replay has made since are held against those on record, of
subgraphs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from hrm_agent.runtime.replay.checkpoint_diff import state_changes
from hrm_agent.runtime.replay.renaming import Renaming
from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver
from hrm_agent.runtime.time_travel.scratch_saver import ScratchSaver
from hrm_agent.store import StoreSaver

__all__ = ["RecordedStates", "learner"]


class RecordedStates:
    """The checkpoints that led to the end of a thread, those of subgraphs included, by their place."""

    def __init__(self, saver: StoreSaver, line: Sequence[CheckpointTuple], places: TaskPathResolver) -> None:
        self._saver, self._line, self._places = saver, line, places

    @cached_property
    def by_place(self) -> dict[TaskPath, CheckpointTuple]:
        """Of several at one place, the newest."""
        roots = {found.checkpoint["id"] for found in self._line}
        thread: RunnableConfig = {"configurable": {"thread_id": _configured(self._line[0], "thread_id")}}
        inner = (found for found in self._saver.list(thread) if _configured(found, "checkpoint_ns"))
        within = [found for found in inner if found.metadata.get("parents", {}).get("") in roots]
        return {self._places.of_checkpoint(found): found for found in (*within[::-1], *self._line)}


def learner(
    recorded: RecordedStates, scratch: ScratchSaver, paths: TaskPathResolver, renaming: Renaming
) -> Callable[[], None]:
    """Call it to learn from the checkpoints that were made since the last time."""

    def learn() -> None:
        for found in _fresh(scratch):
            there = recorded.by_place.get(paths.of_checkpoint(found))
            if there is not None:
                state_changes(scratch.serde, there, found, renaming.learn)

    return learn


def _fresh(scratch: ScratchSaver) -> Iterable[CheckpointTuple]:
    while scratch.unread:
        found = scratch.get_tuple(scratch.unread.pop(0))
        if found is not None:
            yield found


def _configured(found: CheckpointTuple, name: str) -> str:
    return str(found.config.get("configurable", {}).get(name, ""))
