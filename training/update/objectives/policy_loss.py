"""Loss of one micro-batch: the objective of each token, corrected, with the divergence added, and
aggregated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from hrm_agent.training.update.objectives.aggregation import aggregate
from hrm_agent.training.update.objectives.cispo import cispo
from hrm_agent.training.update.objectives.clipped import clipped
from hrm_agent.training.update.objectives.gspo import gspo
from hrm_agent.training.update.objectives.merging import means
from hrm_agent.training.update.objectives.options import LossOptions
from hrm_agent.training.update.objectives.reference_kl import k3
from hrm_agent.training.update.objectives.tokens import Counts, PerToken, TrainedTokens

__all__ = ["OBJECTIVES", "Objective", "policy_loss"]

Objective = Callable[[TrainedTokens, LossOptions], PerToken]
"""Function (trained tokens, options) -> loss of each."""

OBJECTIVES: dict[str, Objective] = {"clipped": clipped, "cispo": cispo, "gspo": gspo}
"""Objectives by the name that a user gives."""


def policy_loss(
    tokens: TrainedTokens, counts: Counts, options: LossOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Share of the loss of this micro-batch, and metrics to be joined by `merge_metrics`.

    `kl_reference` is nan without a reference policy.
    """
    found = OBJECTIVES[options.objective](tokens, options)
    loss_K = found.loss_K
    if tokens.corrections_K is not None:
        loss_K = loss_K * tokens.corrections_K
    divergence = loss_K.new_tensor(math.nan)
    if tokens.reference_logprobs_K is not None:
        divergence_K = k3(tokens.logprobs_K, tokens.reference_logprobs_K)
        loss_K = loss_K + options.kl_coef * divergence_K
        divergence = divergence_K.detach().sum() / counts.tokens
    loss = aggregate(loss_K, tokens.lengths_K, counts, options)
    by_token = means(found, tokens.logprobs_K, tokens.old_logprobs_K, counts.tokens)
    return loss, {"loss": loss.detach(), **by_token, "kl_reference": divergence}
