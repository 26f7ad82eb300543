"""Objectives of the training: losses by token, their aggregation to one number, and optional terms.

`OBJECTIVES` by name: clipped (GRPO, DAPO), cispo, gspo. `policy_loss` computes the complete loss of
one micro-batch.
"""

# Field names contain shapes, too.
# ruff: noqa: N815

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hrm_agent.config import is_own
from hrm_agent.errors import ConfigError
from hrm_agent.training.config.parts import LossPart
from hrm_agent.training.own_parts import OwnFunction, part_by_name

__all__ = [
    "AGGREGATIONS",
    "LARGEST",
    "OBJECTIVES",
    "UNTAUGHT",
    "Aggregation",
    "Correction",
    "Counts",
    "LossOptions",
    "Objective",
    "PerToken",
    "TrainedTokens",
    "aggregation_by_name",
    "cispo",
    "clipped",
    "clipped_surrogate",
    "constant_sum",
    "corrections",
    "gspo",
    "k3",
    "loss_options",
    "means",
    "merge_metrics",
    "mismatch",
    "objective_by_name",
    "policy_loss",
    "sequence_mean",
    "sum_by_sequence",
    "surrogate",
    "taught",
    "token_mean",
]


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Options of the loss. Raises `ConfigError` for values that are invalid or have no effect."""

    objective: str = "clipped"
    """Loss of a token: one of `OBJECTIVES`, or a user's function. clipped: PPO's surrogate as in
    GRPO and DAPO. cispo: the log-prob weighted by the clipped ratio, so that no token loses its
    gradient. gspo: the surrogate with one ratio for a whole rollout.
    """
    aggregation: str = "token"
    """Aggregation of the losses: one of `AGGREGATIONS`, or a user's function. token: mean over all
    trained tokens (DAPO). sequence: mean over rollouts of the mean of their tokens (GRPO, GSPO).
    constant: mean over rollouts of the sum of their tokens over `constant` (Dr. GRPO).
    """
    constant: float = 256.0
    """Number of tokens by which the sum of a rollout is divided. Used only by the aggregation
    "constant".
    """
    clip_low: float = 0.2
    """Lower clip bound of the probability ratio, as a distance from 1. It has no effect in cispo.
    GSPO's paper uses 3e-4.
    """
    clip_high: float = 0.28
    """Upper clip bound of the probability ratio, as a distance from 1. GSPO's paper uses 4e-4."""
    dual_clip: float | None = None
    """Maximum loss of a token with a negative weight, as a multiple of |weight| (None: unbounded).
    Used only by the objective "clipped".
    """
    teacher_coef: float = 1.0
    """Coefficient of the teacher's part in a token's weight, if there is a teacher."""
    outcome_coef: float = 1.0
    """Coefficient of the outcome's part in a token's weight, if there is a teacher."""
    kl_coef: float = 0.0
    """Coefficient of the divergence from the starting policy (k3, per token). 0 leaves the term
    out, and no reference model is held in memory.
    """
    old_logprobs: Literal["trainer", "engine"] = "trainer"
    """Source of the log-probs in the denominator of the ratio. trainer: the trainer computes them
    before the first optimiser step. engine: they were recorded when the tokens were sampled.
    """
    correction: Literal["none", "token", "sequence"] = "none"
    """Importance correction: weigh the loss by the trainer's probability (before the first
    optimiser step) over the engine's, for each token or each whole rollout. It corrects for an
    engine that rounds differently, or sampled with older weights.
    """
    correction_mode: Literal["truncate", "mask"] = "truncate"
    """Treatment of a correction above the cap. truncate: it is set to the cap. mask: it is set to
    0.
    """
    correction_cap: float = 2.0
    """Maximum correction."""
    max_staleness: int | None = None
    """Maximum number of versions between the weights that sampled a token and the current ones
    (None: unbounded). Older tokens are not trained on.
    """

    def __post_init__(self) -> None:
        for name in ("constant", "clip_high", "correction_cap"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Take a number above 0.")
        if not 0 < self.clip_low < 1:
            raise ConfigError(f"clip_low is {self.clip_low}.", "Take a number between 0 and 1.")
        if self.kl_coef < 0:
            raise ConfigError(
                f"kl_coef is {self.kl_coef}.", "Take a number above 0, or 0 for no such term."
            )
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigError(
                f"max_staleness is {self.max_staleness}.",
                "Take 0 or more, or none to train on all tokens.",
            )
        bounded = self.objective == "clipped" or is_own(self.objective)
        if self.dual_clip is not None and (not bounded or self.dual_clip <= 1):
            raise ConfigError(
                f"dual_clip is {self.dual_clip} and the objective is {self.objective}.",
                "Take a number above 1, with the objective clipped.",
            )
        if self.correction != "none" and self.old_logprobs == "engine":
            raise ConfigError(
                "A correction has no effect with old_logprobs = engine, since the ratio already has"
                " the engine's log-probs.",
                "Take old_logprobs = trainer, or correction = none.",
            )


def loss_options(loss: LossPart) -> LossOptions:
    """Options of the loss from its table of the configuration."""
    taken = {each.name: loss.taken(each.name) for each in fields(LossOptions)}
    return LossOptions(**{name: value for name, value in taken.items() if value is not None})


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """Trained tokens of one micro-batch. All log-probs are at the temperature of sampling."""

    logprobs_K: Float[Tensor, " K"]
    """Log-probs of the trained policy, with a gradient."""
    old_logprobs_K: Float[Tensor, " K"]
    """Log-probs of the old policy, in the denominator of the ratio."""
    weights_K: Float[Tensor, " K"]
    """Weight of each token in the loss: advantage times credit."""
    sequences_K: Int[Tensor, " K"]
    """Number of each token's trajectory within the step."""
    lengths_K: Float[Tensor, " K"]
    """Number of trained tokens of the token's trajectory in the step."""
    sequence_log_ratios_K: Float[Tensor, " K"] | None = None
    """Mean log ratio of each token's trajectory, without gradient (None if each trajectory is
    complete in this micro-batch).
    """
    corrections_K: Float[Tensor, " K"] | None = None
    """Factors of the loss that correct for the distribution that sampled the tokens (None: 1)."""
    reference_logprobs_K: Float[Tensor, " K"] | None = None
    """Log-probs of the reference policy (None if there is none)."""
    teacher_logprobs_K: Float[Tensor, " K"] | None = None
    """Log-probs of the teacher (None without a teacher)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one optimiser step over all ranks, divided by the number of ranks, since gradients
    are averaged over ranks.
    """

    tokens: float
    """Number of trained tokens."""
    sequences: float
    """Number of trajectories with trained tokens. A trajectory that is split over several optimiser
    steps counts by its share.
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
    """True if the upper bound removed the gradient or a part of it."""


def sum_by_sequence(
    values_K: Float[Tensor, " K"], sequences_K: Int[Tensor, " K"]
) -> Float[Tensor, " K"]:
    """Sum over all tokens of each token's sequence."""
    numbers, inverse_K = torch.unique(sequences_K, return_inverse=True)
    sums = values_K.new_zeros(len(numbers)).index_add(0, inverse_K, values_K)
    return sums[inverse_K]


LARGEST = "ratio_max"
"""Metric that is a maximum. All others are sums over tokens, divided by the number of tokens in the
batch.
"""


def means(
    found: PerToken, logprobs_K: Tensor, old_logprobs_K: Tensor, tokens: float
) -> dict[str, Tensor]:
    """Metrics of a micro-batch: its share of the means over all `tokens` of the batch, and its
    maximum of the ratio (`ratio_max`).

    `kl_k3` estimates KL(old, new) from samples of the old policy as the mean of r - 1 - log r.
    Under the old policy the mean of r - 1 is 0, and the mean of -log r is the divergence. No
    summand is negative.
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
    """Metrics of a batch from the metrics of its micro-batches, which have the same denominator.
    They are summed, except `ratio_max`, of which the maximum is taken.
    """
    joined = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return {
        name: values.max() if name == LARGEST else values.sum() for name, values in joined.items()
    }


def clipped(tokens: TrainedTokens, options: LossOptions) -> PerToken:
    """Clipped surrogate of PPO, as in GRPO, DAPO and GRPO-RoC.

        J = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A),     r = pi / pi_old

    By default the upper bound is farther from 1 than the lower (DAPO's "clip higher"; rStar2-Agent,
    arXiv 2508.20722, section 2).

    `dual_clip` bounds the loss of a token with a negative advantage at `dual_clip * |A|`. The paper
    does not mention it; the trainer that its authors used has 3.0.

    Returns the surrogate of each token, by the token's ratio.
    """
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
    """Clipped surrogate of each token with the given ratios."""
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
    """Loss -J of the given tokens, summed and divided by `denominator`, and metrics for
    `merge_metrics`.

    Both log-probs are at the temperature of sampling.
    """
    ratios_K = (logprobs_K - old_logprobs_K).exp()
    found = surrogate(ratios_K, weights_K, clip_low, clip_high, dual_clip)
    loss = found.loss_K.sum() / denominator
    return loss, {"loss": loss.detach(), **means(found, logprobs_K, old_logprobs_K, denominator)}


def cispo(tokens: TrainedTokens, options: LossOptions) -> PerToken:
    """CISPO: the log-prob of each token, weighted by its clipped ratio (MiniMax-M1, arXiv 2506.13585).

        J = stop_gradient(min(r, 1 + clip_high)) A log pi

    In the clipped surrogate a token outside the bounds has no gradient at all, and such tokens are
    often the rare ones that decide the reasoning. In CISPO each token keeps its gradient, and only
    its weight is bounded. There is no lower bound, as in the paper's experiments.

    Returns the loss of each token. `clipped_high_K` marks tokens of positive weight whose ratio was
    clipped, although they have a gradient.
    """
    ratios_K = (tokens.logprobs_K - tokens.old_logprobs_K).exp().detach()
    bound = 1 + options.clip_high
    loss_K = -ratios_K.clamp(max=bound) * tokens.weights_K * tokens.logprobs_K
    high_K = (ratios_K > bound) & (tokens.weights_K > 0)
    return PerToken(loss_K, ratios_K, high_K.new_zeros(high_K.shape), high_K)


def gspo(tokens: TrainedTokens, options: LossOptions) -> PerToken:
    """GSPO: the clipped surrogate with one ratio for a whole rollout (Zheng et al., arXiv 2507.18071).

        s = exp(mean over the rollout's trained tokens of log r)
        J = min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)

    The reward belongs to a rollout, so the ratio does, too. The code computes the paper's
    GSPO-token, which has a ratio for each token. It has the value and gradient of GSPO if all
    tokens of a rollout have the same weight:

        s_t = stop_gradient(s) pi_t / stop_gradient(pi_t)

    So the tokens of a rollout may lie in several micro-batches, and its calls may have different
    weights. If the tokens lie in several micro-batches, a forward pass over all of these computes s
    beforehand.

    Returns the surrogate of each token, by the ratio of its rollout.
    """
    own_K = tokens.logprobs_K.detach()
    mean_K = tokens.sequence_log_ratios_K
    if mean_K is None:
        mean_K = (
            sum_by_sequence(own_K - tokens.old_logprobs_K, tokens.sequences_K) / tokens.lengths_K
        )
    ratios_K = (mean_K + (tokens.logprobs_K - own_K)).exp()
    return surrogate(ratios_K, tokens.weights_K, options.clip_low, options.clip_high)


def token_mean(
    loss_K: Tensor, tokens: TrainedTokens, counts: Counts, options: LossOptions
) -> Tensor:
    """Mean over all trained tokens: 1 / N * sum over tokens (DAPO)."""
    del tokens, options
    return loss_K.sum() / counts.tokens


def sequence_mean(
    loss_K: Tensor, tokens: TrainedTokens, counts: Counts, options: LossOptions
) -> Tensor:
    """Mean over rollouts of the mean of their tokens: 1 / M * sum over rollouts of 1 / n_i * sum
    over the n_i tokens of rollout i (GRPO, GSPO).
    """
    del options
    return (loss_K / tokens.lengths_K).sum() / counts.sequences


def constant_sum(
    loss_K: Tensor, tokens: TrainedTokens, counts: Counts, options: LossOptions
) -> Tensor:
    """Mean over rollouts of the sum of their tokens over a constant: 1 / M * sum over rollouts of
    1 / C * sum over tokens (Dr. GRPO).
    """
    del tokens
    return loss_K.sum() / (counts.sequences * options.constant)


Aggregation = Callable[[Tensor, TrainedTokens, Counts, LossOptions], Tensor]
"""Function (loss of each token, trained tokens, counts, options) -> this micro-batch's share of the
loss.

N and M in `counts` are the numbers of trained tokens and rollouts in the **whole** batch of an
optimiser step, over all micro-batches and ranks: with a mean over each micro-batch the weight of a
token would depend on the tokens batched with it.
"""

AGGREGATIONS: dict[str, Aggregation] = {
    "token": token_mean,
    "sequence": sequence_mean,
    "constant": constant_sum,
}
"""Aggregations by the name that a user gives."""


def aggregation_by_name(name: str) -> Aggregation:
    """Return the aggregation `name`: one of `AGGREGATIONS`, or a user's function. Raises
    `ConfigError`.
    """
    return part_by_name("aggregation", name, AGGREGATIONS, _own_aggregation)


def _own_aggregation(own: OwnFunction) -> Aggregation:
    def aggregate(
        loss_K: Tensor, tokens: TrainedTokens, counts: Counts, options: LossOptions
    ) -> Tensor:
        if not len(loss_K):
            return loss_K.sum()
        return _losses(own, own(loss_K, tokens, counts, options), loss_K, ())

    return aggregate


def _losses(own: OwnFunction, found: Any, given_K: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Losses that a user's function returned, if they are finite, have a gradient where the given
    values have one, and are of this shape.
    """
    if not isinstance(found, Tensor):
        raise own.wrong(f"returned {type(found).__name__}, not a tensor of shape {shape}")
    if found.shape != shape:
        each = "a loss for each token" if shape else "one number"
        raise own.wrong(f"returned a tensor of shape {tuple(found.shape)}, not {shape}, {each}")
    if bool(given_K.isfinite().all()) and not bool(found.isfinite().all()):
        raise own.wrong("returned a loss that is not finite")
    if given_K.requires_grad and not found.requires_grad:
        raise own.wrong("returned a loss without a gradient: it does not depend on logprobs_K")
    return found


def k3(logprobs_K: Tensor, reference_logprobs_K: Tensor) -> Tensor:
    """Divergence from the policy that training started with, estimated from the sampled tokens.

        k3 = pi_ref / pi - 1 - log(pi_ref / pi)

    No summand is negative, and the mean over samples of pi estimates KL(pi, pi_ref) (Schulman's
    third estimator, as in GRPO).

    Returns k3 of each token, with a gradient.
    """
    log_ratio_K = reference_logprobs_K - logprobs_K
    return log_ratio_K.exp() - 1 - log_ratio_K


UNTAUGHT = math.inf
"""Log-prob of a token that its teacher cannot read, so that the outcome alone teaches it."""


def taught(
    weights_K: Tensor, old_logprobs_K: Tensor, teacher_logprobs_K: Tensor, options: LossOptions
) -> Tensor:
    """Weights of tokens with a teacher: on-policy distillation (Agarwal et al., arXiv 2306.13649).

        w = outcome_coef * w_outcome + teacher_coef * (log pi_teacher - log pi_old)

    The policy samples the tokens, so that the mean of log pi_old - log pi_teacher estimates
    KL(policy, teacher), and the gradient of the surrogate with these weights is that of its
    negative, where each token's own term alone counts (no later ones).
    """
    apart_K = (teacher_logprobs_K - old_logprobs_K).detach()
    return options.outcome_coef * weights_K + options.teacher_coef * apart_K


class Correction(NamedTuple):
    """Importance correction of each token."""

    weights_K: Tensor
    """Factor of the token's loss."""
    cut_K: Tensor
    """True if the cap was exceeded."""


def corrections(
    trainer_logprobs_K: Tensor, engine_logprobs_K: Tensor, sequences_K: Tensor, options: LossOptions
) -> Correction:
    """Importance corrections, which weigh tokens of another distribution as if the trainer had
    sampled them.

        w = pi_trainer / pi_engine

    w is computed before the first optimiser step, for each token or for a whole rollout (the
    product over its trained tokens). Engine and trainer differ if their rounding differs (half
    precision, other kernels), or if the engine sampled with older weights. The variance of an
    unbounded w has no bound. Therefore w is truncated at a cap, which biases the estimate a little,
    or masked above the cap, which leaves out tokens that the trainer finds far more likely than the
    engine.

    `options` choose the kind. For corrections by sequence, all tokens of each sequence must be
    given.
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
    """Metrics of the difference between engine and trainer, as shares of means over `tokens`, for
    `merge_metrics`.

    The weights w are the corrections, or the ratios of single tokens without a correction. From
    `importance_square` the trainer later computes `effective_sample_size`, (mean w)^2 / mean w^2:
    the share of the tokens that would carry as much information if all were weighted equally.
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


Objective = Callable[[TrainedTokens, LossOptions], PerToken]
"""Function (trained tokens, options) -> loss of each token."""

OBJECTIVES: dict[str, Objective] = {"clipped": clipped, "cispo": cispo, "gspo": gspo}
"""Objectives by the name that a user gives."""


def objective_by_name(name: str) -> Objective:
    """Return the objective `name`: one of `OBJECTIVES`, or a user's function, which may return the
    losses alone. Raises `ConfigError`.
    """
    return part_by_name("objective", name, OBJECTIVES, _own_objective)


def _own_objective(own: OwnFunction) -> Objective:
    def objective(tokens: TrainedTokens, options: LossOptions) -> PerToken:
        given_K = tokens.logprobs_K
        if not len(given_K):
            return clipped(tokens, options)
        found = own(tokens, options)
        if not isinstance(found, PerToken):
            ratios_K = (given_K - tokens.old_logprobs_K).exp().detach()
            unclipped_K = torch.zeros_like(ratios_K, dtype=torch.bool)
            found = PerToken(found, ratios_K, unclipped_K, unclipped_K)
        _losses(own, found.loss_K, given_K, tuple(given_K.shape))
        return found

    return objective


def policy_loss(
    tokens: TrainedTokens, counts: Counts, options: LossOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of this micro-batch, as a share of the batch's loss, and metrics for `merge_metrics`.

    `kl_reference` is nan without a reference policy, `kl_teacher` without a teacher.
    """
    found = objective_by_name(options.objective)(tokens, options)
    loss_K = found.loss_K
    if tokens.corrections_K is not None:
        loss_K = loss_K * tokens.corrections_K
    divergence = loss_K.new_tensor(math.nan)
    if tokens.reference_logprobs_K is not None:
        divergence_K = k3(tokens.logprobs_K, tokens.reference_logprobs_K)
        loss_K = loss_K + options.kl_coef * divergence_K
        divergence = divergence_K.detach().sum() / counts.tokens
    taught_by = loss_K.new_tensor(math.nan)
    if tokens.teacher_logprobs_K is not None:
        apart_K = tokens.old_logprobs_K - tokens.teacher_logprobs_K
        taught_by = apart_K.detach().sum() / counts.tokens
    loss = aggregation_by_name(options.aggregation)(loss_K, tokens, counts, options)
    by_token = means(found, tokens.logprobs_K, tokens.old_logprobs_K, counts.tokens)
    return loss, {
        "loss": loss.detach(),
        **by_token,
        "kl_reference": divergence,
        "kl_teacher": taught_by,
    }
