"""CISPO: the log-prob of each token, weighted by its clipped ratio (MiniMax-M1, arXiv 2506.13585).

    J = stop_gradient(min(r, 1 + clip_high)) A log pi

In the clipped surrogate a token outside the bounds has no gradient at all, and those are often the
rare tokens that decide the reasoning. Here each keeps its gradient, and only its weight is bounded.
There is no lower bound, as in the paper's experiments.
"""

from __future__ import annotations

from hrm_agent.training.update.objectives.options import LossOptions
from hrm_agent.training.update.objectives.tokens import PerToken, TrainedTokens

__all__ = ["cispo"]


def cispo(tokens: TrainedTokens, options: LossOptions) -> PerToken:
    """Loss of each token. `clipped_high_K` marks tokens of positive weight whose ratio was clipped,
    though they have a gradient.
    """
    ratios_K = (tokens.logprobs_K - tokens.old_logprobs_K).exp().detach()
    bound = 1 + options.clip_high
    loss_K = -ratios_K.clamp(max=bound) * tokens.weights_K * tokens.logprobs_K
    high_K = (ratios_K > bound) & (tokens.weights_K > 0)
    return PerToken(loss_K, ratios_K, high_K.new_zeros(high_K.shape), high_K)
