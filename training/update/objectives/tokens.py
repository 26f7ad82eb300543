"""Inputs of an objective: the trained tokens of one micro-batch, and their number in the whole
step.
"""

# Field names contain shapes, too.
# ruff: noqa: N815

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Counts", "PerToken", "TrainedTokens", "sum_by_sequence"]


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """Trained tokens of one micro-batch. All log-probs are at the temperature of sampling."""

    logprobs_K: Float[Tensor, " K"]
    """Log-probs of the trained policy, with a gradient."""
    old_logprobs_K: Float[Tensor, " K"]
    """Log-probs in the denominator of the ratio."""
    weights_K: Float[Tensor, " K"]
    """Advantage times credit."""
    sequences_K: Int[Tensor, " K"]
    """Number of each token's trajectory within the step."""
    lengths_K: Float[Tensor, " K"]
    """Number of trained tokens of that trajectory in the step."""
    sequence_log_ratios_K: Float[Tensor, " K"] | None = None
    """Mean log ratio of each token's trajectory, without gradient (None if each trajectory is
    complete in this micro-batch).
    """
    corrections_K: Float[Tensor, " K"] | None = None
    """Factors of the loss that correct for the distribution that sampled the tokens (None: 1)."""
    reference_logprobs_K: Float[Tensor, " K"] | None = None
    """Log-probs of the reference policy (None if there is none)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one optimiser step over all ranks, divided by the number of ranks, since gradients
    are averaged over these.
    """

    tokens: float
    """Number of trained tokens."""
    sequences: float
    """Number of trajectories with trained tokens. One that is split over several optimiser steps
    counts by its share.
    """


@dataclass(frozen=True, slots=True)
class PerToken:
    """Result of an objective for each token."""

    loss_K: Float[Tensor, " K"]
    """Loss to minimise."""
    ratios_K: Float[Tensor, " K"]
    """Probability ratio to the old policy, before clipping."""
    clipped_low_K: Tensor
    """True if the lower bound removed the gradient."""
    clipped_high_K: Tensor
    """True if the upper bound removed the gradient, or some of it."""


def sum_by_sequence(
    values_K: Float[Tensor, " K"], sequences_K: Int[Tensor, " K"]
) -> Float[Tensor, " K"]:
    """Sum over all tokens of each token's sequence."""
    numbers, inverse_K = torch.unique(sequences_K, return_inverse=True)
    sums = values_K.new_zeros(len(numbers)).index_add(0, inverse_K, values_K)
    return sums[inverse_K]
