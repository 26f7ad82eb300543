"""REINFORCE++ with a baseline: rewards less the mean of their group, normalised over the whole
batch.

    B_i = R_i - mean of R over its group,      A_i = (B_i - mean B) / (std B + eps)

Of the two variants of Hu et al. (arXiv 2501.03262) this is *REINFORCE++-baseline*, the one for
several rollouts of a prompt. Mean and unbiased deviation are over all kept rollouts of the step,
each counted once however long it is. So a group whose rewards hardly differ keeps small advantages,
where GRPO would blow them up.
"""

from __future__ import annotations

from collections.abc import Sequence

from hrm_agent.training.update.advantages.dr_grpo import centred
from hrm_agent.training.update.advantages.grpo import normalised

__all__ = ["reinforce_plus_plus"]


def reinforce_plus_plus(
    reward_by_group: Sequence[Sequence[float]], eps: float
) -> list[list[float]]:
    """Advantages of REINFORCE++: rewards centred in each group, then normalised over all groups
    together.
    """
    groups = [centred(reward_G) for reward_G in reward_by_group]
    advantages = iter(normalised([each for group in groups for each in group], eps))
    return [[next(advantages) for _ in group] for group in groups]
