"""Advantages of rollouts (`by_group`), and the credit of a rollout's calls (`credit_by_name`): two
registries.

An *estimator* turns the rewards of a group into a number for each kept rollout. A *credit* turns
this number into a weight for each call, so that the calls of several roles may learn different
things from one outcome.
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
