"""Derivatives of token log-probs along a direction in weight space, and of a recorded step's loss
with respect to the log-probs.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hrm_agent.training.records.retrace import RecordedTraining
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.model_mode import as_it_answers
from hrm_agent.training.update.objectives import LossOptions, policy_loss
from hrm_agent.training.update.optimizer_step import fix_inputs, fresh_only, trained_tokens
from hrm_agent.training.update.reductions import agree

__all__ = [
    "damped",
    "derivative",
    "device_of",
    "fresh_batches",
    "loss_slopes",
    "root_mean_square",
    "step_size",
    "trained_weights",
]

_DAMPING = 0.01
"""Lower bound of AdamW's root of mean squares, relative to its mean over a tensor."""
_MOVEMENT = 1e-3
"""Step size of the central difference: RMS of the weights' change over RMS of the weights. With a
tenth of it, rounding errors dominate in single precision. With ten times as much, second-order terms
do.
"""


def damped(root: Tensor) -> Tensor:
    """AdamW's root of mean squares, at least `_DAMPING` of its mean over the tensor."""
    return root.clamp(min=_DAMPING * float(root.mean()))


def fresh_batches(
    parts: Sequence[Sequence[MicroBatch]], loss: LossOptions, version: int
) -> list[list[MicroBatch]]:
    """Micro-batches without the tokens that a step at `version` leaves out because of their age."""
    if loss.max_staleness is None:
        return [list(part) for part in parts]
    return [fresh_only(part, version, loss.max_staleness) for part in parts]


def loss_slopes(
    training: RecordedTraining, parts: Sequence[Sequence[MicroBatch]], loss: LossOptions
) -> list[list[Tensor]]:
    """Derivative of a step's loss with respect to each trained token's log-prob, for each
    micro-batch.
    """
    learner = training.learner
    model: Any = learner.model
    device = device_of(model)
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


def derivative(
    model: Any,
    batch: MicroBatch,
    weights: Sequence[Tensor],
    start: Sequence[Tensor],
    along: Sequence[Tensor],
    size: float,
) -> Tensor:
    """Derivative of each trained token's log-prob along the direction `along`, by a central
    difference of step size `size`.
    """
    found: list[Tensor] = []
    moved = batch.to(device_of(model))
    for sign in (size, -size):
        with _at(weights, start, along, sign), torch.no_grad(), as_it_answers(model):
            found.append(token_logprobs(model, moved).double())
    return (found[0] - found[1]) / (2 * size)


@contextmanager
def _at(
    weights: Sequence[Tensor], start: Sequence[Tensor], along: Sequence[Tensor], size: float
) -> Generator[None]:
    """Add `size` times a direction to the weights within the block, in single precision."""
    data = [weight.data for weight in weights]
    try:
        for weight, value, direction in zip(weights, start, along, strict=True):
            weight.data = torch.add(value, direction, alpha=size)
        yield
    finally:
        for weight, value in zip(weights, data, strict=True):
            weight.data = value


def step_size(start: Sequence[Tensor], along: Sequence[Tensor]) -> float:
    """Step size of `derivative` at the weights `start`. `along` must not be zero."""
    return _MOVEMENT * root_mean_square(start) / root_mean_square(along)


def root_mean_square(tensors: Sequence[Tensor]) -> float:
    """Root of the mean of squares over all elements."""
    squares = sum(float(each.double().square().sum()) for each in tensors)
    return math.sqrt(squares / sum(each.numel() for each in tensors))


def trained_weights(model: Any) -> list[Tensor]:
    """Weights of a model that are trained."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def device_of(model: Any) -> torch.device:
    """Device of a model."""
    return next(model.parameters()).device
