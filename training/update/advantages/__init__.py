"""Advantages of rollouts (`by_group`), and the credit of a rollout's calls (`credit_by_name`): two
registries.

An *estimator* makes a number for each kept rollout of the rewards of its group. A *credit* makes of
it a weight for each call: by it the calls of several roles may learn different things of one
outcome.
"""

from __future__ import annotations

from hrm_agent.training.update.advantages.credit import (
    CREDITS,
    Credit,
    as_recorded,
    credit_by_name,
    credited,
)
from hrm_agent.training.update.advantages.estimators import (
    ADVANTAGES,
    Estimator,
    by_group,
    estimator_by_name,
    group_advantages,
)
from hrm_agent.training.update.advantages.grpo import normalised
from hrm_agent.training.update.advantages.whole_trajectory import whole_trajectory

__all__ = [
    "ADVANTAGES",
    "CREDITS",
    "Credit",
    "Estimator",
    "as_recorded",
    "by_group",
    "credit_by_name",
    "credited",
    "estimator_by_name",
    "group_advantages",
    "normalised",
    "whole_trajectory",
]
