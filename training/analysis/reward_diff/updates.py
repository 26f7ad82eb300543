"""Updates that a recorded step would make under different rewards, to first order.

    u = - rate * clip * g / r
    r^2 = (beta2 v + (1 - beta2) g^2) / (1 - beta2^t)

    g      gradient of the step's loss, with the advantages of the reward
    v      AdamW's mean of squared gradients before the step, as recorded, without bias correction
    t      number of optimiser steps, with this one
    clip   factor that bounds the norm of g
    rate   learning rate of the step

So r is AdamW's root after a step with this gradient, from the recorded optimiser. A reward with
small gradients that the recorded training lacked still moves the weights. r is `damped`. u is the
total effect of the gradient on the weights, which AdamW spreads over about ten steps. With several
optimiser steps a training step, u treats them as one.

The change of a token's log-prob along u takes two forward passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

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
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.model_mode import as_it_answers
from hrm_agent.training.update.optimizers import moments_of
from hrm_agent.trajectory import Call, Verdict

__all__ = ["StepUpdates", "Update", "updates_of"]

Weights = list[Tensor]
_EPSILON = 1e-8
"""Epsilon of AdamW."""


@dataclass(frozen=True, slots=True)
class Update:
    """Update of a step under one reward, and its effect on the step's rollouts."""

    direction: Weights
    """u, for each trained weight."""
    by_role: Mapping[str, float]
    """Role -> norm of the part of u that is due to its tokens."""
    changes: Mapping[str, list[float]]
    """Call id -> change along u of the log-prob of each of its sampled tokens."""

    @property
    def norm(self) -> float:
        return math.sqrt(_inner(self.direction, self.direction))


@dataclass(frozen=True, slots=True)
class StepUpdates:
    """Updates of one step under the old and the new reward."""

    number: int
    """Number of the step, from 0."""
    old: Update
    """Update under the old reward."""
    new: Update
    """Update under the new reward."""

    @property
    def inner(self) -> float:
        """Inner product of the two updates."""
        return _inner(self.old.direction, self.new.direction)


def updates_of(training: RecordedTraining, old: RecordedStep, new: RecordedStep) -> StepUpdates:
    """Updates of a step, which was judged by the old and by the new reward. Loads the version
    before the step.
    """
    training.load(old.number)
    if old.fresh_optimizer:
        training.learner.begin_optimizer_afresh()
    weights = trained_weights(training.learner.model)
    start = [each.detach().clone() for each in weights]
    everyone = _batches_by_call(training, _with_everyone(old))
    found: list[Update] = []
    for step in (old, new):
        gradients = _gradients(training, step)
        roots = _roots(training, list(gradients.values()), step.config.optim.adam_beta2)
        factor = -step.rate * step.config.optim.epochs
        by_role = {
            role: [factor * each / root for each, root in zip(gradient, roots, strict=True)]
            for role, gradient in gradients.items()
        }
        direction = _sum(by_role.values(), start)
        changes: dict[str, list[float]] = {}
        for call_id, change in _changes(training, everyone, weights, start, direction):
            changes.setdefault(call_id, []).append(change)
        norms = {role: math.sqrt(_inner(part, part)) for role, part in by_role.items()}
        found.append(Update(direction, norms, changes))
    return StepUpdates(old.number, found[0], found[1])


def _changes(
    training: RecordedTraining,
    batches: Sequence[tuple[MicroBatch, list[Call]]],
    weights: Weights,
    start: Weights,
    along: Weights,
) -> Iterator[tuple[str, float]]:
    """Call id of each token and change of the token's log-prob along a direction."""
    if root_mean_square(along) == 0:
        for _, calls in batches:
            yield from ((call.id, 0.0) for call in calls)
        return
    size = step_size(start, along)
    for batch, calls in batches:
        changes_K = derivative(training.learner.model, batch, weights, start, along, size)
        for call, change in zip(calls, changes_K.tolist(), strict=True):
            yield call.id, change


def _gradients(training: RecordedTraining, step: RecordedStep) -> dict[str, Weights]:
    """Gradient of a step's loss by the role whose tokens it is due to, clipped for each mini-batch
    as a whole (empty if nothing is trained).
    """
    model: Any = training.learner.model
    weights = trained_weights(model)
    loss = training.learner.loss_options([])
    if not any(each.verdict is Verdict.KEPT for each in step.overlays):
        return {}
    parts = fresh_batches(training.batches(step), loss, step.number)
    coded = fresh_batches(training.batches(_coded(step)), loss, step.number)
    role_of_call = [call.identity.role for call in _calls(step)]
    roles = sorted(set(role_of_call))
    role_of = torch.tensor([roles.index(each) for each in role_of_call])
    slopes = loss_slopes(training, parts, loss)
    total: dict[str, Weights] = {}
    for batches, codes, slopes_of_part in zip(parts, coded, slopes, strict=True):
        found: dict[str, Weights] = {}
        for batch, code, slopes_K in zip(batches, codes, slopes_of_part, strict=True):
            with as_it_answers(model):
                logprobs_K = token_logprobs(model, batch.to(device_of(model)))
            roles_K = role_of[code.weights_K.long()].to(logprobs_K.device)
            for index in roles_K.unique().tolist():
                value = (slopes_K * logprobs_K)[roles_K == index].sum()
                gradient: Any = torch.autograd.grad(
                    value, weights, retain_graph=True, allow_unused=True
                )
                _add(found, roles[index], weights, gradient)
        whole = _sum(found.values(), weights)
        clip = min(1.0, step.config.optim.max_grad_norm / (math.sqrt(_inner(whole, whole)) + 1e-6))
        for role, gradient in found.items():
            _add(total, role, weights, [clip * each for each in gradient])
    return total


def _roots(training: RecordedTraining, gradients: Sequence[Weights], beta2: float) -> list[Tensor]:
    """Root r of each trained weight, after a step with the sum of these gradients (empty without
    any).
    """
    found: list[Tensor] = []
    moments = moments_of(training.learner.optimizer)
    for before, parts in zip(moments, zip(*gradients, strict=True), strict=False):
        square = (1 - beta2) * torch.stack(parts).sum(0).square()
        steps = 1
        if before is not None:
            square += beta2 * (1 - beta2**before.steps) * before.root.square()
            steps += before.steps
        found.append(damped((square / (1 - beta2**steps)).sqrt()) + _EPSILON)
    return found


def _add(
    sums: dict[str, Weights], role: str, weights: Weights, more: Sequence[Tensor | None]
) -> None:
    if role not in sums:
        sums[role] = _sum([], weights)
    for total, each in zip(sums[role], more, strict=True):
        if each is not None:
            total += each.float()


def _sum(parts: Iterable[Weights], like: Weights) -> Weights:
    """Sum of tensors in single precision (zeros without any)."""
    total = [torch.zeros_like(each, dtype=torch.float32, requires_grad=False) for each in like]
    for part in parts:
        for sum_, each in zip(total, part, strict=True):
            sum_ += each
    return total


def _calls(step: RecordedStep) -> list[Call]:
    return [call for each in step.rollouts for call in each.own_calls]


def _coded(step: RecordedStep) -> RecordedStep:
    """Step whose tokens have the number of their call in `_calls` as weight. Its micro-batches are
    those of `step`.
    """
    codes = {call.id: float(number) for number, call in enumerate(_calls(step))}
    own = {each.id: [call.id for call in each.own_calls] for each in step.rollouts}
    overlays = [
        each.model_copy(
            update={
                "credit": {
                    id_: codes[id_]
                    for id_ in (own[each.trajectory_id] if each.credit is None else each.credit)
                }
            }
        )
        for each in step.overlays
    ]
    return replace(step, overlays=overlays)


def _with_everyone(step: RecordedStep) -> RecordedStep:
    """Step with all rollouts that could have been selected, and all of their calls."""
    able = {each.id for each in step.rollouts if fault_of(each) is None}
    overlays = [
        each.model_copy(
            update={
                "verdict": Verdict.KEPT if each.trajectory_id in able else Verdict.DROPPED,
                "advantage": 0.0,
                "credit": None,
            }
        )
        for each in step.overlays
    ]
    return replace(step, overlays=overlays)


def _batches_by_call(
    training: RecordedTraining, step: RecordedStep
) -> list[tuple[MicroBatch, list[Call]]]:
    """Micro-batches of a step, each with the call of each of its tokens."""
    calls = _calls(step)
    return [
        (batch, [calls[int(code)] for code in batch.weights_K.tolist()])
        for part in training.batches(_coded(step))
        for batch in part
    ]


def _inner(a: Weights, b: Weights) -> float:
    return math.fsum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))
