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
from collections import Counter, deque
from collections.abc import Iterator, Sequence

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
    spoken = [Counter(_WORD.findall(text[a:b].lower())) for a, b in zip(edges, edges[1:], strict=False)]
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


def _likeness(spoken: Sequence[Counter[str]]) -> Iterator[float] | list[float]:
    """Cosine of the windows before and after each gap."""
    held = Counter(word for words in spoken for word in words)
    weight = {word: math.log(1 + len(spoken) / count) for word, count in held.items()}
    before, after = _Window(weight), _Window(weight)
    for words in spoken[:_SIDE]:
        after.add(words)
    likeness: list[float] = []
    for gap in range(1, len(spoken)):
        before.add(spoken[gap - 1])
        after.drop()
        if gap + _SIDE <= len(spoken):
            after.add(spoken[gap + _SIDE - 1])
        if gap > _SIDE:
            before.drop()
        likeness.append(before.cosine(after))
    return likeness


class _Window:
    """The words of a few sentences, as they come and go."""

    def __init__(self, weight: dict[str, float]) -> None:
        self._weight = weight
        self._sentences = deque[Counter[str]]()
        self.words = Counter[str]()

    def add(self, words: Counter[str]) -> None:
        self._sentences.append(words)
        self.words.update(words)

    def drop(self) -> None:
        for word, count in self._sentences.popleft().items():
            if self.words[word] == count:
                del self.words[word]
            else:
                self.words[word] -= count

    def cosine(self, other: _Window) -> float:
        few, many = sorted((self.words, other.words), key=len)
        shared = sum(count * many[word] * self._weight[word] ** 2 for word, count in few.items() if word in many)
        return shared / (self._length() * other._length()) if shared else 0.0

    def _length(self) -> float:
        return math.sqrt(sum((count * self._weight[word]) ** 2 for word, count in self.words.items()))


def _depths(likeness: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each gap lies below the hills on its two sides."""
    padded = np.pad(likeness, _HILL, constant_values=-1.0)
    reach = np.lib.stride_tricks.sliding_window_view(padded, _HILL + 1)
    left, right = reach[: len(likeness)].max(axis=1), reach[_HILL:].max(axis=1)
    return left + right - 2 * likeness
