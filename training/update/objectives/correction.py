"""Importance correction: tokens sampled by another distribution are weighted as if the trainer had
sampled them.

    w = pi_trainer / pi_engine

before the first optimiser step: of each token, or of a whole rollout (the product over its trained
tokens). Engine and trainer differ if their rounding differs (half precision, other kernels), or if
the engine sampled with older weights. An unbounded w has no bounded variance. It is therefore
truncated at a cap, which biases the estimate a little, or masked above it, which leaves out the
tokens that the trainer finds far too likely.
"""

# Field names contain shapes, too.
# ruff: noqa: N815

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrm_agent.training.update.objectives.options import LossOptions
from hrm_agent.training.update.objectives.tokens import sum_by_sequence

__all__ = ["Correction", "corrections", "mismatch"]


class Correction(NamedTuple):
    """Importance correction of each token."""

    weights_K: Tensor
    """Factor of the token's loss."""
    cut_K: Tensor
    """True if the cap was exceeded."""


def corrections(
    trainer_logprobs_K: Tensor, engine_logprobs_K: Tensor, sequences_K: Tensor, options: LossOptions
) -> Correction:
    """Corrections as set by `options`. If they are by sequence, the tokens must be of whole
    sequences.
    """
    log_weights_K = trainer_logprobs_K - engine_logprobs_K
    if options.correction == "sequence":
        log_weights_K = sum_by_sequence(log_weights_K, sequences_K)
    raw_K = log_weights_K.exp()
    cut_K = raw_K > options.correction_cap
    if options.correction_mode == "mask":
        return Correction(raw_K.masked_fill(cut_K, 0.0), cut_K)
    return Correction(raw_K.clamp(max=options.correction_cap), cut_K)


def mismatch(
    trainer_logprobs_K: Tensor,
    engine_logprobs_K: Tensor,
    correction: Correction | None,
    tokens: float,
) -> dict[str, Tensor]:
    """Difference between engine and trainer, as shares of means over `tokens`, to be joined by
    `merge_metrics`.

    Without a correction the weights are the ratios of single tokens. `importance_square` becomes
    `effective_sample_size`, (mean w)^2 / mean w^2: the share of equally weighted tokens that would
    carry as much information.
    """
    log_ratio_K = trainer_logprobs_K - engine_logprobs_K
    ratio_K = log_ratio_K.exp()
    weights_K = ratio_K if correction is None else correction.weights_K
    cut_K = torch.zeros_like(ratio_K) if correction is None else correction.cut_K
    summed = {
        "engine_difference": log_ratio_K.abs(),
        "mismatch_kl": ratio_K - 1 - log_ratio_K,
        "importance_mean": weights_K,
        "importance_square": weights_K**2,
        "importance_cut": cut_K,
    }
    return {name: values_K.sum() / tokens for name, values_K in summed.items()}
