"""Entropy of the distribution from which each trained token was drawn, and log-prob of the token,
under a model.

No tensor of all logits is made, as for log-probs (`sampled`). This needs a model whose logits are
the product of hidden states and a weight. A model with a soft cap, or with an adapter on its output
layer, is instead run once for each part of the entries.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hrm_agent.models.local.role_adapters import route_of
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.logprobs.log_softmax import chosen_logprobs
from hrm_agent.training.update.logprobs.output_layer import output_layer
from hrm_agent.training.update.logprobs.sampled import from_hidden, trained_logits
from hrm_agent.training.update.logprobs.vocabulary_chunks import (
    entropies_from_hidden,
    entropies_of,
    logprobs_from_hidden,
)

__all__ = ["token_entropies"]

LOGITS = 2**25
"""Maximum number of logits at once for a model whose logits must be used as they are: 128 MiB in
single precision.
"""
_LARGE_VOCABULARY = 2**18

Found = tuple[Float[Tensor, " K"], Float[Tensor, " K"]]


@torch.no_grad()
def token_entropies(model: nn.Module, batch: MicroBatch) -> Found:
    """Entropy in nats over the whole vocabulary, and log-prob of the token, for each entry of
    `batch`.

    The entropy is at the entry's temperature. The log-prob is at the temperature at which log-probs
    were recorded, for comparison with them.

    The module must not be used for sampling meanwhile, since it has hooks. Raises `ModelError` for
    a model that does not support the batch's forward.
    """
    if (route := route_of(model)) is not None:
        route.all_through(batch.role)
    token_ids_K = batch.token_ids_N[batch.loss_indices_K]

    def compute(hidden_PD: Tensor, layer: nn.Linear, places_K: Tensor) -> Found:
        return (
            entropies_from_hidden(hidden_PD, layer, places_K, batch.temperatures_K),
            logprobs_from_hidden(hidden_PD, layer, places_K, token_ids_K, batch.old_temperatures_K),
        )

    layer = output_layer(model)
    found = from_hidden(model, layer, batch, compute) if type(layer) is nn.Linear else None
    size = max(1, LOGITS // int(getattr(layer, "out_features", _LARGE_VOCABULARY)))
    return found if found is not None else _from_logits(model, batch, token_ids_K, size)


def _from_logits(model: nn.Module, batch: MicroBatch, token_ids_K: Tensor, size: int) -> Found:
    entropies: list[Tensor] = []
    logprobs: list[Tensor] = []
    for start in range(0, batch.trained_tokens, size):
        share = slice(start, start + size)
        logits_KV = trained_logits(
            model, replace(batch, loss_indices_K=batch.loss_indices_K[share])
        ).float()
        logprobs.append(
            chosen_logprobs(logits_KV, token_ids_K[share], batch.old_temperatures_K[share])
        )
        entropies.append(entropies_of(logits_KV / batch.temperatures_K[share][:, None]))
    return torch.cat(entropies), torch.cat(logprobs)
