"""Decisions of a run: the steps of its graph in which a model was asked, and the forks by which
`hrm-agent blame` values the moments before them.

A run can be forked before each decision, at the checkpoint from which the step began. Decisions
follow from the record alone, so that no checkpoint is read to find them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.trajectory import Call, Trajectory

__all__ = ["Decision", "blame_run_id", "decisions", "made_by_blame"]

_BLAME = "blame"


@dataclass(frozen=True, slots=True)
class Decision:
    """Step of a graph that asked a model."""

    checkpoint_id: str
    """Checkpoint of the outermost graph from which the step began."""
    calls: list[Call] = field(default_factory=list[Call])
    """Model calls of the step, including those in subgraphs."""

    @property
    def nodes(self) -> str:
        """Nodes that asked, with their number of tasks, as in `solve x2`."""
        tasks = {namespace_parts(call.identity.checkpoint_ns)[:1]: call for call in self.calls}
        counts = Counter(call.identity.role for call in tasks.values())
        return ", ".join(f"{node} x{n}" if n > 1 else node for node, n in sorted(counts.items()))


def decisions(trajectory: Trajectory) -> list[Decision]:
    """Decisions of a run in their order, those that a fork inherited included. Calls outside of a
    checkpointed graph belong to none.
    """
    found: dict[str, Decision] = {}
    for call in trajectory.calls:
        if start := call.identity.step:
            found.setdefault(start, Decision(start)).calls.append(call)
    return list(found.values())


def blame_run_id(run_id: str) -> str:
    """Id of the run under which the forks of a run's moments are recorded."""
    return f"{run_id}/{_BLAME}" if run_id else _BLAME


def made_by_blame(trajectory: Trajectory) -> bool:
    """True for a fork that values a moment. A person's run may be called `blame`, too."""
    named = trajectory.run_id == _BLAME or trajectory.run_id.endswith(f"/{_BLAME}")
    return named and trajectory.forked_from is not None
