"""Keys and values of all conversations of an engine, in one block of memory.

The block has one row per conversation: [2 * layers, rows, kv heads, length, head size]; where
layers differ in heads or in their size, there is one for each shape. Rows in use are kept together
at its start, so that attention reads a view of them and nothing is gathered in a step; a row that
ends or begins is swapped to its place, once. An idle row keeps its contents until it is needed for
something else.

Memory is bounded in tokens (`rows * length`): rows are few while conversations are long. Length
grows by doubling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["KVPool", "KVShape", "LayerKeys", "tensor_on"]

_torch: Any = torch
_FIRST_ROWS = 16
_FIRST_LENGTH = 128


@dataclass(frozen=True, slots=True)
class LayerKeys:
    """Shape of the keys and values of one layer, per token."""

    heads: int
    """Key heads: fewer than query heads where those share."""
    key_size: int
    """Numbers in the key of one head."""
    value_size: int
    """Numbers in the value of one head."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """Shape of all keys and values of a model, per token."""

    layers: tuple[LayerKeys, ...]
    """Each layer's, in their order."""
    dtype: torch.dtype
    """Number format of keys and values."""
    device: torch.device
    """Where the block lies."""

    @property
    def bytes_per_token(self) -> int:
        return self.dtype.itemsize * sum(
            each.heads * (each.key_size + each.value_size) for each in self.layers
        )

    @property
    def heads(self) -> set[int]:
        """The numbers of key heads that there are."""
        return {each.heads for each in self.layers}

    def vectors(self) -> list[tuple[int, int]]:
        """Heads and size of each layer's keys and of its values, in turn."""
        return [
            (each.heads, size) for each in self.layers for size in (each.key_size, each.value_size)
        ]


_Blocks = dict[tuple[int, int], torch.Tensor]


class KVPool:
    """The block of memory. It knows nothing of tokens: `hrm_agent.models.local.cache_rows` does."""

    def __init__(self, shape: KVShape, *, max_rows: int, max_length: int, max_bytes: int) -> None:
        self.shape = shape
        self._max_rows = max_rows
        self._max_tokens = max_bytes // shape.bytes_per_token
        self._max_length = max_length
        self.rows = min(_FIRST_ROWS, max_rows)
        self.length = min(_FIRST_LENGTH, max_length)
        self._blocks = self._allocate(self.rows, self.length)
        seen: Counter[tuple[int, int]] = Counter()
        self._places: list[tuple[tuple[int, int], int]] = []
        """Block of each layer's keys and of its values, and the index in it."""
        for each in shape.vectors():
            self._places.append((each, seen[each]))
            seen[each] += 1

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, [rows, heads, length, head size] each; a view."""
        keys, place = self._places[2 * index]
        values, other = self._places[2 * index + 1]
        return self._blocks[keys][place], self._blocks[values][other]

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
        blocks = self._allocate(rows, length)
        kept = min(rows, self.rows)
        for shape, block in blocks.items():
            block[:, :kept, :, : self.length] = self._blocks[shape][:, :kept]
        self._blocks = blocks
        self.rows = rows
        self.length = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row to another."""
        for block in self._blocks.values():
            block[:, target, :, :length] = block[:, source, :, :length]

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Move rows at once: (from, to, number of tokens) each. A row may be emptied and filled in
        one go.

        Row by row: a row's heads are runs of memory and copied as such, where an indexed copy goes
        number by number.
        """
        for block in self._blocks.values():
            taken = [
                (block[:, source, :, :length].clone(), target) for source, target, length in moves
            ]
            for contents, target in taken:
                block[:, target, :, : contents.shape[2]] = contents

    def clear(self) -> None:
        """Forget everything. Zeros, because attention multiplies by zero what it must not see."""
        for block in self._blocks.values():
            block.zero_()

    def _allocate(self, rows: int, length: int) -> _Blocks:
        shape = self.shape
        counts = Counter(shape.vectors())
        return {
            (heads, size): torch.zeros(
                (count, rows, heads, length, size), dtype=shape.dtype, device=shape.device
            )
            for (heads, size), count in counts.items()
        }


def tensor_on(
    device: torch.device, array: np.ndarray[Any, Any], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """An array as a tensor on `device`; on the CPU the two share their memory."""
    return _torch.from_numpy(array).to(device, dtype)
