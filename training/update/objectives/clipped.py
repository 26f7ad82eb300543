"""Clipped surrogate of PPO, as in GRPO, DAPO and GRPO-RoC.

    J = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A),     r = pi / pi_old

The upper bound is wider than the lower by default (DAPO's "clip higher"; rStar2-Agent, arXiv
2508.20722, section 2).

`dual_clip` bounds the loss of a token with a negative advantage at `dual_clip * |A|` (3.0 in the
trainer that the authors used; not in the paper).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hrm_agent.training.update.objectives.merging import means
from hrm_agent.training.update.objectives.options import LossOptions
from hrm_agent.training.update.objectives.tokens import PerToken, TrainedTokens

__all__ = ["clipped", "clipped_surrogate", "surrogate"]


def clipped(tokens: TrainedTokens, options: LossOptions) -> PerToken:
    """Surrogate of each token by its own ratio."""
    ratios_K = (tokens.logprobs_K - tokens.old_logprobs_K).exp()
    return surrogate(
        ratios_K, tokens.weights_K, options.clip_low, options.clip_high, options.dual_clip
    )


def surrogate(
    ratios_K: Tensor,
    weights_K: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PerToken:
    """Surrogate of each token by the given ratios."""
    clipped_K = ratios_K.clamp(1 - clip_low, 1 + clip_high)
    objective_K = torch.minimum(ratios_K * weights_K, clipped_K * weights_K)
    if dual_clip is not None:
        bounded_K = torch.maximum(objective_K, dual_clip * weights_K)
        objective_K = torch.where(weights_K < 0, bounded_K, objective_K)
    low_K = (ratios_K < 1 - clip_low) & (weights_K < 0)
    high_K = (ratios_K > 1 + clip_high) & (weights_K > 0)
    return PerToken(-objective_K, ratios_K.detach(), low_K, high_K)


def clipped_surrogate(
    logprobs_K: Float[Tensor, " K"],
    old_logprobs_K: Float[Tensor, " K"],
    weights_K: Float[Tensor, " K"],
    denominator: float,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Loss -J of the given tokens, summed and divided by `denominator`, and metrics to be joined by
    `merge_metrics`.

    Both log-probs are at the temperature of sampling.
    """
    ratios_K = (logprobs_K - old_logprobs_K).exp()
    found = surrogate(ratios_K, weights_K, clip_low, clip_high, dual_clip)
    loss = found.loss_K.sum() / denominator
    return loss, {"loss": loss.detach(), **means(found, logprobs_K, old_logprobs_K, denominator)}
