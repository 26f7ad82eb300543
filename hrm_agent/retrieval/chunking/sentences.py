"""Places to cut prose: paragraphs, sentences, lines, words.

A sentence ends with a mark such as a full stop and white space. Full-width marks need no white
space. A full stop only counts if the next character is not a small letter and the word before is
not an abbreviation. This rule may be wrong, which only gives a worse place to cut.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hrm_agent.retrieval.chunking.boundaries import LOWER, WORD, Flags, Positions, Surface

__all__ = ["Prose"]

_STOP = 0x2E
_MARKS = tuple(map(ord, "!?\u2026"))
_WIDE_MARKS = tuple(map(ord, "\u3002\uff01\uff1f"))
_CLOSING = tuple(map(ord, "\"'\u2019\u201d)]"))
_WIDE_CLOSING = tuple(map(ord, "\u300d\u300f\u201d"))
_ABBREVIATIONS = "Mr Mrs Ms Dr Prof St Jr Sr vs etc cf No Fig al approx Inc Ltd Co Gen Col Rev"
_LONGEST = len("approx")


class Prose(Surface):
    """Text with the places between its parts. A place is the position of the first character of the
    next part.
    """

    @cached_property
    def paragraphs(self) -> Positions:
        """Starts of paragraphs, after blank lines."""
        ends = self.visible(self.lines)
        ends = ends[ends < len(self.text)]
        return np.unique(ends[1:][ends[1:] == ends[:-1]])

    @cached_property
    def sentences(self) -> Positions:
        """Starts of sentences. A sentence also starts with each paragraph."""
        points = self.points
        size = len(self.text)
        marks = np.concatenate([np.flatnonzero(points == mark) for mark in (_STOP, *_MARKS)])
        behind = marks + 1
        for _ in range(3):
            behind = behind + _among(points, behind, _CLOSING)
        spaced = behind < size
        spaced[spaced] = self.space[behind[spaced]]
        marks = marks[spaced]
        ends = self.visible(behind[spaced])
        begins = ends < size
        marks = marks[begins]
        ends = ends[begins]
        stops = points[marks] == _STOP
        stops[stops] = ((self.kinds[ends[stops]] & LOWER) != 0) | _abbreviated(self, marks[stops])
        found = [ends[~stops], self.paragraphs]
        if not self.text.isascii():
            wide = np.flatnonzero(np.isin(points, _WIDE_MARKS)) + 1
            found.append(wide + _among(points, wide, _WIDE_CLOSING))
        return np.unique(np.concatenate(found))


def _among(points: NDArray[np.uint32], places: Positions, wanted: tuple[int, ...]) -> Flags:
    """Flags that are True if one of the `wanted` characters is at the place."""
    found = places < len(points)
    found[found] = np.isin(points[places[found]], wanted)
    return found


def _abbreviated(surface: Surface, stops: Positions) -> Flags:
    """Flags that are True for full stops after an abbreviation: a listed word, a single capital, or
    a letter after a full stop ("e.g.").
    """
    packed = np.zeros(len(stops), dtype=np.int64)
    running = np.ones(len(stops), dtype=np.bool_)
    length = np.zeros(len(stops), dtype=np.int64)
    for back in range(1, _LONGEST + 2):
        before = stops - back
        running &= before >= 0
        running[running] = (surface.kinds[before[running]] & WORD) != 0
        packed[running] = packed[running] << 8 | np.minimum(surface.points[before[running]], 0xFF)
        length += running
    dotted = _among(surface.points, np.maximum(stops - 2, 0), (_STOP,))
    capital = (packed >= ord("A")) & (packed <= ord("Z"))
    letter = packed >= ord("A")
    listed = [int.from_bytes(word[::-1].encode()) for word in _ABBREVIATIONS.split()]
    return np.isin(packed, listed) | ((length == 1) & (capital | letter & dotted))
