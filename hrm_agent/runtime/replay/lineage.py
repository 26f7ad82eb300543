"""Checkpoints that led to the newest one of a thread, in segments; and those that a fork
inherited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from hrm_agent.errors import RunError
from hrm_agent.langgraph_format import INTERRUPT
from hrm_agent.runtime.execution.conversation import kept_elsewhere
from hrm_agent.runtime.execution.run_context import STEPS
from hrm_agent.store import RunStore, StoreSaver
from hrm_agent.trajectory import Trajectory

__all__ = ["Segment", "inherited_steps", "lineage", "step_of"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a lineage: an input, edit or fork, and the checkpoints that followed it."""

    checkpoints: Sequence[CheckpointTuple]
    """Checkpoints in order: the input, edit or fork first, then those of the steps after it."""
    last: bool
    """True if the trajectory ends with this segment."""
    finished: bool
    """True if the run had no tasks left at its end."""

    @property
    def start(self) -> CheckpointTuple:
        return self.checkpoints[0]

    @property
    def end(self) -> CheckpointTuple:
        return self.checkpoints[-1]

    def steps_after(self, step: int) -> tuple[int | None, int] | None:
        """Recursion limit (None: the default) and last allowed step of the invocation that
        continued after `step`.

        None if they are not recorded.
        """
        later = (found for found in self.checkpoints if step_of(found) > step)
        noted: Any = next(later, self.end).metadata.get(STEPS)
        return None if noted is None else (noted[0], noted[1])

    def resumed_after(self, step: int) -> int | None:
        """Number of the next step, beyond `step`, that was the last one of its invocation (None if
        there is none).

        Steps that ended with a question are left out, since the graph stops there by itself.
        """
        for found, then in pairwise(self.checkpoints):
            both = (found.metadata.get(STEPS), then.metadata.get(STEPS))
            asked = any(channel == INTERRUPT for _, channel, _ in found.pending_writes or ())
            if step_of(found) > step and None not in both and both[0] != both[1] and not asked:
                return step_of(found)
        return None


def lineage(saver: StoreSaver, trajectory: Trajectory) -> list[CheckpointTuple]:
    """Checkpoints of the outermost graph from the first to the newest, along the parents. Raises
    `RunError` if there are none.
    """
    thread_id = trajectory.thread_id
    config: RunnableConfig | None = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    line = list[CheckpointTuple]()
    while config is not None and (found := saver.get_tuple(config)) is not None:
        line.append(found)
        config = found.parent_config
    if not line:
        none = RunError(f"Thread {thread_id!r} has no checkpoints.", "A replay needs them.")
        raise kept_elsewhere(trajectory) or none
    return line[::-1]


def inherited_steps(
    store: RunStore, fork: Trajectory, line: Sequence[CheckpointTuple]
) -> list[tuple[int, str]]:
    """Threads that a fork descends from, oldest first, each with the number of its last step on
    this line.
    """
    numbers = {found.checkpoint["id"]: step_of(found) for found in line}
    found: list[tuple[int, str]] = []
    while fork.forked_from is not None:
        last = numbers.get(fork.forked_from.checkpoint_id)
        origins = store.journal.headers("id = ?", (fork.forked_from.trajectory_id,))
        if last is None or not origins:
            break
        fork = origins[0]
        found.append((last, fork.thread_id))
    return found[::-1]


def step_of(found: CheckpointTuple) -> int:
    """LangGraph's number of the step that led to a checkpoint."""
    return found.metadata.get("step", -1)
