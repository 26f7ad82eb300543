"""Texts that grow beyond the length at which a model switches its rotary factors
(`hrm_agent.models.local.long_rope`).

A token up to that length was predicted with the short factors, and one beyond it with the long
factors for all tokens before it. A text with trained tokens on both sides goes through the model
twice: its beginning, and all of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hrm_agent.errors import ModelError
from hrm_agent.models.local.long_rope import dynamic_limit
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.logprobs.attention_plan import Run, runs_of

__all__ = ["by_length", "require_fixed_factors"]


def by_length(batch: MicroBatch, switch: int) -> tuple[MicroBatch, Bool[Tensor, " N"]]:
    """Batch in which each entry belongs to a text of its own side, in the order of the entries, and
    a mask of the tokens of long texts.

    `switch`: maximum number of tokens before one that is predicted with the short factors.
    """
    long_K = batch.positions_N[batch.loss_indices_K] > switch
    if not bool(long_K.any()):
        return batch, torch.zeros_like(batch.token_ids_N, dtype=torch.bool)
    runs = runs_of(batch.parents_N.cpu().numpy())
    sides = [_up_to(batch, runs, ~long_K), _up_to(batch, runs, long_K)]
    index_N = torch.cat(sides)
    parents_N, entries_K = torch.empty_like(index_N), torch.empty_like(batch.loss_indices_K)
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
    """Raise `ModelError` if the model would use other rotary factors for every length of a text."""
    limit = dynamic_limit(model)
    longest = 1 + int(batch.positions_N.max()) if limit is not None else 0
    if limit is not None and longest > limit:
        raise ModelError(
            f"A text has {longest} tokens, and beyond {limit} the model has other rotary factors at"
            " every length (rope_type dynamic): what is computed beside it would change its"
            " log-probs.",
            f"Train on texts of at most {limit} tokens, or set rope_type to yarn or linear in the"
            " model's config.json.",
        )
