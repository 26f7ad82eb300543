"""Log-probs of the tokens that a policy sampled, under a model.

The distribution is the one that was sampled from: log softmax(logits / T), where T is the
temperature of the token's call. With T = 1 instead, another policy would be trained than the one
that sampled.

A batch of padded rows with few logits goes through the model as usual, so that results are equal to
the last bit. For other batches no tensor of all logits is made (`vocabulary_chunks`), if the
model's logits are the product of hidden states and a weight. If another operation follows that
product (a soft cap, a scale), or the layer is not plain (it has an adapter or is quantised), the
model computes one row of logits for each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar
from weakref import WeakSet

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hrm_agent.errors import ModelError
from hrm_agent.models.local.long_rope import LongRope, dynamic_limit
from hrm_agent.models.local.role_adapters import route_of
from hrm_agent.training.update.batch import ForwardName, MicroBatch
from hrm_agent.training.update.logprobs import log_softmax
from hrm_agent.training.update.logprobs.attention_plan import Run, runs_of
from hrm_agent.training.update.logprobs.log_softmax import chosen_logprobs
from hrm_agent.training.update.logprobs.output_layer import (
    in_place_of_logits,
    only_positions,
    output_layer,
)
from hrm_agent.training.update.logprobs.packed import packed
from hrm_agent.training.update.logprobs.padded import Forward, ModelInputs, padded
from hrm_agent.training.update.logprobs.vocabulary_chunks import logprobs_from_hidden

__all__ = [
    "FORWARDS",
    "by_length",
    "from_hidden",
    "require_fixed_factors",
    "sampled_and_recorded_logprobs",
    "token_logprobs",
    "trained_logits",
]


def by_length(batch: MicroBatch, switch: int) -> tuple[MicroBatch, Bool[Tensor, " N"]]:
    """Split texts that are longer than the length at which a model switches its rotary factors
    (`hrm_agent.models.local.long_rope`).

    A token up to that length was predicted with the short factors. A token beyond it was predicted
    with the long factors, which then apply to all tokens before it, too. So a text with trained
    tokens on both sides goes through the model twice: its beginning, and the whole text.

    Returns a batch in which each entry belongs to a text of its side, in the order of the given
    entries, and a mask of the tokens of long texts. `switch`: largest position that is predicted
    with the short factors.
    """
    long_K = batch.positions_N[batch.loss_indices_K] > switch
    if not bool(long_K.any()):
        return batch, torch.zeros_like(batch.token_ids_N, dtype=torch.bool)
    runs = runs_of(batch.parents_N.cpu().numpy())
    sides = [_up_to(batch, runs, ~long_K), _up_to(batch, runs, long_K)]
    index_N = torch.cat(sides)
    parents_N = torch.empty_like(index_N)
    entries_K = torch.empty_like(batch.loss_indices_K)
    first = 0
    for taken, entries in zip(sides, (~long_K, long_K), strict=True):
        new_N = torch.full((len(batch.token_ids_N) + 1,), -1, dtype=torch.long, device=taken.device)
        new_N[taken] = torch.arange(first, first + len(taken), device=taken.device)
        # index -1 is the last element, which is -1
        parents_N[first : first + len(taken)] = new_N[batch.parents_N[taken]]
        entries_K[entries] = new_N[batch.loss_indices_K[entries]]
        first += len(taken)
    moved = {"token_ids_N": batch.token_ids_N[index_N], "positions_N": batch.positions_N[index_N]}
    long_N = torch.arange(len(index_N), device=index_N.device) >= len(sides[0])
    return replace(batch, **moved, parents_N=parents_N, loss_indices_K=entries_K), long_N


def _up_to(batch: MicroBatch, runs: tuple[Run, ...], entries_K: Tensor) -> Tensor:
    """Indices of the tokens of some entries, and of all tokens before them, ascending."""
    wanted = np.zeros(len(batch.token_ids_N), np.bool_)
    wanted[batch.loss_indices_K[entries_K].cpu().numpy()] = True
    for run in reversed(runs):
        if len(found := np.flatnonzero(wanted[run.start : run.stop])):
            wanted[run.start : run.start + int(found[-1]) + 1] = True
            if run.prefix:
                wanted[run.prefix[-1][1] - 1] = True
    return torch.from_numpy(np.flatnonzero(wanted)).to(batch.token_ids_N.device)


def require_fixed_factors(model: nn.Module, batch: MicroBatch) -> None:
    """Raise `ModelError` if a text is so long that the model's rotary factors depend on
    its length.
    """
    limit = dynamic_limit(model)
    longest = 1 + int(batch.positions_N.max()) if limit is not None else 0
    if limit is not None and longest > limit:
        raise ModelError(
            f"A text has {longest} tokens. Beyond {limit} the model's rotary factors vary with the"
            " length (rope_type dynamic), so other texts in a batch would change its log-probs.",
            f"Train on texts of at most {limit} tokens, or set rope_type to yarn or linear in the"
            " model's config.json.",
        )


Result = TypeVar("Result")

FORWARDS: dict[ForwardName, Forward] = {"padded": padded, "packed": packed, "tree": packed}
"""Forward passes by name. A tree and packed rows have the same forward pass; their
batches differ.
"""

_FOLLOWED: WeakSet[nn.Module] = WeakSet()
"""Output layers that are followed by another operation of the model."""


def token_logprobs(model: nn.Module, batch: MicroBatch) -> Float[Tensor, " K"]:
    """Log-probs of the trained tokens of `batch` at their temperatures, in the order of its
    entries.

    The same module must not be used for sampling meanwhile, since it has hooks. Raises `ModelError`
    for a model that does not support the batch's forward.
    """
    return _logprobs(model, batch, [batch.temperatures_K])[0]


def sampled_and_recorded_logprobs(
    model: nn.Module, batch: MicroBatch
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """Log-probs of `token_logprobs`, and log-probs without a gradient at the temperatures of the
    recorded log-probs.

    The two differ if an engine recorded raw log-probs of a call with a temperature other than 1. A
    tempered log-prob cannot be computed from a raw one, since that needs all logits. So a raw
    record cannot be used in a ratio, but can be compared with the trainer's raw log-prob.
    """
    if torch.equal(batch.temperatures_K, batch.old_temperatures_K):
        logprobs_K = token_logprobs(model, batch)
        return logprobs_K, logprobs_K.detach()
    logprobs_K, recorded_K = _logprobs(
        model, batch, [batch.temperatures_K, batch.old_temperatures_K]
    )
    return logprobs_K, recorded_K


def _logprobs(model: nn.Module, batch: MicroBatch, temperatures: Sequence[Tensor]) -> list[Tensor]:
    """Log-probs at each of the temperatures, with a gradient for the first only."""
    if (route := route_of(model)) is not None:
        route.all_through(batch.role)
    layer = output_layer(model)
    if type(layer) is nn.Linear and layer not in _FOLLOWED and not _as_it_is(batch, layer):
        found = _from_hidden(model, layer, batch, temperatures)
        if found is not None:
            return found
        _FOLLOWED.add(layer)
    logits_KV = trained_logits(model, batch)
    token_ids_K = batch.token_ids_N[batch.loss_indices_K]
    first, *others = temperatures
    without = [chosen_logprobs(logits_KV.detach(), token_ids_K, each) for each in others]
    return [chosen_logprobs(logits_KV, token_ids_K, first), *without]


def _as_it_is(batch: MicroBatch, layer: nn.Linear) -> bool:
    return (
        batch.forward == "padded"
        and batch.trained_tokens * layer.out_features <= log_softmax.CHUNK_ELEMENTS
    )


def _from_hidden(
    model: nn.Module, layer: nn.Linear, batch: MicroBatch, temperatures: Sequence[Tensor]
) -> list[Tensor] | None:
    token_ids_K = batch.token_ids_N[batch.loss_indices_K]
    first, *others = temperatures

    def compute(hidden_PD: Tensor, layer: nn.Linear, places_K: Tensor) -> list[Tensor]:
        found = [logprobs_from_hidden(hidden_PD, layer, places_K, token_ids_K, first)]
        with torch.no_grad():
            return found + [
                logprobs_from_hidden(hidden_PD, layer, places_K, token_ids_K, each)
                for each in others
            ]

    return from_hidden(model, layer, batch, compute)


def from_hidden(
    model: nn.Module,
    layer: nn.Linear,
    batch: MicroBatch,
    compute: Callable[[Tensor, nn.Linear, Tensor], Result],
) -> Result | None:
    """Result of `compute`, called with the hidden states that predict a trained token, the output
    layer, and the index of each entry's state. None if the model's logits differ from the output of
    `layer`.
    """
    with _forwarded(model, batch) as (placed, inputs):
        before_P, places_K = placed.parents_N[placed.loss_indices_K].unique(return_inverse=True)

        def computed(hidden_PD: Tensor, layer: nn.Module) -> Result:
            assert isinstance(layer, nn.Linear)
            return compute(hidden_PD, layer, places_K)

        places = inputs.rows_N[before_P], inputs.columns_N[before_P]
        with in_place_of_logits(layer, *places, computed) as found:
            logits = model(**inputs.arguments).logits
    return found.result if found.is_last(logits) else None


@contextmanager
def _forwarded(model: nn.Module, batch: MicroBatch) -> Generator[tuple[MicroBatch, ModelInputs]]:
    """Batch as it goes through the model, with its entries in the given order, and the model's
    arguments.

    Raises `ModelError` for a model that does not support the batch's forward.
    """
    policy = getattr(model, "policy", model)
    require_fixed_factors(policy, batch)
    rope = LongRope.of(policy)
    if rope is None:
        with FORWARDS[batch.forward](model, batch) as inputs:
            yield batch, inputs
        return
    batch, long_N = by_length(batch, rope.switch)
    with FORWARDS[batch.forward](model, batch) as inputs:
        long_BT = torch.zeros_like(inputs.arguments["input_ids"], dtype=torch.bool)
        long_BT[inputs.rows_N, inputs.columns_N] = long_N
        with rope.sides(long_BT):
            yield batch, inputs


def trained_logits(model: nn.Module, batch: MicroBatch) -> Float[Tensor, "K V"]:
    """Logits that predict the trained tokens of `batch`, in the order of its entries, at
    temperature 1.
    """
    with _forwarded(model, batch) as (placed, inputs):
        before_K = placed.parents_N[placed.loss_indices_K]
        places = inputs.rows_N[before_K], inputs.columns_N[before_K]
        with only_positions(output_layer(model), *places):
            return model(**inputs.arguments).logits
