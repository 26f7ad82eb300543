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

The change of a token's log-prob along u takes two forward passes. A rollout that is trained on
changes its own log-prob most, which other answers do not show. So the groups of a step are split
into two halves, and each half is measured along the update by the other half, times the number of
all groups over that of the other half. A step with a single group is measured along its own update.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from hrm_agent.trajectory import Call, Trajectory, Verdict

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
    halves = _Halves.of(old)
    measured = [_batches_by_call(training, _with_all_of(old, half)) for half in halves.groups]
    weights = trained_weights(training.learner.model)
    start = [each.detach().clone() for each in weights]
    found: list[Update] = []
    for step in (old, new):
        parts = _gradients(training, step, halves)
        roots = _roots(training, list(parts.values()), step.config.optim.adam_beta2)
        factor = -step.rate * step.config.optim.epochs
        directions = {
            key: [factor * each / root for each, root in zip(gradient, roots, strict=True)]
            for key, gradient in parts.items()
        }
        changes: dict[str, list[float]] = {}
        for half, batches in enumerate(measured):
            other = [part for (_, of), part in directions.items() if halves.measures(half, of)]
            along = _sum(other, start, halves.scale(half))
            for call_id, change in _changes(training, batches, weights, start, along):
                changes.setdefault(call_id, []).append(change)
        by_role = {
            role: _sum([part for (of, _), part in directions.items() if of == role], start)
            for role in sorted({role for role, _ in directions})
        }
        found.append(
            Update(
                _sum(list(directions.values()), start),
                {role: math.sqrt(_inner(part, part)) for role, part in by_role.items()},
                changes,
            )
        )
    return StepUpdates(old.number, found[0], found[1])


@dataclass(frozen=True, slots=True)
class _Halves:
    """Groups of a step in two halves, or the only group of a step."""

    groups: tuple[frozenset[str], ...]
    """Ids of the groups of each half."""

    @classmethod
    def of(cls, step: RecordedStep) -> _Halves:
        ids = list(dict.fromkeys(each.group_id for each in step.rollouts))
        if len(ids) == 1:
            return cls((frozenset(ids),))
        return cls((frozenset(ids[::2]), frozenset(ids[1::2])))

    def half_of(self, rollout: Trajectory) -> int:
        return next(i for i, half in enumerate(self.groups) if rollout.group_id in half)

    def measures(self, half: int, of: int) -> bool:
        """True if rollouts of `half` are measured along the update by the groups of half `of`."""
        return half != of or len(self.groups) == 1

    def scale(self, half: int) -> float:
        """Number of all groups over the number of those that `half` is measured by."""
        sizes = [len(each) for each in self.groups]
        return sum(sizes) / sum(n for of, n in enumerate(sizes) if self.measures(half, of))


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


def _gradients(
    training: RecordedTraining, step: RecordedStep, halves: _Halves
) -> dict[tuple[str, int], Weights]:
    """Gradient of a step's loss by the role and the half of the groups whose tokens it is due to,
    clipped for each mini-batch as a whole (empty if nothing is trained).
    """
    model: Any = training.learner.model
    weights = trained_weights(model)
    loss = training.learner.loss_options([])
    if not any(each.verdict is Verdict.KEPT for each in step.overlays):
        return {}
    parts = fresh_batches(training.batches(step), loss, step.number)
    kinds = [
        (call.identity.role, halves.half_of(each))
        for each in step.rollouts
        for call in each.own_calls
    ]
    keys = sorted(set(kinds))
    key_of = torch.tensor([keys.index(each) for each in kinds])
    coded = fresh_batches(training.batches(_coded(step)), loss, step.number)
    slopes = loss_slopes(training, parts, loss)
    total: dict[tuple[str, int], Weights] = {}
    for batches, codes, slopes_of_part in zip(parts, coded, slopes, strict=True):
        found: dict[tuple[str, int], Weights] = {}
        for batch, code, slopes_K in zip(batches, codes, slopes_of_part, strict=True):
            with as_it_answers(model):
                logprobs_K = token_logprobs(model, batch.to(device_of(model)))
            keys_K = key_of[code.weights_K.long()].to(logprobs_K.device)
            for index in keys_K.unique().tolist():
                value = (slopes_K * logprobs_K)[keys_K == index].sum()
                gradient: Any = torch.autograd.grad(
                    value, weights, retain_graph=True, allow_unused=True
                )
                _add(found, keys[index], weights, gradient)
        whole = _sum(list(found.values()), weights)
        norm = math.sqrt(_inner(whole, whole))
        clip = min(1.0, step.config.optim.max_grad_norm / (norm + 1e-6))
        for key, gradient in found.items():
            _add(total, key, weights, [clip * each for each in gradient])
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
    sums: dict[tuple[str, int], Weights],
    key: tuple[str, int],
    weights: Weights,
    more: Sequence[Tensor | None],
) -> None:
    if key not in sums:
        sums[key] = _sum([], weights)
    for total, each in zip(sums[key], more, strict=True):
        if each is not None:
            total += each.float()


def _sum(parts: Sequence[Weights], like: Weights, factor: float = 1.0) -> Weights:
    """Sum of tensors in single precision, times a factor."""
    total = [torch.zeros_like(each, dtype=torch.float32, requires_grad=False) for each in like]
    for part in parts:
        for sum_, each in zip(total, part, strict=True):
            sum_.add_(each, alpha=factor)
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


def _with_all_of(step: RecordedStep, groups: Collection[str]) -> RecordedStep:
    """Step with all rollouts of these groups that could have been selected, and all their calls."""
    able = {each.id for each in step.rollouts if each.group_id in groups and fault_of(each) is None}
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
