"""Credit under which a rollout of many tokens weighs as much as one of few.

Under a mean over tokens a rollout weighs by its number of tokens: one that asks nine models
outweighs one that asks five, though each has one outcome. Here the weights of a rollout with n
trained tokens are scaled by k / n, so that the sum of |weight| over its tokens is k |advantage|. k
is the mean number of trained tokens of a rollout. It makes the mean scale of the batch's tokens 1,
so that the gradient keeps its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hrm_agent.trajectory import Trajectory

__all__ = ["even"]


def even(
    trajectories: Sequence[Trajectory], weight_by_call: Mapping[str, float]
) -> dict[str, float]:
    """Scale the weights. Rollouts without a token to train are ignored."""
    lengths = {
        each.id: length
        for each in trajectories
        if (length := _trained_tokens(each, weight_by_call))
    }
    mean = sum(lengths.values()) / max(1, len(lengths))
    return {
        call.id: weight_by_call[call.id] * (mean / lengths[each.id])
        for each in trajectories
        if each.id in lengths
        for call in each.own_calls
        if call.id in weight_by_call
    }


def _trained_tokens(trajectory: Trajectory, weight_by_call: Mapping[str, float]) -> int:
    calls = (call for call in trajectory.policy_calls if not call.constrained)
    return sum(call.sampled_tokens for call in calls if call.id in weight_by_call)
