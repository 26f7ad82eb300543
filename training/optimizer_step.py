"""One policy update: forward and backward over the micro-batches, clip the gradient, one optimiser step.

Each rank has micro-batches of its own, and two numbers must be agreed on. The denominator is the number of trained
tokens of *all* ranks (divided by their number, because data-parallel training averages gradients where the loss is a
sum). The number of rounds is the largest number of micro-batches of a rank: forward and backward are collective, so a
rank with fewer continues with batches that train nothing, lest the others wait. Gradients are exchanged in the last
round only.

`on_policy` takes the trainer's own log-probs for the old ones. In a step on the same weights that sampled the batch
they are equal in theory, and this removes the engine's rounding (1e-2 in half precision, enough to reach the clip
bounds now and then). Either way `engine_difference`, the mean of |log pi - log pi_engine|, both at the temperature of
the recorded ones, is a metric of every step: that engine and trainer agree is an assumption. Off policy the recorded
ones stand in the ratio, so they have to be at the temperature of sampling; others are refused.

A step that cannot be taken (nothing is to be trained, or the gradient is not finite) leaves the weights as they are:
`stepped` is 0, and `skipped` says why. One overflow must not end a run of days, and must not pass unseen. The metrics
of every step have the same names; one without a value is nan.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hrm_agent.errors import ModelError
from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.logprobs import sampled_and_recorded_logprobs
from hrm_agent.training.loss import clipped_surrogate, merge_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["NOTHING_TO_TRAIN", "NOT_FINITE", "policy_update"]

NOTHING_TO_TRAIN = "nothing to train"
NOT_FINITE = "the gradient is not finite"
_MEANS = (
    "loss",
    "clip_fraction_low",
    "clip_fraction_high",
    "kl_k3",
    "entropy_estimate",
    "ratio_max",
    "engine_difference",
)
"""Metrics that a step without a token has no value of."""


def policy_update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[MicroBatch],
    *,
    accelerator: Accelerator | None = None,
    max_grad_norm: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    on_policy: bool = False,
) -> dict[str, Any]:
    """Take one optimiser step on `batches` (this rank's share), and return metrics over all ranks.

    With an accelerator, `model` and `optimizer` are what its `prepare` returned. Besides the metrics of
    `clipped_surrogate`: `engine_difference`, `trained_tokens`, `micro_batches` (of the rank with most), `grad_norm`
    before clipping, `stepped`, and `skipped`, why no step was taken (None if one was). The model is left in the mode
    (train or eval) that it was in. Raises `ModelError` off policy, where a log-prob was recorded at another temperature
    than the one of sampling.
    """
    device = next(model.parameters()).device
    if not on_policy:
        _require_sampled_logprobs(batches)
    tokens, rounds = _agree(sum(batch.trained_tokens for batch in batches), len(batches), accelerator, device)
    if tokens == 0:
        counts = {"trained_tokens": 0.0, "micro_batches": float(rounds), "grad_norm": math.nan, "stepped": 0.0}
        return dict.fromkeys(_MEANS, math.nan) | counts | {"skipped": NOTHING_TO_TRAIN}
    clip = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
    ranks = accelerator.num_processes if accelerator else 1
    parts: list[dict[str, Tensor]] = []
    optimizer.zero_grad(set_to_none=True)
    with _training_mode(model):
        for index in range(rounds):
            batch = batches[index].to(device) if index < len(batches) else _idle_batch(device)
            with _exchange(model, accelerator, last=index == rounds - 1):
                loss, metrics = _loss(model, batch, tokens / ranks, on_policy, clip)
                accelerator.backward(loss) if accelerator else loss.backward()
            parts.append(metrics)
    grad_norm = _clip(model, max_grad_norm, accelerator)
    stepped = bool(torch.isfinite(grad_norm))
    if stepped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    counts = {"trained_tokens": tokens, "micro_batches": rounds, "grad_norm": grad_norm, "stepped": stepped}
    means = _reduced(merge_metrics(parts), accelerator) | {name: float(value) for name, value in counts.items()}
    return {**means, "skipped": None if stepped else NOT_FINITE}


def _require_sampled_logprobs(batches: Sequence[MicroBatch]) -> None:
    for batch in batches:
        wrong_K = batch.old_temperatures_K != batch.temperatures_K
        if wrong_K.any():
            at = float(batch.temperatures_K[wrong_K][0])
            raise ModelError(
                f"Tokens sampled at temperature {at:g} have raw log-probs on record, and the ratio of an off-policy "
                "step needs those of the distribution that was sampled.",
                "Sample with an engine of this process, with a vLLM server in --logprobs-mode processed_logprobs, or "
                "at temperature 1.",
            )


def _loss(
    model: nn.Module, batch: MicroBatch, denominator: float, on_policy: bool, clip: dict[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    logprobs_K, comparable_K = sampled_and_recorded_logprobs(model, batch)
    old_logprobs_K = logprobs_K.detach() if on_policy else batch.old_logprobs_K
    loss, metrics = clipped_surrogate(logprobs_K, old_logprobs_K, batch.weights_K, denominator, **clip)
    difference = (comparable_K - batch.old_logprobs_K).abs().sum() / denominator
    return loss, {**metrics, "engine_difference": difference}


@contextmanager
def _training_mode(model: nn.Module) -> Generator[None]:
    before = model.training
    model.train()
    try:
        yield
    finally:
        model.train(before)


def _exchange(model: nn.Module, accelerator: Accelerator | None, *, last: bool) -> AbstractContextManager[Any]:
    """Gradients stay on their rank until the last round."""
    return nullcontext() if accelerator is None or last else accelerator.no_sync(model)


def _agree(tokens: int, rounds: int, accelerator: Accelerator | None, device: torch.device) -> tuple[int, int]:
    """Trained tokens of all ranks, and the largest number of micro-batches of any."""
    if accelerator is None:
        return tokens, rounds
    counts: Any = accelerator.gather(torch.tensor([[tokens, rounds]], device=device))
    return int(counts[:, 0].sum()), int(counts[:, 1].max())


def _idle_batch(device: torch.device) -> MicroBatch:
    """A batch that trains nothing, for a rank that has no more."""
    no_tokens, nothing = torch.zeros(0, dtype=torch.long), torch.zeros(0)
    one = torch.zeros(1, dtype=torch.long)
    return MicroBatch(
        token_ids_N=one,
        positions_N=one,
        parents_N=one - 1,
        loss_indices_K=no_tokens,
        weights_K=nothing,
        old_logprobs_K=nothing,
        temperatures_K=nothing,
        old_temperatures_K=nothing,
        versions_K=no_tokens,
        sequences_K=no_tokens,
        lengths_K=nothing,
    ).to(device)


def _clip(model: nn.Module, max_grad_norm: float, accelerator: Accelerator | None) -> Tensor:
    if accelerator is None:
        return nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    norm: Any = accelerator.clip_grad_norm_(model.parameters(), max_grad_norm)
    return torch.as_tensor(norm)


def _reduced(metrics: dict[str, Tensor], accelerator: Accelerator | None) -> dict[str, float]:
    """Metrics over all ranks. A rank's means were taken with its share of the denominator, so ranks are averaged."""
    if accelerator is None:
        return {name: float(value) for name, value in metrics.items()}
    gathered: Any = accelerator.gather(torch.stack(list(metrics.values())).unsqueeze(0))
    columns = zip(metrics, gathered.unbind(1), strict=True)
    return {name: float(column.max() if name == "ratio_max" else column.mean()) for name, column in columns}
