"""GSPO: the clipped surrogate with one ratio for a whole rollout (Zheng et al., arXiv 2507.18071).

    s = exp(mean over the rollout's trained tokens of log r),      J = min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)

The reward belongs to a rollout, and so does its ratio. It is written token by token, like the
paper's GSPO-token. Value and gradient are the same if all tokens of a rollout have one weight:

    s_t = stop_gradient(s) pi_t / stop_gradient(pi_t)

So the tokens of a rollout may lie in several micro-batches, and its calls may have different
weights. If they lie in several, a forward pass over all of them computes s beforehand.
"""

from __future__ import annotations

from hrm_agent.training.update.objectives.clipped import surrogate
from hrm_agent.training.update.objectives.options import LossOptions
from hrm_agent.training.update.objectives.tokens import PerToken, TrainedTokens, sum_by_sequence

__all__ = ["gspo"]


def gspo(tokens: TrainedTokens, options: LossOptions) -> PerToken:
    """Surrogate of each token by the ratio of its rollout."""
    own_K = tokens.logprobs_K.detach()
    mean_K = tokens.sequence_log_ratios_K
    if mean_K is None:
        mean_K = (
            sum_by_sequence(own_K - tokens.old_logprobs_K, tokens.sequences_K) / tokens.lengths_K
        )
    ratios_K = (mean_K + (tokens.logprobs_K - own_K)).exp()
    return surrogate(ratios_K, tokens.weights_K, options.clip_low, options.clip_high)
