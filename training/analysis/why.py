"""Origin of a behaviour: the step of a training, and the rollouts of it, that taught it.

A *behaviour* is a text after a context, or one of several texts. Its probability under a version of
the weights is computed by teacher forcing.

A step's contribution to the log-prob, `taught`, is a first-order estimate. AdamW adds the step's
gradient g to its mean of gradients. So g moves the weights in this step and, with decreasing weight,
in all later ones:

    taught = - F g . b / r

    g    gradient of the loss
    b    gradient of the behaviour's log-prob at the weights before the step
    r    root of AdamW's mean of squared gradients after the step, bias-corrected, plus epsilon
    F    sum over this and later optimiser steps j = 0, 1, ... of
         rate_j beta1^j (1 - beta1) / (1 - beta1^(t + j)), with t - 1 optimiser steps before this one

g is computed from the means of two consecutive kept versions, without repeating the step.

Within a step g is a sum over tokens. The *push* of a token is its summand of `taught`: the
derivative of the token's log-prob along b / r, times the derivative of the loss with respect to that
log-prob. The former takes two forward passes. If the gradients of a step nearly cancel, r is nearly
0, and pushes would be huge numbers of both signs. So for pushes, r is `damped`.

Both estimates neglect second-order terms, weight decay, the change of the weights between optimiser
steps, and the change of r that removing a rollout would cause.

The proof repeats the step with the weights of some rollouts set to 0, and then the following
recorded steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hrm_agent.errors import RunError
from hrm_agent.training.analysis.directions import (
    damped,
    derivative,
    device_of,
    fresh_batches,
    loss_slopes,
    root_mean_square,
    step_size,
    trained_weights,
)
from hrm_agent.training.records.retrace import RecordedStep, RecordedTraining
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.model_mode import as_it_answers
from hrm_agent.training.update.optimizers import Moments, moments_of

__all__ = [
    "Behaviour",
    "Proof",
    "Push",
    "TokenPush",
    "VersionPoint",
    "course",
    "largest_rise",
    "logprob_at",
    "most_taught",
    "proof",
    "pushes",
]

_FORGOTTEN = 1e-4
"""Minimum weight of a gradient in AdamW's mean. Steps in which it is smaller are neglected."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Text after a context, as tokens."""

    token_ids: tuple[int, ...]
    """Tokens of the context and of the text."""
    start: int
    """Number of tokens of the context."""
    temperature: float = 1.0
    """Temperature at which the probability is meant."""
    role: str = ""
    """Role whose adapter writes the text (empty for the shared one)."""
    others: tuple[tuple[int, ...], ...] = ()
    """Tokens of the context and of each further text. No text begins with another one, so the
    probability of the behaviour is the sum of theirs.
    """

    def batches(self) -> list[MicroBatch]:
        """Micro-batch of each text, whose log-probs are those of the text's tokens."""
        return [self._batch(each) for each in (self.token_ids, *self.others)]

    def _batch(self, token_ids: tuple[int, ...]) -> MicroBatch:
        size = len(token_ids)
        count = size - self.start
        indices_N = torch.arange(size)
        none_K = torch.zeros(count)
        temperatures_K = torch.full((count,), self.temperature)
        return MicroBatch(
            token_ids_N=torch.tensor(token_ids),
            positions_N=indices_N,
            parents_N=indices_N - 1,
            loss_indices_K=indices_N[self.start :],
            weights_K=none_K + 1,
            old_logprobs_K=none_K,
            temperatures_K=temperatures_K,
            old_temperatures_K=temperatures_K,
            versions_K=none_K.long(),
            sequences_K=none_K.long(),
            lengths_K=none_K + count,
            role=self.role,
        )


@dataclass(frozen=True, slots=True)
class VersionPoint:
    """Behaviour under one version of the weights."""

    version: int
    """Number of steps behind the weights."""
    logprob: float
    """Natural log of the behaviour's probability."""
    taught: float | None = None
    """First-order change of `logprob`, in this and later steps, by the gradient of the step before
    this version (None for version 0, and if the previous version is missing).
    """


@dataclass(frozen=True, slots=True)
class TokenPush:
    """Contribution of one token of a rollout to the behaviour's log-prob."""

    token_id: int
    """Id of the token."""
    push: float
    """Summand of the step's `taught`, in nats."""


@dataclass(frozen=True, slots=True)
class Push:
    """Contribution of one rollout to the behaviour's log-prob."""

    trajectory_id: str
    """Id of the rollout."""
    thread_id: str
    """Thread of the rollout."""
    prompt: str
    """Task of the rollout."""
    reward: float
    """Reward that its verdict counts."""
    advantage: float | None
    """Advantage in its group."""
    push: float
    """Sum over the rollout's tokens, in nats."""
    tokens: tuple[TokenPush, ...]
    """Trained tokens, in the order of the micro-batches."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Log-probs of a behaviour with and without some rollouts."""

    before: float
    """Log-prob before the step."""
    recorded: float
    """Log-prob after the recorded step and the following ones."""
    without: float
    """Log-prob after the same steps, with the rollouts' weights set to 0."""
    steps: int
    """Number of steps between `before` and the others."""


def course(
    training: RecordedTraining, behaviour: Behaviour, versions: Iterator[int] | None = None
) -> Iterator[VersionPoint]:
    """Compute the point of each version. `versions`: iterator that loads a version before it yields
    its number (None: all kept versions, in ascending order).
    """
    before: _State | None = None
    for version in training.versions(training.kept) if versions is None else versions:
        state = _State.of(training, version, behaviour)
        consecutive = before is not None and before.version == version - 1
        taught = _taught(training, before, state) if before and consecutive else None
        yield VersionPoint(version, state.logprob, taught)
        before = state


def most_taught(points: Sequence[VersionPoint]) -> int:
    """Number, from 0, of the step with the largest `taught`. Raises `RunError` if it is unknown for
    all steps.
    """
    taught = [(point.taught, point.version) for point in points if point.taught is not None]
    if not taught:
        raise RunError(
            "No two consecutive versions of the weights are known.",
            "Train with --keep-versions 1, or name a step: --step N.",
        )
    return max(taught)[1] - 1


def largest_rise(points: Sequence[VersionPoint]) -> tuple[int, int] | None:
    """Neighbouring versions between which the log-prob rises most (None if no version between two
    points is missing).
    """
    pairs = list(pairwise(points))
    if all(after.version == before.version + 1 for before, after in pairs):
        return None
    before, after = max(pairs, key=lambda pair: pair[1].logprob - pair[0].logprob)
    return before.version, after.version


def logprob_at(training: RecordedTraining, behaviour: Behaviour) -> float:
    """Log-prob of a behaviour under the loaded weights."""
    return float(_logprobs(training.learner.model, behaviour).logsumexp(0))


def pushes(training: RecordedTraining, behaviour: Behaviour, step: RecordedStep) -> list[Push]:
    """Pushes of the rollouts that a step trained on, the largest first. Loads the version before the
    step, and repeats the step.
    """
    training.load(step.number)
    model: Any = training.learner.model
    loss = training.learner.loss_options([])
    batches = fresh_batches(training.batches(step), loss, step.number)
    direction = _gradient(model, behaviour)
    weights = trained_weights(model)
    start = [weight.detach().clone() for weight in weights]
    slopes = loss_slopes(training, batches, loss)
    row = training.take(step)
    moments = moments_of(training.learner.optimizer)
    along = [
        each / damped(moment.root) if moment is not None else torch.zeros_like(each)
        for each, moment in zip(direction, moments, strict=True)
    ]
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            weight.copy_(value)
    if not row["stepped"] or root_mean_square(along) == 0:
        return []
    size = step_size(start, along)
    optim = step.config.optim
    clip = min(1.0, optim.max_grad_norm / (row["grad_norm"] + 1e-6))
    taken = sum(bool(part) for part in batches) * optim.epochs
    behind = max(each.steps for each in moments if each is not None) - taken
    rates = _rates(training, step.number)
    by_rollout: dict[str, list[TokenPush]] = {}
    place = 0
    for number, (part, ids) in enumerate(zip(batches, step.trained_by_part, strict=True)):
        if not part:
            continue
        factor = clip * sum(
            _factor(rates[first:], behind + first, optim.adam_beta1)
            for first in range(place, taken, taken // optim.epochs)
        )
        place += 1
        for batch, slopes_K in zip(part, slopes[number], strict=True):
            changes_K = derivative(model, batch, weights, start, along, size)
            pushes_K = -factor * slopes_K * changes_K
            token_ids = batch.token_ids_N[batch.loss_indices_K].tolist()
            entries = zip(batch.sequences_K.tolist(), token_ids, pushes_K.tolist(), strict=True)
            for sequence, token_id, push in entries:
                by_rollout.setdefault(ids[sequence], []).append(TokenPush(token_id, push))
    verdicts = {each.trajectory_id: each for each in step.overlays}
    rollouts = {each.id: each for each in step.rollouts}
    found = [
        Push(
            trajectory_id=rollout.id,
            thread_id=rollout.thread_id,
            prompt=rollout.task.prompt,
            reward=verdicts[rollout.id].reward,
            advantage=verdicts[rollout.id].advantage,
            push=math.fsum(each.push for each in tokens),
            tokens=tuple(tokens),
        )
        for id_, tokens in by_rollout.items()
        for rollout in [rollouts[id_]]
    ]
    return sorted(found, key=lambda each: -each.push)


def proof(
    training: RecordedTraining,
    behaviour: Behaviour,
    step: RecordedStep,
    removed: Collection[str],
    *,
    following: int,
) -> Proof:
    """Proof by removal of the rollouts with the ids `removed`. `following`: maximum number of
    recorded steps to repeat after `step`.
    """
    end = min(step.number + following, len(training.rows) - 1)
    training.load(step.number)
    before = logprob_at(training, behaviour)
    training.take(step.without(removed))
    for number in range(step.number + 1, end + 1):
        training.take(training.step(number))
    without = logprob_at(training, behaviour)
    training.load(end + 1)
    return Proof(before, logprob_at(training, behaviour), without, end + 1 - step.number)


@dataclass(frozen=True, slots=True)
class _State:
    version: int
    logprob: float
    gradient: list[Tensor]
    """Gradient of the behaviour's log-prob with respect to each trained weight."""
    moments: list[Moments | None]

    @classmethod
    def of(cls, training: RecordedTraining, version: int, behaviour: Behaviour) -> _State:
        moments = [
            None if each is None else each._replace(mean=each.mean.clone())
            for each in moments_of(training.learner.optimizer)
        ]
        gradient = _gradient(training.learner.model, behaviour)
        return cls(version, logprob_at(training, behaviour), gradient, moments)


def _taught(training: RecordedTraining, before: _State, after: _State) -> float:
    """First-order change of the log-prob by the step between two consecutive versions."""
    number = before.version
    beta1 = training.config.optim.adam_beta1
    rates = _rates(training, number)
    fresh = training.begins_afresh(number)
    total = 0.0
    for gradient, old, new in zip(before.gradient, before.moments, after.moments, strict=True):
        if new is None:
            continue
        behind = 0 if old is None or fresh else old.steps
        taken = new.steps - behind
        if taken <= 0:  # nothing used this weight
            continue
        own = new.mean if old is None or behind == 0 else new.mean - beta1**taken * old.mean
        along = float((own / new.root * gradient).double().sum())
        total -= _factor_of_mean(rates, behind, taken, beta1) * along
    return total


def _factor(rates: Sequence[float], behind: int, beta1: float) -> float:
    """Factor F of the gradient of one optimiser step. `rates`: learning rates of this step and the
    later ones. `behind`: number of optimiser steps before this one.
    """
    total = 0.0
    for later, rate in enumerate(rates):
        if (share := beta1**later) < _FORGOTTEN:
            break
        total += rate * share * (1 - beta1) / (1 - beta1 ** (behind + later + 1))
    return total


def _factor_of_mean(rates: Sequence[float], behind: int, taken: int, beta1: float) -> float:
    """Factor of what `taken` optimiser steps have added to the mean of gradients, if their gradients
    are equal. For one step it is F / (1 - beta1).
    """
    share = 1 - beta1**taken
    return sum(_factor(rates[first:], behind + first, beta1) for first in range(taken)) / share


def _rates(training: RecordedTraining, number: int) -> list[float]:
    """Learning rates of the optimiser steps from training step `number` to the end of the training,
    or to the next reset of the optimiser.
    """
    found: list[float] = []
    for later in range(number, len(training.rows)):
        if later > number and training.begins_afresh(later):
            break
        row = training.rows[later]
        if row.get("stepped"):
            found += [float(row["learning_rate"])] * round(float(row["optimizer_steps"]))
    return found


def _logprobs(model: Any, behaviour: Behaviour) -> Tensor:
    """Log-prob of each text of a behaviour."""
    with torch.no_grad(), as_it_answers(model):
        moved = (batch.to(device_of(model)) for batch in behaviour.batches())
        return torch.stack([token_logprobs(model, batch).double().sum() for batch in moved])


def _gradient(model: Any, behaviour: Behaviour) -> list[Tensor]:
    """Gradient of a behaviour's log-prob with respect to each trained weight, in single
    precision.
    """
    weights = trained_weights(model)
    sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
    shares = _logprobs(model, behaviour).softmax(0) if behaviour.others else torch.ones(1)
    for batch, share in zip(behaviour.batches(), shares.tolist(), strict=True):
        with as_it_answers(model):
            total = token_logprobs(model, batch.to(device_of(model))).sum()
            found: Any = torch.autograd.grad(total, weights, allow_unused=True)
        for sum_, each in zip(sums, found, strict=True):
            if each is not None:
                sum_.add_(each, alpha=share)
    return sums
