"""One run of a graph that is asked for: its task, its thread, and what it is given beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.runtime.execution.conversation import CONFIGURABLE
from hrm_agent.runtime.execution.graph_names import graph_name
from hrm_agent.trajectory import ForkRef, TaskRef, Trajectory, content_hash

__all__ = ["Episode"]


@dataclass(frozen=True, slots=True)
class Episode:
    """One run that is asked for. Its `thread_id` is its identity: the same thread is never run
    twice.
    """

    task: TaskRef
    """The task that the graph is given."""
    thread_id: str
    """LangGraph's thread, which the trajectory's id is made from."""
    graph: Any = "tool_loop"
    """A built-in graph by name, or `package.module:attribute`, or `./file.py:attribute`; or a
    graph, a `StateGraph`, or a factory itself.
    """
    run_id: str = ""
    """The collect, eval or training run that asks for it; empty for a single run."""
    group_id: str = ""
    """Shared by the rollouts of one task in one step; empty outside of groups."""
    sample_index: int = 0
    """Index within the group, from 0."""
    seed: int | None = None
    """Base of the seeds of all model calls; None draws them from the system."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """LangGraph's run context: the graph's budgets and options."""
    unrecorded: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    """Secret options, by `configurable` and `context`: given to the graph and not recorded."""
    verify: Callable[[str], float] | None = None
    """Scores the final text, in this process; the reward is stored as `correct`."""
    verify_run: Callable[[Trajectory], float] | None = None
    """Scores the whole run in place of its final text."""

    @property
    def graph_name(self) -> str:
        """By which the record names the graph."""
        return self.graph if isinstance(self.graph, str) else graph_name(self.graph)

    @property
    def configurable(self) -> dict[str, Any]:
        """`config["configurable"]` of the run: its context, as LangGraph's platform gives it to
        graphs that read it there, then what the task's options name, then the thread.
        """
        named = self.task.metadata.get(CONFIGURABLE, {})
        return {
            **self.context,
            **named,
            **self.unrecorded.get(CONFIGURABLE, {}),
            "thread_id": self.thread_id,
        }

    @property
    def trajectory_id(self) -> str:
        return content_hash("trajectory", self.thread_id)[:16]

    def begun(
        self, policy: str, policy_version: int = 0, forked_from: ForkRef | None = None
    ) -> Trajectory:
        """Its trajectory before it has run, from now on."""
        return Trajectory(
            id=self.trajectory_id,
            thread_id=self.thread_id,
            run_id=self.run_id,
            group_id=self.group_id,
            sample_index=self.sample_index,
            task=self.task,
            graph=self.graph_name,
            policy=policy,
            policy_version=policy_version,
            forked_from=forked_from,
            started_at=time.time(),
        )
