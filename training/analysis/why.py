"""Origin of a behaviour: the step of a training, and the rollouts of it, that taught it.

A *behaviour* is a text after a context, and its probability under each version of the weights is
computed by teacher forcing. What a step taught of it is of first order. AdamW's mean of gradients
takes in the step's gradient g and moves the weights by it in this step and, ever less, in all later
ones:

    taught = - F g . b / r

    b    gradient of the behaviour's log-prob at the weights before the step
    r    root of AdamW's mean of squares, corrected, plus epsilon, after the step
    F    sum over this and later optimiser steps j = 0, 1, ... of
         rate_j beta1^j (1 - beta1) / (1 - beta1^(t + j)), where t steps are behind the first one

g is the gradient of the loss. It is the difference of two kept means, so that no step is taken again
for it. Within a step g is a sum over tokens. The *push* of a token is its part, which two forward
passes give: the derivative of its log-prob along b / r, times that of the loss by its log-prob.
Where the step's gradients nearly cancel, r is nearly 0, and parts would be huge numbers of both
signs. So r is at least `_DAMPING` of its mean over a tensor for pushes.

What neither shows: gradients of second order, that a later step (also the later one of several
optimiser steps on a batch) sees other weights, weight decay, and that r would be another one without
a rollout.

The proof takes the step again without what some of its rollouts teach, and then the following steps
as they are on record.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hrm_agent.training.records.retrace import RecordedStep, RecordedTraining
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.model_mode import as_it_answers
from hrm_agent.training.update.objectives import LossOptions, policy_loss
from hrm_agent.training.update.optimizer_step import fix_inputs, fresh_only, trained_tokens
from hrm_agent.training.update.optimizers import Moments, moments_of
from hrm_agent.training.update.reductions import agree

__all__ = [
    "Behaviour",
    "Proof",
    "Push",
    "TokenPush",
    "VersionPoint",
    "course",
    "logprob_at",
    "most_taught",
    "proof",
    "pushes",
]

_DAMPING = 0.01
_FORGOTTEN = 1e-4
"""Share of a gradient in AdamW's mean below which it no longer counts."""
_MOVEMENT = 1e-3
"""Movement of the weights over which derivatives are measured, as a share of the weights (root mean
squares). A tenth of it drowns in the rounding of single precision, ten times it is no longer
straight.
"""


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

    def batch(self) -> MicroBatch:
        """Micro-batch whose log-probs are those of the text's tokens."""
        size = len(self.token_ids)
        count = size - self.start
        indices_N = torch.arange(size)
        none_K = torch.zeros(count)
        temperatures_K = torch.full((count,), self.temperature)
        return MicroBatch(
            token_ids_N=torch.tensor(self.token_ids),
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
    """Change of `logprob` that the last step's gradient causes in this and later steps, of first
    order (None for version 0, and if the version before is not kept).
    """


@dataclass(frozen=True, slots=True)
class TokenPush:
    """Token of a rollout, and what learning from it does to the behaviour."""

    token_id: int
    """Id of the token."""
    push: float
    """Part of the step's `taught` that is due to the token."""


@dataclass(frozen=True, slots=True)
class Push:
    """Rollout of a step, and what learning from it does to the behaviour."""

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
    """Part of the step's `taught` that is due to the rollout, in nats."""
    tokens: tuple[TokenPush, ...]
    """Trained tokens, in the order in which they are trained."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Log-probs of a behaviour with and without some rollouts."""

    before: float
    """Log-prob before the step."""
    recorded: float
    """Log-prob after the step and the following ones, as they were taken."""
    without: float
    """Log-prob after the same steps, the first without the rollouts."""
    steps: int
    """Number of steps between `before` and the others."""


def course(
    training: RecordedTraining, behaviour: Behaviour, versions: Iterator[int] | None = None
) -> Iterator[VersionPoint]:
    """Points of all kept versions, in order, or of those that `versions` yields while they are
    loaded.
    """
    batch = behaviour.batch()
    before: _State | None = None
    for version in training.versions(training.kept) if versions is None else versions:
        state = _State.of(training, version, batch)
        consecutive = before is not None and before.version == version - 1
        taught = _taught(training, before, state) if before and consecutive else None
        yield VersionPoint(version, state.logprob, taught)
        before = state


def most_taught(
    training: RecordedTraining, behaviour: Behaviour, points: Sequence[VersionPoint]
) -> tuple[int, list[VersionPoint]]:
    """Step that taught most, from 0, and the points with those between two kept versions that were
    made to find it.

    If versions are missing, it is the one that taught most within the largest rise, whose steps are
    taken again. Raises `RunError` if only version 0 is kept and none was made after it.
    """
    found = list(points)
    pairs = list(pairwise(found))
    if all(after.version == before.version + 1 for before, after in pairs):
        return max(pairs, key=lambda pair: pair[1].taught or 0.0)[0].version, found
    first, last = max(pairs, key=lambda pair: pair[1].logprob - pair[0].logprob)
    within = list(course(training, behaviour, training.walk(first.version, last.version)))
    place = found.index(first)
    found[place : place + 2] = [first, *within[1:]]
    return max(within[1:], key=lambda each: each.taught or 0.0).version - 1, found


def logprob_at(training: RecordedTraining, behaviour: Behaviour) -> float:
    """Log-prob of a behaviour under the weights that are loaded."""
    model = training.learner.model
    with torch.no_grad(), as_it_answers(model):
        return float(token_logprobs(model, behaviour.batch().to(_device(model))).double().sum())


def pushes(training: RecordedTraining, behaviour: Behaviour, step: RecordedStep) -> list[Push]:
    """Rollouts that a step trained on, the one with the largest push first.

    The weights before the step are loaded, and the step is taken.
    """
    training.load(step.number)
    model: Any = training.learner.model
    loss = training.learner.loss_options([])
    batches = _fresh(training.batches(step), loss, step.number)
    direction = _gradient(model, behaviour.batch())
    weights = _trained(model)
    start = [weight.detach().clone() for weight in weights]
    slopes = _loss_slopes(training, batches, loss)
    row = training.take(step)
    moments = moments_of(training.learner.optimizer)
    along = [
        each / _damped(moment.root) if moment is not None else torch.zeros_like(each)
        for each, moment in zip(direction, moments, strict=True)
    ]
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            weight.copy_(value)
    if not row["stepped"] or _rms(along) == 0:
        return []
    size = _MOVEMENT * _rms(start) / _rms(along)
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
            changes_K = _derivative(model, batch, weights, start, along, size)
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
    """Proof by removal of the rollouts with the ids `removed`. `following`: number of steps that are
    taken after `step`, at most those on record.
    """
    end = min(step.number + following, len(training.rows) - 1)
    training.load(step.number)
    before = logprob_at(training, behaviour)
    training.take(step.without(removed))  # its metrics are others than on record
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
    """Gradient of the behaviour's log-prob by each trained weight."""
    moments: list[Moments | None]

    @classmethod
    def of(cls, training: RecordedTraining, version: int, batch: MicroBatch) -> _State:
        model = training.learner.model
        with torch.no_grad(), as_it_answers(model):
            logprob = float(token_logprobs(model, batch.to(_device(model))).double().sum())
        moments = [
            None if each is None else each._replace(mean=each.mean.clone())
            for each in moments_of(training.learner.optimizer)
        ]
        return cls(version, logprob, _gradient(model, batch), moments)


def _taught(training: RecordedTraining, before: _State, after: _State) -> float:
    """Change of log-prob that the step between two consecutive versions caused."""
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
    """Factor F of a gradient that an optimiser step takes in. `rates`: rates of this and of later
    steps. `behind`: number of steps before it.
    """
    total = 0.0
    for later, rate in enumerate(rates):
        if (share := beta1**later) < _FORGOTTEN:
            break
        total += rate * share * (1 - beta1) / (1 - beta1 ** (behind + later + 1))
    return total


def _factor_of_mean(rates: Sequence[float], behind: int, taken: int, beta1: float) -> float:
    """Factor of the part of the mean that `taken` optimiser steps have added, as if their gradients
    were equal. For one step it is that of the gradient, divided by its share in the mean.
    """
    share = 1 - beta1**taken
    return sum(_factor(rates[first:], behind + first, beta1) for first in range(taken)) / share


def _rates(training: RecordedTraining, number: int) -> list[float]:
    """Learning rates of the optimiser steps from training step `number` on, to the end or to that
    at which the optimiser begins afresh.
    """
    found: list[float] = []
    for later in range(number, len(training.rows)):
        if later > number and training.begins_afresh(later):
            break
        row = training.rows[later]
        if row.get("stepped"):
            found += [float(row["learning_rate"])] * round(float(row["optimizer_steps"]))
    return found


def _damped(root: Tensor) -> Tensor:
    return root.clamp(min=_DAMPING * float(root.mean()))


def _fresh(
    parts: Sequence[Sequence[MicroBatch]], loss: LossOptions, version: int
) -> list[list[MicroBatch]]:
    if loss.max_staleness is None:
        return [list(part) for part in parts]
    return [fresh_only(part, version, loss.max_staleness) for part in parts]


def _loss_slopes(
    training: RecordedTraining, parts: Sequence[Sequence[MicroBatch]], loss: LossOptions
) -> list[list[Tensor]]:
    """Derivative of a step's loss by the log-prob of each trained token, for each micro-batch."""
    learner = training.learner
    model: Any = learner.model
    device = _device(model)
    found: list[list[Tensor]] = []
    with as_it_answers(model):
        for part in parts:
            moved = [each.to(device) for each in part]
            agreed = agree(moved, None, device)
            fixed = fix_inputs(
                model,
                learner.reference,
                moved,
                loss,
                teacher=learner.teachers,
                first=True,
                split=agreed.split,
            )
            slopes: list[Tensor] = []
            for inputs in fixed:
                with torch.no_grad():
                    logprobs_K = token_logprobs(model, inputs.batch)
                leaf_K = logprobs_K.detach().requires_grad_()
                tokens = trained_tokens(inputs, leaf_K, loss)
                value, _ = policy_loss(tokens, agreed.counts, loss)
                (slopes_K,) = torch.autograd.grad(value, leaf_K)
                slopes.append(slopes_K)
            found.append(slopes)
    return found


def _derivative(
    model: Any,
    batch: MicroBatch,
    weights: Sequence[Tensor],
    start: Sequence[Tensor],
    along: Sequence[Tensor],
    size: float,
) -> Tensor:
    """Derivative of each trained token's log-prob along a direction of the weights, by the central
    difference over `size`.
    """
    found: list[Tensor] = []
    moved = batch.to(_device(model))
    for sign in (size, -size):
        with _at(weights, start, along, sign), torch.no_grad(), as_it_answers(model):
            found.append(token_logprobs(model, moved).double())
    return (found[0] - found[1]) / (2 * size)


@contextmanager
def _at(
    weights: Sequence[Tensor], start: Sequence[Tensor], along: Sequence[Tensor], size: float
) -> Generator[None]:
    """Move the weights within the block. They compute in single precision there."""
    data = [weight.data for weight in weights]
    try:
        for weight, value, direction in zip(weights, start, along, strict=True):
            weight.data = torch.add(value, direction, alpha=size)
        yield
    finally:
        for weight, value in zip(weights, data, strict=True):
            weight.data = value


def _rms(tensors: Sequence[Tensor]) -> float:
    squares = sum(float(each.double().square().sum()) for each in tensors)
    return math.sqrt(squares / sum(each.numel() for each in tensors))


def _gradient(model: Any, batch: MicroBatch) -> list[Tensor]:
    """Gradient of the sum of a micro-batch's log-probs by each trained weight, in single
    precision.
    """
    with as_it_answers(model):
        total = token_logprobs(model, batch.to(_device(model))).sum()
        found: Any = torch.autograd.grad(total, _trained(model), allow_unused=True)
    return [
        torch.zeros_like(weight, dtype=torch.float32) if each is None else each.float()
        for weight, each in zip(_trained(model), found, strict=True)
    ]


def _trained(model: Any) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device
