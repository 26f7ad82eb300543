"""Rows of tokens that share prefixes, as a tree in which each prefix stands once.

Siblings of a group begin with one prompt, and the rows of one rollout with what its calls have in common. In
lexicographic order rows that share most stand together, and what a row adds to those before it is what it does not
share with its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["GrowingTree", "PlacedRows", "lexicographic", "placed_rows"]


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """N tokens, a parent before its children, and all that descends from a token directly behind it."""

    token_ids: np.ndarray
    """Token ids."""
    positions: np.ndarray
    """Depth of each token, from 0."""
    parents: np.ndarray
    """Index of the token before it; -1 for the first of a sequence."""
    indices: list[np.ndarray]
    """For each row, where its tokens stand."""


def lexicographic(token_ids: np.ndarray) -> bytes:
    """A key by which rows are in the order of their tokens."""
    return token_ids.astype(">i8").tobytes()


def placed_rows(rows: Sequence[np.ndarray], *, shared: bool) -> PlacedRows:
    """The rows one after the other; `shared`: each without what it has in common with the one before it.

    With `shared`, rows in lexicographic order become a tree in which no prefix stands twice.
    """
    indices: list[np.ndarray] = []
    commons: list[int] = []
    size = 0
    for number, row in enumerate(rows):
        common = _in_common(rows[number - 1], row) if shared and number else 0
        added = np.arange(size, size + len(row) - common)
        indices.append(np.concatenate([indices[-1][:common], added]) if common else added)
        commons.append(common)
        size += len(added)
    positions = np.concatenate([np.arange(common, len(row)) for common, row in zip(commons, rows, strict=True)])
    parents = np.arange(size) - 1
    for common, places in zip(commons, indices, strict=True):
        if common < len(places):
            parents[places[common]] = places[common - 1] if common else -1
    token_ids = np.concatenate([row[common:] for common, row in zip(commons, rows, strict=True)])
    return PlacedRows(token_ids, positions, parents, indices)


def _in_common(first: np.ndarray, second: np.ndarray) -> int:
    """Number of tokens with which both begin."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


@dataclass(slots=True)
class GrowingTree:
    """How many tokens the tree of some rows has, while rows are added in any order."""

    size: int = 0
    """Tokens, each once."""
    _keys: list[bytes] = field(default_factory=list[bytes])
    _rows: list[np.ndarray] = field(default_factory=list[np.ndarray])

    def add(self, row: np.ndarray) -> None:
        key = lexicographic(row)
        place = bisect_left(self._keys, key)
        neighbours = self._rows[max(0, place - 1) : place + 1]
        self.size += len(row) - max((_in_common(each, row) for each in neighbours), default=0)
        self._keys.insert(place, key)
        self._rows.insert(place, row)
