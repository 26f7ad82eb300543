"""Changes of topic, found by words alone or by vectors.

The method is TextTiling (Hearst 1997). At each gap between sentences, the sentences before it are
compared with those after it, by cosine. If they are less similar than at the gaps on both sides,
the gap is a valley between two hills. The depth of a valley is its distance below both hills. A
chunk ends at the deepest valley within reach.

There are three deviations from the paper. Sentences are used instead of blocks of a fixed length.
Similarity is the mean over a narrow and a wide window, since topics may be short or long. Hills are
searched within a bounded distance, which makes the time linear.

Without embeddings, a sentence is represented by its words. A word weighs more if fewer sentences of
the text have it. With embeddings, a sentence is represented by its vector.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hrm_agent.retrieval.chunking.boundaries import WORD, Positions, Surface
from hrm_agent.retrieval.chunking.sentences import Prose
from hrm_agent.retrieval.chunking.spans import CutLevel

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

__all__ = ["topics"]

Scores = NDArray[np.float64]

_SIDES = (4, 8)
"""Number of sentences compared on either side of a gap, in the narrow and in the wide window."""
_HILL = 12
"""Number of gaps on either side of a valley in which its hill is searched."""
_STEM = 6
"""Number of first letters by which words are compared. So "planets" and "planetary" are equal, but
also some unrelated words.
"""


def topics(prose: Prose, embeddings: Embeddings | None = None) -> CutLevel:
    """Gaps between sentences, each with its depth: the sum of its distances below the hills on both
    sides.
    """
    places = prose.sentences
    if not len(places):
        return CutLevel(places)
    if embeddings is None:
        products = _products(prose, places)
        sums = np.concatenate((np.zeros((len(products), 1)), products.cumsum(axis=1)), axis=1)
        alike: Scores = np.mean([_alike_in_window(sums, side) for side in _SIDES], axis=0)
    else:
        alike = _alike_in_vectors(prose, places, embeddings)
    padded = np.pad(alike, _HILL, constant_values=-1.0)
    reach = sliding_window_view(padded, _HILL + 1)
    left = reach[: len(alike)].max(axis=1)
    right = reach[_HILL:].max(axis=1)
    return CutLevel(places, left + right - 2 * alike)


def _alike_in_vectors(surface: Surface, places: Positions, embeddings: Embeddings) -> Scores:
    """Cosine of the mean vectors before and after each gap."""
    from hrm_agent.retrieval.embeddings import vectors_of

    edges = [0, *places.tolist(), len(surface.text)]
    rows = vectors_of(embeddings, [surface.text[a:b] for a, b in pairwise(edges)])
    sums = np.concatenate((np.zeros((1, rows.shape[1])), rows.cumsum(axis=0, dtype=np.float64)))
    gaps = np.arange(1, len(rows))
    alike = np.zeros(len(rows) - 1)
    for side in _SIDES:
        before = sums[gaps] - sums[np.maximum(gaps - side, 0)]
        after = sums[np.minimum(gaps + side, len(rows))] - sums[gaps]
        alike += _cosine(
            (before * after).sum(axis=1), (before**2).sum(axis=1), (after**2).sum(axis=1)
        )
    return alike / len(_SIDES)


def _alike_in_window(sums: Scores, side: int) -> Scores:
    """Cosine of `side` sentences before and after each gap. `sums[d, i]`: sum of the products [d,
    0] to [d, i - 1] of `_products`.
    """
    count = sums.shape[1] - 1
    gaps = np.arange(1, count)
    least = np.maximum(gaps - side, 0)
    most = np.minimum(gaps + side, count)
    shared, before, after = np.zeros((3, count - 1))
    for apart, row in enumerate(sums[: 2 * side]):
        first = np.maximum(least, gaps - apart)
        last = np.minimum(gaps, most - apart)
        shared += row[np.maximum(last, first)] - row[first]
        if apart < side:
            times = 1 if apart == 0 else 2
            before += times * (row[np.maximum(gaps - apart, least)] - row[least])
            after += times * (row[np.maximum(most - apart, gaps)] - row[gaps])
    return _cosine(shared, before, after)


def _products(surface: Surface, places: Positions) -> Scores:
    """Products [d, i] of the word vectors of sentences i and i + d."""
    words, sentence = _words(surface, places)
    count = len(places) + 1
    reach = 2 * max(_SIDES)
    stride = count + reach
    keys, times = np.unique(words * stride + sentence, return_counts=True)
    words = keys // stride
    sentence = keys % stride
    weight = np.log(1 + count / np.bincount(words)[words]) * times
    products = np.zeros((reach, count))
    products[0] = np.bincount(sentence, weight**2, minlength=count)
    for lag in range(1, min(reach, len(keys))):
        apart = keys[lag:] - keys[:-lag]
        near = np.flatnonzero(apart < reach)
        cells = apart[near] * count + sentence[near]
        products += np.bincount(
            cells, weight[near] * weight[near + lag], minlength=reach * count
        ).reshape(reach, count)
    return products


def _words(surface: Surface, places: Positions) -> tuple[Positions, Positions]:
    """Hash of the first letters of each word of two letters or more, and the index of its
    sentence.
    """
    letter = np.zeros(len(surface.text) + 2, dtype=np.bool_)
    letter[1:-1] = surface.kinds & WORD
    edges = np.flatnonzero(letter[1:] != letter[:-1])
    starts = edges[::2]
    lengths = edges[1::2] - edges[::2]
    starts = starts[lengths > 1]
    lengths = lengths[lengths > 1]
    numbers = np.zeros(len(starts), dtype=np.uint64)
    for place in range(_STEM):
        inside = np.flatnonzero(lengths > place)
        letters = surface.points[starts[inside] + place].astype(np.uint64)
        letters |= np.where((letters >= 0x41) & (letters <= 0x5A), np.uint64(0x20), np.uint64(0))
        numbers[inside] = numbers[inside] * np.uint64(0x9E3779B97F4A7C15) + letters
    bits = np.uint64(64 - max(len(starts), 16).bit_length() - 3)
    return (numbers * np.uint64(0xBF58476D1CE4E5B9) >> bits).astype(np.int64), places.searchsorted(
        starts, "right"
    )


def _cosine(shared: Scores, before: Scores, after: Scores) -> Scores:
    """Cosine of two sides (0 if one side has no words)."""
    scale = np.sqrt(np.maximum(before, 0) * np.maximum(after, 0))
    return np.divide(shared, scale, out=np.zeros_like(shared), where=scale > 1e-9)
