"""Dr. GRPO: rewards less the mean of their group, and no more (Liu et al., arXiv 2503.20783).

    A_i = R_i - mean R

Divided by the deviation, a group that is almost always right or almost always wrong weighs more
than one in between.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["centred", "dr_grpo"]


def dr_grpo(reward_by_group: Sequence[Sequence[float]], eps: float) -> list[list[float]]:
    """Advantages of Dr. GRPO: `centred` rewards of each group. `eps` is unused."""
    del eps
    return [centred(reward_G) for reward_G in reward_by_group]


def centred(reward_G: Sequence[float]) -> list[float]:
    """Rewards less their mean (zero for a single one)."""
    if not reward_G:
        return []
    mean = statistics.fmean(reward_G)
    return [reward - mean for reward in reward_G]
