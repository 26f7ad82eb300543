"""Request for one run of a graph: its task, its thread, and its options."""

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
    """Request for one run. Its `thread_id` is its identity: the same thread is never run twice."""

    task: TaskRef
    """Task for the graph."""
    thread_id: str
    """LangGraph's thread, from which the trajectory's id is made."""
    graph: Any = "tool_loop"
    """Built-in graph by name, `package.module:attribute`, or `./file.py:attribute`; or a graph, a
    `StateGraph`, or a factory itself.
    """
    run_id: str = ""
    """Id of the collect, eval or training run of the episode; empty for a single run."""
    group_id: str = ""
    """Id shared by the rollouts of one task in one step; empty outside of groups."""
    sample_index: int = 0
    """Index within the group, from 0."""
    seed: int | None = None
    """Base of the seeds of all model calls (None: drawn from the system)."""
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """LangGraph's run context: the graph's budgets and options."""
    unrecorded: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )
    """Secret options, by `configurable` and `context`: passed to the graph and not recorded."""
    verify: Callable[[str], float] | None = None
    """Verifier of the final text, in this process. Its reward is stored as `correct`."""
    verify_run: Callable[[Trajectory], float] | None = None
    """Verifier of the whole run, in place of `verify`."""

    @property
    def graph_name(self) -> str:
        """Name of the graph in the record."""
        return self.graph if isinstance(self.graph, str) else graph_name(self.graph)

    @property
    def configurable(self) -> dict[str, Any]:
        """`config["configurable"]` of the run. Its context comes first, as LangGraph's platform
        passes it to graphs that read it there. The task's options and secret options override it,
        then the thread is set.
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
        """Trajectory of the episode before it has run. It starts now."""
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
