"""Policy of graphs that may hold models of their own: loaded when a node asks for it, and named by
the model that answered.

A graph of this package always asks the policy. So the policy is loaded first, and its errors are
reported before anything is written. Another graph may never ask it. For such a graph, if the user
names no policy, the default policy is loaded at the first call of `policy()`, once for all callers.
A graph with a hosted model never calls `policy()`, and needs no weights and no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hrm_agent.models import DEFAULT_POLICY, Backend, load_policy
from hrm_agent.runtime.execution.loading import BUILTIN_GRAPHS
from hrm_agent.trajectory import BranchReason, Call, Trajectory

__all__ = ["model_that_answered", "policy_for", "policy_of_record"]


def policy_for(policy: str, *graphs: Any, stand_in: bool = False) -> Backend | str:
    """Loaded policy. For the default policy, only its name is returned if no graph is built in and
    `stand_in` is off. Raises `ModelError`.
    """
    may_not_ask = policy == DEFAULT_POLICY and not stand_in
    return (
        policy
        if may_not_ask and not any(graph in BUILTIN_GRAPHS for graph in graphs)
        else load_policy(policy)
    )


def model_that_answered(calls: Sequence[Call], policy: str) -> str:
    """Name of the policy if it answered any call; else the model that answered most calls; empty if
    there are no calls.
    """
    models = Counter(call.model for call in calls)
    return policy if policy in models else next((name for name, _ in models.most_common(1)), "")


def policy_of_record(trajectory: Trajectory) -> str:
    """Policy that a run is continued with: the default one if the graph's own models answered."""
    own = {call.model for call in trajectory.calls if call.branch_reason is BranchReason.NO_TOKENS}
    return (
        DEFAULT_POLICY if not trajectory.policy or trajectory.policy in own else trajectory.policy
    )
