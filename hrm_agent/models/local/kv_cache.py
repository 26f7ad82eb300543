"""Keys and values of all conversations of an engine, in two blocks of memory for each layer.

A block has one row per conversation: [rows, kv heads, length, head size]. Used rows are kept
together at the start of the blocks, so that attention reads a view of them without gathering. A row
is moved only when its conversation begins or ends. An idle row keeps its contents until it is
needed.

Memory is limited in tokens (`rows * length`), so there are fewer rows while conversations are long.
If a conversation does not fit, the length grows by half, at least by 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["KVPool", "KVShape", "LayerKeys", "tensor_on"]

_torch: Any = torch
_FIRST_ROWS = 16
_FIRST_LENGTH = 128
_GRAIN = 64
"""Number of tokens by which lengths differ."""


@dataclass(frozen=True, slots=True)
class LayerKeys:
    """Shape of the keys and values of one layer, per token."""

    heads: int
    """Number of key heads (fewer than query heads if several query heads share a key head)."""
    key_size: int
    """Size of a key of one head."""
    value_size: int
    """Size of a value of one head."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """Shape of all keys and values of a model, per token."""

    layers: tuple[LayerKeys, ...]
    """Shapes of the layers, in order."""
    dtype: torch.dtype
    """Number format of keys and values."""
    device: torch.device
    """Device of the blocks."""

    @property
    def bytes_per_token(self) -> int:
        return self.dtype.itemsize * sum(
            each.heads * (each.key_size + each.value_size) for each in self.layers
        )

    @property
    def heads(self) -> set[int]:
        """Distinct numbers of key heads."""
        return {each.heads for each in self.layers}

    def vectors(self) -> list[tuple[int, int]]:
        """Heads and size of each layer's keys and values, alternately."""
        return [
            (each.heads, size) for each in self.layers for size in (each.key_size, each.value_size)
        ]


class KVPool:
    """Blocks of memory for keys and values, two for each layer. Which tokens their rows hold is
    known in `hrm_agent.models.local.cache_rows`.
    """

    def __init__(self, shape: KVShape, *, max_rows: int, max_length: int, max_bytes: int) -> None:
        self.shape = shape
        self._max_rows = max_rows
        self._max_tokens = max_bytes // shape.bytes_per_token
        self._max_length = max_length
        self.resized = 0
        """Number of changes of the size. Each gives all blocks other memory."""
        self._by_index = shape.device.type != "cpu"
        self._blocks: list[torch.Tensor] = []
        """Keys and values of each layer, alternately, each [rows, heads, length, head size]."""
        self.shrink()

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, [rows, heads, length, head size] each."""
        return self._blocks[2 * index], self._blocks[2 * index + 1]

    def rows_for(self, length: int) -> int:
        """Maximum number of rows of `length` tokens (at least one)."""
        return max(1, min(self._max_rows, self._max_tokens // self.length_for(length)))

    def length_for(self, length: int) -> int:
        """Length that the blocks need for a row of `length` tokens."""
        fitting = self.length
        while fitting < length:
            fitting += max(_FIRST_LENGTH, fitting // 2 // _GRAIN * _GRAIN)
        return max(min(fitting, self._max_length), self.length)

    def resize(self, rows: int, length: int) -> None:
        """Change the size block by block, so that only one exists twice. Rows beyond `rows` are
        lost. After an error only `shrink` may follow.
        """
        if (rows, length) == (self.rows, self.length):
            return
        kept, known = min(rows, self.rows), self.length
        self._set_size(rows, length)
        for index, shape in enumerate(self.shape.vectors()):
            block = self._block(*shape)
            block[:kept, :, :known] = self._blocks[index][:kept]
            self._blocks[index] = block

    def shrink(self) -> None:
        """Free the memory of all rows but a few. All contents are lost."""
        self._blocks.clear()
        self._set_size(min(_FIRST_ROWS, self._max_rows), min(_FIRST_LENGTH, self._max_length))
        self._blocks.extend(self._block(*each) for each in self.shape.vectors())

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row to another."""
        for block in self._blocks:
            block[target, :, :length] = block[source, :, :length]

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Move rows, each as (from, to, number of tokens). A row may be both source and target.

        On a CPU the rows are copied one by one, since a row's heads are contiguous memory. One
        indexed copy of all rows would move single numbers. On a GPU each copy costs a launch, so
        that one indexed copy is less.
        """
        if not moves:
            return
        if self._by_index:
            places = torch.tensor(moves, device=self.shape.device).T
            longest = max(length for _, _, length in moves)
            for block in self._blocks:
                block[places[1], :, :longest] = block[places[0], :, :longest]
            return
        for block in self._blocks:
            taken = [
                (block[source, :, :length].clone(), target) for source, target, length in moves
            ]
            for contents, target in taken:
                block[target, :, : contents.shape[1]] = contents

    def clear(self) -> None:
        """Clear all contents. They become zeros, since attention multiplies masked positions by
        zero, and other contents (not a number) could survive that.
        """
        for block in self._blocks:
            block.zero_()

    def _set_size(self, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.resized += 1

    def _block(self, heads: int, size: int) -> torch.Tensor:
        shape = self.shape
        return torch.zeros(
            (self.rows, heads, self.length, size), dtype=shape.dtype, device=shape.device
        )


def tensor_on(
    device: torch.device, array: np.ndarray[Any, Any], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Array as a tensor on `device`. On the CPU the two share memory."""
    return _torch.from_numpy(array).to(device, dtype)
