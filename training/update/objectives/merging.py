"""Metrics of micro-batches with one denominator, and of a whole batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hrm_agent.training.update.objectives.tokens import PerToken

__all__ = ["LARGEST", "means", "merge_metrics"]

LARGEST = "ratio_max"
"""Metric that is a maximum. All others are shares of means."""


def means(
    found: PerToken, logprobs_K: Tensor, old_logprobs_K: Tensor, tokens: float
) -> dict[str, Tensor]:
    """Shares of the means over all `tokens` of the batch, except `ratio_max`.

    `kl_k3` estimates KL(old, new) from samples of the old policy: under it the mean of r - 1 is 0
    and that of -log r the divergence, and no summand is negative.
    """
    with torch.no_grad():
        log_ratio_K = logprobs_K - old_logprobs_K
        summed = {
            "clip_fraction_low": found.clipped_low_K,
            "clip_fraction_high": found.clipped_high_K,
            "kl_k3": log_ratio_K.exp() - 1 - log_ratio_K,
            "entropy_estimate": -logprobs_K,
        }
        metrics = {name: values_K.sum() / tokens for name, values_K in summed.items()}
        ratios_K = found.ratios_K
        metrics[LARGEST] = ratios_K.max() if len(ratios_K) else ratios_K.new_tensor(-math.inf)
        return metrics


def merge_metrics(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Metrics of a batch from those of its micro-batches, which share one denominator: sums, except
    the maximum of `ratio_max`.
    """
    joined = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return {
        name: values.max() if name == LARGEST else values.sum() for name, values in joined.items()
    }
