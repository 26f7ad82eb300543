"""Group-relative advantages, and how they are credited to the calls of a trajectory.

    A_i = (R_i - mean R) / (std R + eps)

over the rollouts of a group that were *kept*, with the unbiased standard deviation (rStar2-Agent, section 2). Taking
the statistics after the selection is the paper's choice: the baseline belongs to the rollouts that are trained on.

A graph has several roles and makes many calls, an outcome is one number. `whole_trajectory` gives every call the
trajectory's advantage, the assumption of GRPO: with one number for a whole run nothing better is known. A `Credit` that
tells roles apart has the same interface, because a `Call` names its node.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from hrm_agent.trajectory import Overlay, Trajectory, Verdict

__all__ = ["Credit", "group_advantages", "normalised", "whole_trajectory"]

Credit = Callable[[Trajectory, float], Mapping[str, float]]
"""(trajectory, its advantage) -> advantage by call id. A call that is not in the mapping is not trained on."""


def normalised(reward_G: Sequence[float], eps: float = 1e-6) -> list[float]:
    """Rewards less their mean, over their unbiased standard deviation plus `eps`; zeros for fewer than two."""
    if len(reward_G) < 2:
        return [0.0] * len(reward_G)
    mean = statistics.fmean(reward_G)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in reward_G) / (len(reward_G) - 1))
    return [(reward - mean) / (std + eps) for reward in reward_G]


def group_advantages(overlays: Iterable[Overlay], eps: float = 1e-6) -> list[Overlay]:
    """The overlays, in their order, with the advantages of those kept; groups are told apart by `group_id`."""
    judged = list(overlays)
    kept: dict[str, list[int]] = defaultdict(list)
    for index, overlay in enumerate(judged):
        if overlay.verdict is Verdict.KEPT:
            kept[overlay.group_id].append(index)
    for indices in kept.values():
        advantages = normalised([judged[i].reward for i in indices], eps)
        for index, advantage in zip(indices, advantages, strict=True):
            judged[index] = judged[index].model_copy(update={"advantage": advantage})
    return judged


def whole_trajectory(trajectory: Trajectory, advantage: float) -> dict[str, float]:
    """Every call gets the trajectory's advantage; what a fork inherited is the business of the run that made it."""
    return {call.id: advantage for call in trajectory.own_calls}
