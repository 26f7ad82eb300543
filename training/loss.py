"""The clipped surrogate of GRPO-RoC.

    J = 1 / N * sum over trained tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A),     r = pi / pi_old

(rStar2-Agent, arXiv 2508.20722, section 2): the upper bound is wider than the lower (DAPO's "clip higher"), N is the
number of trained tokens of the **whole** batch over all micro-batches and ranks, and there is neither a KL nor an
entropy term. N is passed in: a mean over each micro-batch would weigh a token by the company that it was padded with.

`old_logprobs_N` are the engine's, or the trainer's own where a batch is on policy
                 (`hrm_agent.training.optimizer_step`).

pi is the distribution that was sampled from: the log-probs are log softmax(logits / T) with the temperature T of each
token's own call. A policy sampled at T and trained at 1 would be another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["clipped_surrogate", "merge_metrics"]


def clipped_surrogate(
    logprobs_N: Float[Tensor, " N"],
    old_logprobs_N: Float[Tensor, " N"],
    advantages_N: Float[Tensor, " N"],
    denominator: float,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """-J of the tokens given, with `denominator` for N, and metrics to be joined by `merge_metrics`.

    Both log-probs are at the temperature of sampling.

    `dual_clip` bounds the loss of a token with a negative advantage at `dual_clip * |A|` (3.0 in the trainer that the
    authors used; not in the paper).
    """
    log_ratio_N = logprobs_N - old_logprobs_N
    ratio_N = log_ratio_N.exp()
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    objective_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    if dual_clip is not None:
        bounded_N = torch.maximum(objective_N, dual_clip * advantages_N)
        objective_N = torch.where(advantages_N < 0, bounded_N, objective_N)
    loss = -objective_N.sum() / denominator
    with torch.no_grad():
        metrics = _metrics(logprobs_N, log_ratio_N, ratio_N, advantages_N, denominator, clip_low, clip_high)
    return loss, {"loss": loss.detach(), **metrics}


def _metrics(
    logprobs_N: Tensor,
    log_ratio_N: Tensor,
    ratio_N: Tensor,
    advantages_N: Tensor,
    denominator: float,
    clip_low: float,
    clip_high: float,
) -> dict[str, Tensor]:
    """Shares of the means over the whole batch, except `ratio_max`.

    `kl_k3` estimates KL(old, new) from samples of the old policy: under it the mean of r - 1 is 0 and that of -log r
    the divergence, and no summand is negative.
    """
    low_N = (ratio_N < 1 - clip_low) & (advantages_N < 0)
    high_N = (ratio_N > 1 + clip_high) & (advantages_N > 0)
    summed = {
        "clip_fraction_low": low_N,
        "clip_fraction_high": high_N,
        "kl_k3": ratio_N - 1 - log_ratio_N,
        "entropy_estimate": -logprobs_N,
    }
    metrics = {name: values.sum() / denominator for name, values in summed.items()}
    metrics["ratio_max"] = ratio_N.max() if len(ratio_N) else ratio_N.new_tensor(-math.inf)
    return metrics


def merge_metrics(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Metrics of a batch from those of its micro-batches, which share one denominator: sums, but a maximal ratio."""
    joined = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return {name: values.max() if name == "ratio_max" else values.sum() for name, values in joined.items()}
