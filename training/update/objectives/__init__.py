"""Objectives of the training: losses by token, their aggregation to one number, and optional terms.

`OBJECTIVES` by name: clipped (GRPO, DAPO), cispo, gspo. `policy_loss` computes the complete loss of
one micro-batch.
"""

from __future__ import annotations

from hrm_agent.training.update.objectives.clipped import clipped_surrogate
from hrm_agent.training.update.objectives.merging import merge_metrics
from hrm_agent.training.update.objectives.options import LossOptions
from hrm_agent.training.update.objectives.policy_loss import OBJECTIVES, policy_loss
from hrm_agent.training.update.objectives.tokens import Counts, TrainedTokens

__all__ = [
    "OBJECTIVES",
    "Counts",
    "LossOptions",
    "TrainedTokens",
    "clipped_surrogate",
    "merge_metrics",
    "policy_loss",
]
