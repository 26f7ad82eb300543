"""Gradient of one batch of supervised fine-tuning. The loss is the cross entropy of the trained
tokens, computed in micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from hrm_agent.models.local.long_rope import depends_on_length
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.config.fitted import decided
from hrm_agent.training.update.batch import MicroBatch, Row, micro_batches
from hrm_agent.training.update.gradients import clip, kept_on_rank
from hrm_agent.training.update.logprobs import trained_logits

__all__ = ["Example", "gradient_of_batch"]

IGNORED = -100
"""Target of a token that is not trained."""

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Example:
    """Tokens and loss mask of one sequence, of equal length."""

    token_ids: tuple[int, ...]
    """Tokens of the prompt and the turns after it, in the model's vocabulary."""
    mask: tuple[bool, ...]
    """True if the policy is to write the token."""


def gradient_of_batch(
    accelerator: Accelerator, model: Any, batch: Sequence[Example], config: SftConfig
) -> Metrics:
    """Compute and clip the gradients of one batch. The loss is the mean over the trained tokens of
    all processes.
    """
    trained = max(1, sum(sum(example.mask[1:]) for example in batch))
    own = batch[accelerator.process_index :: accelerator.num_processes]
    losses = (_flat_losses if config.forward == "packed" else _padded_losses)(
        model, own, config, accelerator.device
    )
    totals = torch.zeros(2, device=accelerator.device)
    for compute in losses:
        with kept_on_rank(model, accelerator):
            loss, hits = compute()
            accelerator.backward(loss * (accelerator.num_processes / trained))
        totals += torch.stack([loss.detach(), hits])
    norm = clip(model, accelerator, config.max_grad_norm)
    summed = cast("torch.Tensor", accelerator.reduce(totals, reduction="sum"))
    mean_loss, accuracy = (summed / trained).tolist()
    tokens = sum(len(example.token_ids) for example in batch)
    return {"loss": mean_loss, "accuracy": accuracy, "tokens": tokens, "grad_norm": float(norm)}


_Loss = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""Function that returns, for a micro-batch, the summed cross entropy of its trained tokens, and the
number of trained tokens that the model finds most probable.
"""


def _padded_losses(
    model: Any, examples: Sequence[Example], config: SftConfig, device: torch.device
) -> list[_Loss]:
    """Loss functions of micro-batches: examples sorted by length, and divided so that each part
    with its padding stays within `micro_batch_tokens`.
    """
    if depends_on_length(model):
        return _flat_losses(model, examples, config, device)
    most = decided(config.micro_batch_tokens, "micro_batch_tokens")
    shares: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda example: len(example.token_ids)):
        if shares[-1] and (len(shares[-1]) + 1) * len(example.token_ids) > most:
            shares.append([])
        shares[-1].append(example)
    return [partial(_loss, model, share, device) for share in shares]


def _flat_losses(
    model: Any, examples: Sequence[Example], config: SftConfig, device: torch.device
) -> list[_Loss]:
    """Loss functions of micro-batches that use the forward passes of a policy update."""
    most = decided(config.micro_batch_tokens, "micro_batch_tokens")
    batches = micro_batches(map(_row, examples), token_budget=most, forward=config.forward)
    return [partial(_flat_loss, model, batch.to(device)) for batch in batches]


def _row(example: Example) -> Row:
    """Row of a policy update for an example. Only the row's tokens and mask are used."""
    size = len(example.token_ids)
    trained = np.array(example.mask, np.bool_)
    trained[0] = False  # no token predicts the first token
    zeros = np.zeros(size, np.float32)
    ones = np.ones(size, np.float32)
    tokens = np.array(example.token_ids, np.int64)
    return Row(tokens, trained, zeros, zeros, ones, ones, np.zeros(size, np.int64))


def _flat_loss(model: Any, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    logits_KV = trained_logits(model, batch).float()
    target_K = batch.token_ids_N[batch.loss_indices_K]
    return (
        cross_entropy(logits_KV, target_K, reduction="sum"),
        (logits_KV.argmax(-1) == target_K).sum(),
    )


def _loss(
    model: Any, examples: Sequence[Example], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed cross entropy of the trained tokens, and the number of trained tokens that the model
    finds most probable.

    Padding is at the end, where no trained token can see it, so that no attention mask is needed.
    """
    length = max(len(example.token_ids) for example in examples)
    ids_BT = torch.zeros(len(examples), length, dtype=torch.long)
    target_BT = torch.full((len(examples), length), IGNORED)
    for row, example in enumerate(examples):
        ids = torch.tensor(example.token_ids)
        ids_BT[row, : len(ids)] = ids
        target_BT[row, : len(ids)] = torch.where(torch.tensor(example.mask), ids, IGNORED)
    logits_NV = model(input_ids=ids_BT.to(device), use_cache=False).logits[:, :-1].flatten(0, 1)
    target_N = target_BT[:, 1:].flatten().to(device)
    loss = cross_entropy(logits_NV.float(), target_N, ignore_index=IGNORED, reduction="sum")
    return loss, (logits_NV.argmax(-1) == target_N).sum()
