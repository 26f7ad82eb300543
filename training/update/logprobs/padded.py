"""Inputs of a forward pass, and the padded forward pass: rows as a B x T tensor with padding on the
right, which every causal model accepts.

An attention mask and position ids are not needed: in a causal model no token sees the padding to
its right, and positions count from 0 by default.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from hrm_agent.training.update.batch import MicroBatch

__all__ = ["Forward", "ModelInputs", "padded", "side_by_side"]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of one model call for a whole micro-batch."""

    arguments: Mapping[str, Any]
    """Keyword arguments of the model's forward."""
    rows_N: Int[Tensor, " N"]  # noqa: N815
    """Row of each token of the micro-batch within the model's B x T."""
    columns_N: Int[Tensor, " N"]  # noqa: N815
    """Column of each token within the model's B x T."""


Forward = Callable[[nn.Module, MicroBatch], AbstractContextManager[ModelInputs]]
"""Context manager that yields inputs of the model. Within the block the model may be called with
these inputs only.
"""


@contextmanager
def padded(model: nn.Module, batch: MicroBatch) -> Generator[ModelInputs]:
    """Model inputs of padded rows. Raises `ValueError` if tokens share a prefix."""
    del model
    token_ids_BT, rows_N = side_by_side(batch)
    yield ModelInputs({"input_ids": token_ids_BT, "use_cache": False}, rows_N, batch.positions_N)


def side_by_side(
    batch: MicroBatch, pad_id: int = 0
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " N"]]:
    """Token ids of the rows of `batch`, and the row of each token. A token's column is its
    position.
    """
    index_N = torch.arange(len(batch.token_ids_N), device=batch.token_ids_N.device)
    first_N = batch.parents_N == -1
    if not bool((first_N | (batch.parents_N == index_N - 1)).all()):
        raise ValueError("tokens share a prefix, and a padded forward takes rows only")
    rows_N = first_N.cumsum(0) - 1
    shape = int(rows_N[-1]) + 1, int(batch.positions_N.max()) + 1
    token_ids_BT = torch.full(
        shape, pad_id, dtype=batch.token_ids_N.dtype, device=batch.token_ids_N.device
    )
    token_ids_BT[rows_N, batch.positions_N] = batch.token_ids_N
    return token_ids_BT, rows_N
