"""GRPO: rewards less the mean of their group, over its standard deviation.

    A_i = (R_i - mean R) / (std R + eps)

with the unbiased standard deviation (rStar2-Agent, section 2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["grpo", "normalised"]


def grpo(reward_by_group: Sequence[Sequence[float]], eps: float) -> list[list[float]]:
    """Advantages of GRPO: `normalised` rewards of each group."""
    return [normalised(reward_G, eps) for reward_G in reward_by_group]


def normalised(reward_G: Sequence[float], eps: float = 1e-6) -> list[float]:
    """Rewards less their mean, over their unbiased standard deviation plus `eps` (zeros for fewer
    than two).
    """
    if len(reward_G) < 2:
        return [0.0] * len(reward_G)
    mean = statistics.fmean(reward_G)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in reward_G) / (len(reward_G) - 1))
    return [(reward - mean) / (std + eps) for reward in reward_G]
