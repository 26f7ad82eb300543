"""Attention to prefixes that several conversations have in common.

Samples of one prompt have copies of its keys and values, and a step of sampling reads each copy. On
a CPU this is the largest part of attention. Here one copy is read for all of them: each token
attends to the first tokens of its row and to the rest separately, and the two results are combined
by their weights,

    o = o_rest + w (o_first - o_rest),  w = sigmoid(log Z_first - log Z_rest)

where Z is the sum of the exponentials of a part's scores. The first tokens are as many for all
rows, so that the rest begins at the same position in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SharedPrefixes", "shared_prefixes"]

Array = np.ndarray[Any, Any]

_LEAST_SAVED = 0.5
"""Minimum share of the first tokens that need not be read."""
_LEAST_LENGTH = 192
"""Minimum number of first tokens. With fewer, one call of attention is as fast as two."""
_flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def shared_prefixes(stems: Array, lengths: Array, cached: Array) -> SharedPrefixes | None:
    """Prefixes of some rows (None if attention without them is faster).

    `stems`: number of the prefix that a row has in common with others, 0 without one. `lengths`:
    length of that prefix. `cached`: number of all tokens of the row in the cache.
    """
    with_stem = stems > 0
    if not with_stem.any():
        return None
    length = int(min(lengths[with_stem].min(), cached.min()))
    # a row without a stem has its first tokens alone
    numbers = np.where(with_stem, stems, -1 - np.arange(len(stems)))
    rows = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
    most = max(map(len, rows))
    if length < _LEAST_LENGTH or len(rows) * most > 2 * len(stems):
        return None
    if len(rows) > (1 - _LEAST_SAVED) * len(stems):
        return None
    return SharedPrefixes(rows, length)


class SharedPrefixes:
    """First tokens of the rows that are being sampled, and the rows that have them in common."""

    def __init__(self, rows: Sequence[Array], length: int) -> None:
        """`rows`: rows of each prefix; together they are the first rows of the pool."""
        most = max(map(len, rows))
        places = np.empty(sum(map(len, rows)), np.int64)
        for number, each in enumerate(rows):
            places[each] = number * most + np.arange(len(each))
        self.length = length
        self._count = len(rows)
        # a prefix with fewer rows than others has some of them several times
        self._asking = torch.from_numpy(np.concatenate([np.resize(each, most) for each in rows]))
        self._places = torch.from_numpy(places)
        self._holders = torch.from_numpy(np.array([each[0] for each in rows]))

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        rest: Sequence[tuple[slice, slice, Tensor]],
        scale: float | None,
    ) -> Tensor:
        """Attention of queries [rows, key heads, queries of a head, size] to keys and values [rows
        or more, key heads, positions, size]. `rest`: parts of the rows, each with the positions
        after the first tokens and their mask.
        """
        _, heads, queries, size = query.shape
        parts = [
            _flash(
                query[rows],
                keys[rows, :, seen],
                values[rows, :, seen],
                attn_mask=mask,
                scale=scale,
            )
            for rows, seen, mask in rest
        ]
        own, own_sum = (torch.cat(each) for each in zip(*parts, strict=True))
        asking = query.index_select(0, self._asking).view(self._count, -1, heads, queries, size)
        found, found_sum = _flash(
            asking.transpose(1, 2).flatten(2, 3),
            keys[:, :, : self.length].index_select(0, self._holders),
            values[:, :, : self.length].index_select(0, self._holders),
            scale=scale,
        )
        first, first_sum = self._by_row(found, queries), self._by_row(found_sum[..., None], queries)
        weight = torch.sigmoid(first_sum - own_sum[..., None])
        return torch.lerp(own.float(), first.float(), weight).to(own.dtype)

    def _by_row(self, found: Tensor, queries: int) -> Tensor:
        """Results [prefixes, key heads, rows of a prefix * queries, size] by row."""
        split = found.unflatten(2, (-1, queries)).transpose(1, 2)
        return split.flatten(0, 1).index_select(0, self._places)
