"""Log-probs of the tokens that a policy sampled, under a model.

The distribution is the one that was sampled from: log softmax(logits / T) with the temperature T of each token's own
call. A policy sampled at T and trained at 1 would be another one.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.logprobs.log_softmax import chosen_logprobs
from hrm_agent.training.logprobs.output_layer import only_positions, output_layer
from hrm_agent.training.logprobs.padded import padded

__all__ = ["sampled_and_recorded_logprobs", "token_logits", "token_logprobs"]


def token_logprobs(model: nn.Module, batch: MicroBatch) -> Float[Tensor, " K"]:
    """Log-probs of the trained tokens of `batch` at their temperatures, in the order of its entries.

    Nothing may sample from the same module meanwhile: a hook is on it.
    """
    return chosen_logprobs(token_logits(model, batch), _token_ids(batch), batch.temperatures_K)


def sampled_and_recorded_logprobs(
    model: nn.Module, batch: MicroBatch
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """`token_logprobs`, and without a gradient the same at the temperatures at which log-probs were recorded.

    The two differ where an engine recorded raw log-probs of a call at another temperature than 1. A raw log-prob of one
    token does not determine the tempered one (that takes all logits), so such a record cannot stand in a ratio; but it
    can be compared with what the trainer computes.
    """
    logits_KV = token_logits(model, batch)
    logprobs_K = chosen_logprobs(logits_KV, _token_ids(batch), batch.temperatures_K)
    if torch.equal(batch.temperatures_K, batch.old_temperatures_K):
        return logprobs_K, logprobs_K.detach()
    return logprobs_K, chosen_logprobs(logits_KV.detach(), _token_ids(batch), batch.old_temperatures_K)


def token_logits(model: nn.Module, batch: MicroBatch) -> Float[Tensor, "K V"]:
    """The logits from which the trained tokens of `batch` were sampled, in the order of its entries."""
    token_ids_BT, rows_N = padded(batch)
    before_K = batch.parents_N[batch.loss_indices_K]
    with only_positions(output_layer(model), rows_N[before_K], batch.positions_N[before_K]):
        return model(input_ids=token_ids_BT, use_cache=False).logits


def _token_ids(batch: MicroBatch) -> Tensor:
    return batch.token_ids_N[batch.loss_indices_K]
