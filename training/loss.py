"""The clipped surrogate of GRPO-RoC, and the log-probs it needs.

    J = 1 / N * sum over trained tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A),     r = pi / pi_old

(rStar2-Agent, arXiv 2508.20722, section 2): the upper bound is wider than the lower (DAPO's "clip higher"), N is the
number of trained tokens of the **whole** batch over all micro-batches and ranks, and there is neither a KL nor an
entropy term. N is passed in: a mean over each micro-batch would weigh a token by the company that it was padded with.

`old_logprobs_N` are the engine's, or the trainer's own where a batch is on policy
                 (`hrm_agent.training.optimizer_step`).

pi is the distribution that was sampled from: the log-probs are log softmax(logits / T) with the temperature T of each
token's own call. A policy sampled at T and trained at 1 would be another one.

Of a batch's positions only a part is trained, and the output layer is the widest of the model. `token_logprobs`
therefore narrows the hidden states to the positions that predict a trained token *before* the output layer. It does so
by a hook on that layer, within the model's ordinary forward, so that whatever wraps the model (DDP, FSDP, LoRA) and
whatever follows the layer (soft caps, scales) stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hrm_agent.training.batch import MicroBatch

__all__ = [
    "chosen_logprobs",
    "clipped_surrogate",
    "merge_metrics",
    "sampled_and_recorded_logprobs",
    "token_logits",
    "token_logprobs",
]

CHUNK_ELEMENTS = 2**25
"""Logits taken through the log-softmax at once: 128 MiB in single precision."""


def token_logprobs(model: nn.Module, batch: MicroBatch) -> Float[Tensor, " N"]:
    """Log-probs of the trained tokens of `batch` at their temperatures, in row-major order (`x_BT[loss_mask_BT]`).

    Nothing may sample from the same module meanwhile: the hook is on it.
    """
    return chosen_logprobs(*_at(batch, batch.temperatures_BT, token_logits(model, batch)))


def token_logits(model: nn.Module, batch: MicroBatch) -> Float[Tensor, "N V"]:
    """The logits from which the trained tokens of `batch` were sampled, in row-major order."""
    rows_N, columns_N = batch.loss_mask_BT.nonzero(as_tuple=True)
    with _only_positions(_output_layer(model), rows_N, columns_N - 1):
        return model(input_ids=batch.token_ids_BT, use_cache=False).logits


def sampled_and_recorded_logprobs(
    model: nn.Module, batch: MicroBatch
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """`token_logprobs`, and without a gradient the same at the temperatures at which log-probs were recorded.

    The two differ where an engine recorded raw log-probs of a call at another temperature than 1. A raw log-prob of one
    token does not determine the tempered one (that takes all logits), so such a record cannot stand in a ratio; but it
    can be compared with what the trainer computes.
    """
    logits_NV = token_logits(model, batch)
    logprobs_N = chosen_logprobs(*_at(batch, batch.temperatures_BT, logits_NV))
    if torch.equal(batch.temperatures_BT, batch.old_temperatures_BT):
        return logprobs_N, logprobs_N.detach()
    return logprobs_N, chosen_logprobs(*_at(batch, batch.old_temperatures_BT, logits_NV.detach()))


def _at(batch: MicroBatch, temperatures_BT: Tensor, logits_NV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mask_BT = batch.loss_mask_BT
    return logits_NV, batch.token_ids_BT[mask_BT], temperatures_BT[mask_BT]


def _output_layer(model: nn.Module) -> nn.Module:
    """The layer that turns hidden states into logits, inside whatever wraps the model."""
    while not hasattr(model, "get_output_embeddings"):
        model = model.get_submodule("module")
    layer = model.get_output_embeddings()  # type: ignore[operator]
    assert isinstance(layer, nn.Module)
    return layer


@contextmanager
def _only_positions(layer: nn.Module, rows_N: Tensor, columns_N: Tensor) -> Generator[None]:
    """Within the block `layer` sees the hidden states of the given positions only."""

    def narrow(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        return (inputs[0][rows_N, columns_N],)

    handle = layer.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        handle.remove()


def chosen_logprobs(
    logits_NV: Float[Tensor, "N V"],
    token_ids_N: Int[Tensor, " N"],
    temperatures_N: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, " N"]:
    """Log-softmax of each row at its token, in single precision, a bounded number of logits at a time.

    Rows are divided by their temperatures; None: 1 for all.
    """
    size = max(1, CHUNK_ELEMENTS // logits_NV.shape[-1])
    logits, token_ids = logits_NV.split(size), token_ids_N.split(size)
    if temperatures_N is None or bool((temperatures_N == 1).all()):
        divided = (rows.float() for rows in logits)
    else:
        divided = (rows.float() / t[:, None] for rows, t in zip(logits, temperatures_N.split(size), strict=True))
    chunks = zip(divided, token_ids, strict=True)
    return torch.cat([-nn.functional.cross_entropy(rows, ids, reduction="none") for rows, ids in chunks])


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
