"""Keys and values of all conversations of an engine, in one block of memory.

The block has one row per conversation: [2 * layers, rows, kv heads, length, head size]. Rows in use are kept together
at its start, so that attention reads a view of them and nothing is gathered in a step; a row that ends or begins is
swapped to its place, once. An idle row keeps its contents until it is needed for something else.

Memory is bounded in tokens (`rows * length`): rows are few while conversations are long. Length grows by doubling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["KVPool", "KVShape", "tensor_on"]

_torch: Any = torch
_FIRST_ROWS = 16
_FIRST_LENGTH = 128


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a model stores per token."""

    layers: int
    """Layers with attention, each with keys and values."""
    heads: int
    """Key heads of a layer: fewer than query heads where those share."""
    head_size: int
    """Numbers in the key, or value, of one head."""
    dtype: torch.dtype
    """Number format of keys and values."""
    device: torch.device
    """Where the block lies."""

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.head_size * self.dtype.itemsize


class KVPool:
    """The block of memory. It knows nothing of tokens: `hrm_agent.models.local.cache_rows` does."""

    def __init__(self, shape: KVShape, *, max_rows: int, max_length: int, max_bytes: int) -> None:
        self.shape = shape
        self._max_rows = max_rows
        self._max_tokens = max_bytes // shape.bytes_per_token
        self._max_length = max_length
        self.rows = min(_FIRST_ROWS, max_rows)
        self.length = min(_FIRST_LENGTH, max_length)
        self._block = self._allocate(self.rows, self.length)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, [rows, heads, length, head size] each; a view."""
        return self._block[2 * index], self._block[2 * index + 1]

    def rows_for(self, length: int) -> int:
        """How many rows there may be if each is to hold `length` tokens; at least one."""
        return max(1, min(self._max_rows, self._max_tokens // self.length_for(length)))

    def length_for(self, length: int) -> int:
        """The length that the block will have when a row of `length` tokens has to fit."""
        fitting = self.length
        while fitting < length:
            fitting *= 2
        return max(min(fitting, self._max_length), self.length)

    def resize(self, rows: int, length: int) -> None:
        """Change the block's size; rows beyond `rows` are lost."""
        if (rows, length) == (self.rows, self.length):
            return
        block = self._allocate(rows, length)
        kept = min(rows, self.rows)
        block[:, :kept, :, : self.length] = self._block[:, :kept]
        self._block, self.rows, self.length = block, rows, length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row to another."""
        self._block[:, target, :, :length] = self._block[:, source, :, :length]

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Move rows at once: (from, to, number of tokens) each. A row may be emptied and filled in one go.

        Row by row: a row's heads are runs of memory and copied as such, where an indexed copy goes number by number.
        """
        taken = [(self._block[:, source, :, :length].clone(), target) for source, target, length in moves]
        for contents, target in taken:
            self._block[:, target, :, : contents.shape[2]] = contents

    def clear(self) -> None:
        """Forget everything. Zeros, because attention multiplies by zero what it must not see."""
        self._block.zero_()

    def _allocate(self, rows: int, length: int) -> torch.Tensor:
        shape = self.shape
        size = (2 * shape.layers, rows, shape.heads, length, shape.head_size)
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)


def tensor_on(device: torch.device, array: np.ndarray[Any, Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An array as a tensor on `device`; on the CPU the two share their memory."""
    return _torch.from_numpy(array).to(device, dtype)
