"""Where the topic changes, told by words alone.

TextTiling's idea (Hearst 1997) with weights: at each gap between sentences the words of the sentences before it are
compared with those after it, as tf-idf vectors by cosine. A gap where they are less alike than on both sides of it is
a valley, and its depth is how far it lies below the two hills; the deepest valley within reach is where a chunk ends.
Deviations: sentences instead of blocks of a fixed length, inverse document frequency over the sentences of this text,
and the hills are looked for a bounded way off, so that time is linear.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hrm_agent.retrieval.chunking.prose import sentences
from hrm_agent.retrieval.chunking.spans import Level

__all__ = ["boundaries", "topics"]

_WORD = re.compile(r"[^\W_]{2,32}")
_SIDE = 6
"""Sentences on either side of a gap that are compared."""
_HILL = 12
"""Gaps to either side in which the hill beside a valley is looked for."""


def topics(text: str) -> Level:
    """The gaps between sentences, each with its depth."""
    places = sentences(text).places
    if not len(places):
        return Level(places)
    edges = [0, *places.tolist(), len(text)]
    spoken = [Counter(_WORD.findall(text[a:b].lower())) for a, b in pairwise(edges)]
    return Level(places, _depths(np.array(_likeness(spoken))))


def boundaries(text: str) -> list[int]:
    """Positions where another topic begins, whatever the sizes: valleys deeper than most."""
    level = topics(text)
    if level.strength is None:
        return []
    depths = level.strength
    valleys = np.flatnonzero(depths > depths.mean() + depths.std())
    kept = [int(i) for i in valleys if depths[i] == depths[max(i - 2, 0) : i + 3].max()]
    return [int(level.places[i]) for i in kept]


def _likeness(spoken: Sequence[Counter[str]]) -> list[float]:
    """Cosine of the windows before and after each gap."""
    held = Counter(word for words in spoken for word in words)
    pair = _Windows({word: math.log(1 + len(spoken) / count) ** 2 for word, count in held.items()})
    for words in spoken[:_SIDE]:
        pair.move(words, 1, 1)
    likeness: list[float] = []
    for gap in range(1, len(spoken)):
        pair.move(spoken[gap - 1], 0, 1)
        pair.move(spoken[gap - 1], 1, -1)
        if gap + _SIDE <= len(spoken):
            pair.move(spoken[gap + _SIDE - 1], 1, 1)
        if gap > _SIDE:
            pair.move(spoken[gap - 1 - _SIDE], 0, -1)
        likeness.append(pair.cosine())
    return likeness


class _Windows:
    """The words before a gap (0) and after it (1); what the cosine needs is kept up to date as they come and go."""

    def __init__(self, weight: dict[str, float]) -> None:
        """`weight`: squared, of each word."""
        self._weight = weight
        self._words = (Counter[str](), Counter[str]())
        self._squares = [0.0, 0.0]
        self._shared = 0.0

    def move(self, words: Counter[str], side: int, sign: int) -> None:
        """Put a sentence into a window, or take it out (-1)."""
        here, there = self._words[side], self._words[1 - side]
        for word, count in words.items():
            weight, had, change = self._weight[word], here[word], sign * count
            self._squares[side] += weight * change * (2 * had + change)
            self._shared += weight * change * there[word]
            here[word] = had + change
            if not here[word]:
                del here[word]

    def cosine(self) -> float:
        """0 where one side is silent."""
        if not (self._words[0] and self._words[1]):
            return 0.0
        return max(self._shared, 0.0) / math.sqrt(self._squares[0] * self._squares[1])


def _depths(likeness: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each gap lies below the hills on its two sides."""
    padded = np.pad(likeness, _HILL, constant_values=-1.0)
    reach = np.lib.stride_tricks.sliding_window_view(padded, _HILL + 1)
    left, right = reach[: len(likeness)].max(axis=1), reach[_HILL:].max(axis=1)
    return left + right - 2 * likeness
