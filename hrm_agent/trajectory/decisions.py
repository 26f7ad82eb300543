"""Decisions of a run: the steps of its graph in which a model was asked.

A run can be forked before each decision, at the checkpoint from which the step began. Decisions
follow from the record alone, so that no checkpoint is read to find them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.trajectory import Call, Trajectory

__all__ = ["Decision", "decisions"]


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
