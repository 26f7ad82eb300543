"""Divergence from the policy that training started with, estimated from the sampled tokens.

    k3 = pi_ref / pi - 1 - log(pi_ref / pi)

No summand is negative, and under samples of pi the mean is KL(pi, pi_ref) (Schulman's third
estimator, as in GRPO).
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["k3"]


def k3(logprobs_K: Tensor, reference_logprobs_K: Tensor) -> Tensor:
    """Estimate k3 of each token, with a gradient."""
    log_ratio_K = reference_logprobs_K - logprobs_K
    return log_ratio_K.exp() - 1 - log_ratio_K
