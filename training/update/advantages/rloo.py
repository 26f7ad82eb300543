"""RLOO: rewards less the mean of the *other* rollouts of their group (Ahmadian et al., arXiv
2402.14740).

    A_i = R_i - sum of R_j over j != i / (n - 1)

The baseline of a rollout does not contain its own reward, so the estimate of the gradient is
unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["rloo"]


def rloo(reward_by_group: Sequence[Sequence[float]], eps: float) -> list[list[float]]:
    """Rewards, each less the mean of the others in its group (zero for a single one). `eps` is
    unused.
    """
    del eps
    return [_leave_one_out(reward_G) for reward_G in reward_by_group]


def _leave_one_out(reward_G: Sequence[float]) -> list[float]:
    if len(reward_G) < 2:
        return [0.0] * len(reward_G)
    total, others = math.fsum(reward_G), len(reward_G) - 1
    return [reward - (total - reward) / others for reward in reward_G]
