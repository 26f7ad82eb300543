"""Policy update: forward and backward passes over the micro-batches, clipping of the gradient, and
one or several optimiser steps.

By default a batch of rollouts is trained on as a whole, in one optimiser step. It may also be split
into mini-batches of whole rollouts, with an optimiser step for each, and be trained on in several
epochs. The denominator of the probability ratio is fixed before the first step. For each mini-batch
the ranks exchange their counts (`hrm_agent.training.update.reductions`).

With `old_logprobs = trainer` the trainer computes the old log-probs. On the weights that sampled
the batch they would equal the engine's, except for the engine's rounding (1e-2 in half precision,
enough to reach the clip bounds now and then), which this option removes. With either option
`engine_difference`, the mean of |log pi - log pi_engine| at the temperature of the recorded
log-probs, is a metric of every batch, since the agreement of engine and trainer is an assumption.
Recorded log-probs that enter the loss must be at the temperature of sampling, or the update raises
an error.

If there is nothing to train, or the gradient is not finite, the step is skipped and the weights
stay unchanged: `stepped` is 0, and `skipped` gives the reason. So one overflow does not end a run
of days, and is not hidden either. Every update has metrics of the same names; a metric without a
value is nan.

Old log-probs and corrections are computed with the weights before the first optimiser step of a
batch, no matter how many steps follow. If the first training pass of a micro-batch uses these
weights, that pass yields them. A forward pass without gradients computes them beforehand for
micro-batches that are trained on after the first step. It does so, too, if corrections are by
rollout and the tokens of a rollout lie in several micro-batches.

Tokens may have been sampled with older weights. Their staleness is measured, and can be bounded.
"""

# Field names contain shapes, too.
# ruff: noqa: N815

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.training.config.parts import of_sequences
from hrm_agent.training.metrics import NOT_FINITE
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.gradients import clip, kept_on_rank, step_if_finite
from hrm_agent.training.update.logprobs import sampled_and_recorded_logprobs, token_logprobs
from hrm_agent.training.update.model_mode import in_update
from hrm_agent.training.update.objectives import (
    LARGEST,
    UNTAUGHT,
    Correction,
    LossOptions,
    TrainedTokens,
    corrections,
    merge_metrics,
    mismatch,
    policy_loss,
    sum_by_sequence,
    taught,
)
from hrm_agent.training.update.reductions import (
    Agreed,
    agree,
    idle_batch,
    max_over_ranks,
    over_ranks,
    sum_over_ranks,
)
from hrm_agent.training.update.teachers import Teacher

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = [
    "ALL_STALE",
    "NOTHING_TO_TRAIN",
    "FixedInputs",
    "OptimOptions",
    "fix_inputs",
    "fresh_only",
    "most_behind",
    "policy_update",
    "require_sampled_logprobs",
    "sequence_log_ratios",
    "trained_tokens",
    "versions_behind",
]

_BY_TOKEN = (
    "loss_indices_K",
    "weights_K",
    "old_logprobs_K",
    "temperatures_K",
    "old_temperatures_K",
    "versions_K",
    "sequences_K",
    "lengths_K",
)


def versions_behind(batches: Sequence[MicroBatch], version: int) -> int:
    """Sum over the trained tokens of the number of versions between the weights that sampled them
    and `version`.
    """
    return sum(int((version - batch.versions_K).sum()) for batch in batches)


def most_behind(batches: Sequence[MicroBatch], version: int) -> int:
    """Largest number of versions between the weights that sampled a trained token and `version` (0
    without tokens).
    """
    return max(
        (int((version - batch.versions_K).max()) for batch in batches if batch.trained_tokens),
        default=0,
    )


def fresh_only(batches: Sequence[MicroBatch], version: int, max_staleness: int) -> list[MicroBatch]:
    """Batches without the entries of tokens that are more than `max_staleness` versions behind.

    Older tokens are context. They are not counted in the number of trained tokens, neither of the
    step nor of their trajectory.
    """
    kept: list[MicroBatch] = []
    for batch in batches:
        fresh_K = version - batch.versions_K <= max_staleness
        fields = {name: getattr(batch, name)[fresh_K] for name in _BY_TOKEN}
        kept.append(replace(batch, **fields))
    kept = [batch for batch in kept if batch.trained_tokens]
    if not kept:
        return []
    sequences = torch.cat([batch.sequences_K for batch in kept])
    lengths = sum_by_sequence(torch.ones(len(sequences), device=sequences.device), sequences)
    parts = lengths.split([batch.trained_tokens for batch in kept])
    return [replace(batch, lengths_K=part) for batch, part in zip(kept, parts, strict=True)]


@dataclass(slots=True)
class FixedInputs:
    """Inputs of one micro-batch that are fixed before the first step. If old log-probs or
    corrections are missing, the first forward pass with a gradient sets them.
    """

    batch: MicroBatch
    """Micro-batch that the inputs belong to."""
    old_logprobs_K: Tensor | None = None
    """Log-probs in the denominator of the ratio."""
    recorded_at_K: Tensor | None = None
    """Log-probs of the trainer at the temperatures of the engine's recorded log-probs."""
    correction: Correction | None = None
    """Factors of the loss that correct for the distribution that sampled the tokens."""
    reference_logprobs_K: Tensor | None = None
    """Log-probs of the reference policy (None if the loss has none)."""
    teacher_logprobs_K: Tensor | None = None
    """Log-probs of the teacher (None without a teacher)."""

    def complete(self, logprobs_K: Tensor, options: LossOptions) -> Tensor:
        """Set missing fields from `logprobs_K`, which are under the weights before the first step.
        Returns the old log-probs.
        """
        if self.old_logprobs_K is None:
            self.old_logprobs_K = logprobs_K.detach()
        if self.correction is None and options.correction != "none":
            batch = self.batch
            self.correction = corrections(
                self.old_logprobs_K, batch.old_logprobs_K, batch.sequences_K, options
            )
        return self.old_logprobs_K


def fix_inputs(
    model: nn.Module,
    reference: nn.Module | None,
    batches: Sequence[MicroBatch],
    options: LossOptions,
    *,
    teacher: Teacher | None = None,
    first: bool,
    split: bool,
) -> list[FixedInputs]:
    """Fixed inputs of a mini-batch, on the device of its micro-batches.

    `first`: this mini-batch is trained on first. `split`: some of its trajectories lie in several
    micro-batches.
    """
    found = [FixedInputs(batch) for batch in batches]
    by_sequence = options.correction == "sequence" and split
    for each in found:
        with torch.no_grad():
            if options.old_logprobs == "engine":
                each.old_logprobs_K = each.batch.old_logprobs_K
            elif not first or by_sequence:
                each.old_logprobs_K, each.recorded_at_K = sampled_and_recorded_logprobs(
                    model, each.batch
                )
            if reference is not None:
                each.reference_logprobs_K = token_logprobs(reference, each.batch)
            if teacher is not None:
                each.teacher_logprobs_K = teacher(each.batch)
    if by_sequence:
        sizes = [each.batch.trained_tokens for each in found]
        old = torch.cat([each.old_logprobs_K for each in found if each.old_logprobs_K is not None])
        engine = torch.cat([each.batch.old_logprobs_K for each in found])
        sequences = torch.cat([each.batch.sequences_K for each in found])
        weights, cut = corrections(old, engine, sequences, options)
        parts = zip(found, weights.split(sizes), cut.split(sizes), strict=True)
        for each, weights_K, cut_K in parts:
            each.correction = Correction(weights_K, cut_K)
    return found


def sequence_log_ratios(
    logprobs: Callable[[MicroBatch], Tensor], fixed: Sequence[FixedInputs], options: LossOptions
) -> list[Tensor]:
    """Mean log ratio of each token's whole trajectory, for each micro-batch. `logprobs` computes
    log-probs with the current weights.
    """
    differences: list[Tensor] = []
    with torch.no_grad():
        for each in fixed:
            logprobs_K = logprobs(each.batch)
            differences.append(logprobs_K - each.complete(logprobs_K, options))
    sequences = torch.cat([each.batch.sequences_K for each in fixed])
    lengths = torch.cat([each.batch.lengths_K for each in fixed])
    means = sum_by_sequence(torch.cat(differences), sequences) / lengths
    return list(means.split([each.batch.trained_tokens for each in fixed]))


def require_sampled_logprobs(batches: Sequence[MicroBatch]) -> None:
    """Raise `ModelError` if log-probs were recorded at another temperature than the tokens were
    sampled at.
    """
    for batch in batches:
        wrong_K = batch.old_temperatures_K != batch.temperatures_K
        if wrong_K.any():
            at = float(batch.temperatures_K[wrong_K][0])
            raise ModelError(
                f"Tokens sampled at temperature {at:g} have raw log-probs on record, but the ratio"
                " of an off-policy step needs log-probs of the distribution that was sampled.",
                "Sample with an engine of this process, with a vLLM server in --logprobs-mode"
                " processed_logprobs, or at temperature 1.",
            )


NOTHING_TO_TRAIN = "nothing to train"
ALL_STALE = "all tokens are of weights that are too old"
_MISMATCH = (
    "engine_difference",
    "mismatch_kl",
    "importance_mean",
    "importance_square",
    "importance_cut",
)
_MEANS = (
    "loss",
    "clip_fraction_low",
    "clip_fraction_high",
    "kl_k3",
    "kl_reference",
    "kl_teacher",
    "entropy_estimate",
    LARGEST,
    *_MISMATCH,
)
"""Metrics that have no value in a step without tokens."""
_NO_STALENESS = {"staleness_mean": math.nan, "staleness_max": math.nan}


@dataclass(frozen=True, slots=True)
class OptimOptions:
    """Options of optimiser steps on a batch. Raises `ConfigError` for invalid values."""

    epochs: int = 1
    """Number of times that each mini-batch is trained on."""
    max_grad_norm: float = 1.0
    """Maximum L2 norm of the gradient of an optimiser step. A larger one is scaled down."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or not self.max_grad_norm > 0:
            raise ConfigError(
                f"{self.epochs} epochs with a max_grad_norm of {self.max_grad_norm} are impossible.",
                "Take 1 or more epochs, and a max_grad_norm above 0.",
            )


@dataclass(frozen=True, slots=True)
class _Update:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator | None
    loss: LossOptions
    optim: OptimOptions


def policy_update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MicroBatch] | Sequence[Sequence[MicroBatch]],
    *,
    loss: LossOptions | None = None,
    optim: OptimOptions | None = None,
    accelerator: Accelerator | None = None,
    reference: nn.Module | None = None,
    teacher: Teacher | None = None,
    version: int | None = None,
) -> dict[str, Any]:
    """Train on `batches` (this rank's share), and return metrics over all ranks.

    `batches` are the micro-batches of one optimiser step, or a list of such sequences for several
    steps, as many on every rank. Metrics of several steps are means over the steps, weighted by
    their tokens. With an accelerator, `model` and `optimizer` are those returned by its `prepare`.
    `reference` is the policy for `kl_coef`, on the model's device, and `teacher` that of `taught`.
    `version` is the policy version of the weights, from which staleness is counted.

    Returns the metrics of `policy_loss` and `mismatch`, and these: `effective_sample_size`,
    `trained_tokens`, `micro_batches` (of the rank with most), `optimizer_steps` that were taken,
    `grad_norm` before clipping, `stale_tokens` that were left out, `staleness_mean` and
    `staleness_max` over all tokens, `stepped`, and `skipped`, the reason why no step was taken
    (None if one was). The mode of the model (train or eval) is restored. Raises `ModelError` if the
    loss needs recorded log-probs that are not of the distribution that was sampled.
    """
    update = _Update(model, optimizer, accelerator, loss or LossOptions(), optim or OptimOptions())
    if update.loss.kl_coef and reference is None:
        raise ValueError("kl_coef is above 0, but there is no reference policy")
    if update.loss.max_staleness is not None and version is None:
        raise ValueError("max_staleness is given, but the version of the policy is not")
    device = next(model.parameters()).device
    if all(isinstance(each, MicroBatch) for each in batches):
        batches = [cast("Sequence[MicroBatch]", batches)]
    mini_batches = cast("Sequence[Sequence[MicroBatch]]", batches)
    given = [[each.to(device) for each in part] for part in mini_batches]
    parts, staleness = _within_bound(given, update, version, device)
    if update.loss.old_logprobs == "engine" or update.loss.correction != "none":
        for part in parts:
            require_sampled_logprobs(part)
    agreed = [agree(part, accelerator, device) for part in parts]
    padded = [
        part + [idle_batch(device)] * (a.rounds - len(part))
        for part, a in zip(parts, agreed, strict=True)
    ]
    if not any(each.tokens for each in agreed):
        nothing = {
            "trained_tokens": 0.0,
            "micro_batches": float(sum(each.rounds for each in agreed)),
        }
        nothing |= {"optimizer_steps": 0.0, "grad_norm": math.nan, "stepped": 0.0}
        row = _finished(dict.fromkeys(_MEANS, math.nan) | nothing | staleness)
        return {**row, "skipped": ALL_STALE if staleness["stale_tokens"] else NOTHING_TO_TRAIN}
    with in_update(model):
        trained = [(p, a) for p, a in zip(padded, agreed, strict=True) if a.tokens]
        fixed = [
            fix_inputs(
                model,
                reference if update.loss.kl_coef else None,
                part,
                update.loss,
                teacher=teacher,
                first=index == 0,
                split=a.split,
            )
            for index, (part, a) in enumerate(trained)
        ]
        rows: list[dict[str, float]] = []
        for epoch in range(update.optim.epochs):
            for inputs, (_, a) in zip(fixed, trained, strict=True):
                rows.append(_optimizer_step(update, inputs, a, first=not rows, epoch=epoch))
    tokens = float(sum(each.tokens for each in agreed))
    row = _finished({**_joined(rows), "trained_tokens": tokens, **staleness})
    return {**row, "skipped": None if row["stepped"] else NOT_FINITE}


def _within_bound(
    parts: list[list[MicroBatch]], update: _Update, version: int | None, device: torch.device
) -> tuple[list[list[MicroBatch]], dict[str, float]]:
    """Mini-batches, from which tokens that are too stale are removed, and metrics of
    the staleness.
    """
    if version is None:
        return parts, {"stale_tokens": 0.0, **_NO_STALENESS}
    behind = float(sum(versions_behind(part, version) for part in parts))
    before = float(sum(batch.trained_tokens for part in parts for batch in part))
    bound = update.loss.max_staleness
    kept = parts if bound is None else [fresh_only(part, version, bound) for part in parts]
    dropped = before - sum(batch.trained_tokens for part in kept for batch in part)
    stale, all_behind, tokens = (
        sum_over_ranks(each, update.accelerator, device) for each in (dropped, behind, before)
    )
    most = max_over_ranks(
        max((most_behind(part, version) for part in parts), default=0), update.accelerator, device
    )
    told = (
        {"staleness_mean": all_behind / tokens, "staleness_max": float(most)}
        if tokens
        else _NO_STALENESS
    )
    return kept, {"stale_tokens": stale, **told}


def _optimizer_step(
    update: _Update, fixed: Sequence[FixedInputs], agreed: Agreed, *, first: bool, epoch: int
) -> dict[str, float]:
    """Take an optimiser step. `first`: no step was taken since the old log-probs were fixed."""
    log_ratios: Sequence[Tensor | None] = [None] * len(fixed)
    own = first and update.loss.old_logprobs == "trainer"
    if of_sequences(update.loss.objective) and agreed.split and not own:
        log_ratios = sequence_log_ratios(
            lambda batch: token_logprobs(update.model, batch), fixed, update.loss
        )
    parts: list[dict[str, Tensor]] = []
    update.optimizer.zero_grad(set_to_none=True)
    for inputs, log_ratios_K in zip(fixed, log_ratios, strict=True):
        with kept_on_rank(update.model, update.accelerator):
            loss, metrics = _loss(
                update, inputs, log_ratios_K, agreed, first=first, measured=epoch == 0
            )
            update.accelerator.backward(loss) if update.accelerator else loss.backward()
        parts.append(metrics)
    grad_norm = clip(update.model, update.accelerator, update.optim.max_grad_norm)
    stepped = step_if_finite(update.model, [update.optimizer], grad_norm, update.accelerator)
    counts = {
        "trained_tokens": agreed.tokens,
        "micro_batches": agreed.rounds,
        "grad_norm": grad_norm,
    }
    counts |= {"stepped": stepped, "optimizer_steps": stepped}
    return over_ranks(merge_metrics(parts), update.accelerator) | {
        name: float(n) for name, n in counts.items()
    }


def _loss(
    update: _Update,
    fixed: FixedInputs,
    log_ratios_K: Tensor | None,
    agreed: Agreed,
    *,
    first: bool,
    measured: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    batch = fixed.batch
    counts = agreed.counts
    logprobs_K, comparable_K = sampled_and_recorded_logprobs(update.model, batch)
    tokens = trained_tokens(fixed, logprobs_K, update.loss, log_ratios_K)
    loss, metrics = policy_loss(tokens, counts, update.loss)
    before_K = comparable_K if first else fixed.recorded_at_K
    if not measured or before_K is None:
        return loss, metrics | dict.fromkeys(_MISMATCH, logprobs_K.new_tensor(math.nan))
    return loss, metrics | mismatch(before_K, batch.old_logprobs_K, fixed.correction, counts.tokens)


def trained_tokens(
    fixed: FixedInputs,
    logprobs_K: Tensor,
    options: LossOptions,
    log_ratios_K: Tensor | None = None,
) -> TrainedTokens:
    """Inputs of the loss of a micro-batch, whose log-probs under the current weights are
    `logprobs_K`. `log_ratios_K`: result of `sequence_log_ratios`, if the loss needs it.
    """
    batch = fixed.batch
    old_K = fixed.complete(logprobs_K, options)
    weights_K = batch.weights_K
    teacher_K = fixed.teacher_logprobs_K
    if teacher_K is not None:
        teacher_K = torch.where(teacher_K == UNTAUGHT, old_K, teacher_K)
        weights_K = taught(weights_K, old_K, teacher_K, options)
    return TrainedTokens(
        logprobs_K=logprobs_K,
        old_logprobs_K=old_K,
        weights_K=weights_K,
        sequences_K=batch.sequences_K,
        lengths_K=batch.lengths_K,
        sequence_log_ratios_K=log_ratios_K,
        corrections_K=None if fixed.correction is None else fixed.correction.weights_K,
        reference_logprobs_K=fixed.reference_logprobs_K,
        teacher_logprobs_K=teacher_K,
    )


def _joined(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of an update from the metrics of its optimiser steps. Most are means weighted by
    tokens, for which missing values are left out.
    """
    if len(rows) == 1:
        return rows[0]
    joined: dict[str, float] = {}
    for name, first in rows[0].items():
        known = [(row[name], row["trained_tokens"]) for row in rows if math.isfinite(row[name])]
        total = sum(tokens for _, tokens in known)
        joined[name] = sum(value * tokens for value, tokens in known) / total if known else first
    largest = {name: max(row[name] for row in rows) for name in (LARGEST, "stepped")}
    summed = {name: sum(row[name] for row in rows) for name in ("micro_batches", "optimizer_steps")}
    return joined | largest | summed


def _finished(row: Mapping[str, float]) -> dict[str, float]:
    """Metrics with `effective_sample_size` in place of `importance_square`."""
    square = row["importance_square"]
    size = row["importance_mean"] ** 2 / square if square else math.nan
    return {name: value for name, value in row.items() if name != "importance_square"} | {
        "effective_sample_size": size
    }
