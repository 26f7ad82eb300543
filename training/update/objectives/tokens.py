"""What an objective sees: the trained tokens of one micro-batch, and how many there are in the
whole step.
"""

# Shapes stand in the names of fields too.
# ruff: noqa: N815

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Counts", "PerToken", "TrainedTokens", "sum_by_sequence"]


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The trained tokens of one micro-batch. All log-probs are at the temperature of sampling."""

    logprobs_K: Float[Tensor, " K"]
    """Of the policy that is trained, with a gradient."""
    old_logprobs_K: Float[Tensor, " K"]
    """Of the policy that the ratio is to."""
    weights_K: Float[Tensor, " K"]
    """Advantage times credit."""
    sequences_K: Int[Tensor, " K"]
    """Number of each token's trajectory within the step."""
    lengths_K: Float[Tensor, " K"]
    """Trained tokens of that trajectory in the step."""
    sequence_log_ratios_K: Float[Tensor, " K"] | None = None
    """Mean log ratio of each token's trajectory, without gradient; None where each trajectory is
    whole in here.
    """
    corrections_K: Float[Tensor, " K"] | None = None
    """Factors of the loss that correct for whom the tokens were sampled by; None: 1."""
    reference_logprobs_K: Float[Tensor, " K"] | None = None
    """Of the policy that this one is to stay near; None where it need not."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one optimiser step over all ranks, divided by the number of ranks, by which gradients are
    averaged.
    """

    tokens: float
    """Trained tokens."""
    sequences: float
    """Trajectories that have any; one that is split over several optimiser steps counts by its
    share.
    """


@dataclass(frozen=True, slots=True)
class PerToken:
    """What an objective makes of each token."""

    loss_K: Float[Tensor, " K"]
    """To be minimised."""
    ratios_K: Float[Tensor, " K"]
    """Probability ratio to the old policy, before clipping."""
    clipped_low_K: Tensor
    """True where the lower bound took the gradient away."""
    clipped_high_K: Tensor
    """True where the upper bound took the gradient away, or some of it."""


def sum_by_sequence(
    values_K: Float[Tensor, " K"], sequences_K: Int[Tensor, " K"]
) -> Float[Tensor, " K"]:
    """For each token the sum over all tokens of its sequence."""
    numbers, inverse_K = torch.unique(sequences_K, return_inverse=True)
    sums = values_K.new_zeros(len(numbers)).index_add(0, inverse_K, values_K)
    return sums[inverse_K]
