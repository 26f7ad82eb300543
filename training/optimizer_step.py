"""One policy update: forward and backward over the micro-batches, clip the gradient, one optimiser step.

Each rank has micro-batches of its own, and two numbers must be agreed on. The denominator is the number of trained
tokens of *all* ranks (divided by their number, because data-parallel training averages gradients where the loss is a
sum). The number of rounds is the largest number of micro-batches of a rank: forward and backward are collective, so a
rank with fewer continues with batches that train nothing, lest the others wait. Gradients are exchanged in the last
round only.

`on_policy` takes the trainer's own log-probs for the old ones. In a step on the same weights that sampled the batch
they are equal in theory, and this removes the engine's rounding (1e-2 in half precision, enough to reach the clip
bounds now and then). Either way `engine_difference`, the mean of |log pi - log pi_engine|, is a metric of every step:
that engine and trainer agree is an assumption.

A step whose gradient is not finite is skipped, and `stepped` is 0: one overflow must not end a run of days, and must
not pass unseen.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.loss import clipped_surrogate, merge_metrics, token_logprobs

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["policy_update"]


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
) -> dict[str, float]:
    """Take one optimiser step on `batches` (this rank's share), and return metrics over all ranks.

    With an accelerator, `model` and `optimizer` are what its `prepare` returned. Besides the metrics of
    `clipped_surrogate`: `engine_difference`, `trained_tokens`, `micro_batches` (of the rank with most), `grad_norm`
    before clipping, and `stepped`, 0 if no step was taken because nothing was to be trained or the gradient was not
    finite. The model is left in the mode (train or eval) that it was in.
    """
    device = next(model.parameters()).device
    tokens, rounds = _agree(sum(batch.trained_tokens for batch in batches), len(batches), accelerator, device)
    if tokens == 0:
        return {"trained_tokens": 0.0, "micro_batches": float(rounds), "stepped": 0.0}
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
    return _reduced(merge_metrics(parts), accelerator) | {name: float(value) for name, value in counts.items()}


def _loss(
    model: nn.Module, batch: MicroBatch, denominator: float, on_policy: bool, clip: dict[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    logprobs_N = token_logprobs(model, batch)
    engine_logprobs_N = batch.old_logprobs_BT[batch.loss_mask_BT]
    old_logprobs_N = logprobs_N.detach() if on_policy else engine_logprobs_N
    advantages_N = batch.advantages_BT[batch.loss_mask_BT]
    loss, metrics = clipped_surrogate(logprobs_N, old_logprobs_N, advantages_N, denominator, **clip)
    difference = (logprobs_N.detach() - engine_logprobs_N).abs().sum() / denominator
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
    zeros = torch.zeros(1, 1, dtype=torch.long)
    return MicroBatch(zeros, zeros.bool(), zeros.float(), zeros.float()).to(device)


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
