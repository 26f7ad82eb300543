"""Text as arrays with one number per character, from which places to cut are computed.

numpy finds places to cut in the whole text at once, in a few nanoseconds per character. A tokenizer
takes about a hundred, so all kinds of places together cost less than tokenizing. No text is scanned
twice, however unusual.
"""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from hrm_agent.retrieval.chunking.graphemes import code_points, grapheme_ends

__all__ = ["LOWER", "SPACE", "WORD", "Flags", "Positions", "Surface"]

Positions = NDArray[np.int64]
Flags = NDArray[np.bool_]

SPACE, WORD, LOWER = 1, 2, 4
"""Bits of `Surface.kinds`: white space, a letter or a digit, a small letter."""
_TABLE = 0x3100
"""Number of code points in the table of kinds. All white space is in the table. Code points beyond
it count as letters without case.
"""


class Surface:
    """Views of one text, each computed on first use."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def points(self) -> NDArray[np.uint32]:
        """Code points. Position i of the text is index i of every array here."""
        return code_points(self.text)

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        return _kinds()[np.minimum(self.points, _TABLE)]

    @cached_property
    def space(self) -> Flags:
        return (self.kinds & SPACE).astype(np.bool_)

    @cached_property
    def graphemes(self) -> Flags:
        """Flags, one more than there are characters. Flag i is True if the text may be cut before
        character i.
        """
        return grapheme_ends(self.text, self.points)

    @cached_property
    def words(self) -> Positions:
        """Positions of visible characters after white space."""
        return np.flatnonzero(self.space[:-1] & ~self.space[1:]) + 1

    @cached_property
    def lines(self) -> Positions:
        """Starts of all lines but the first. A line break at the very end starts a line, too."""
        return np.flatnonzero(self.points == 0x0A) + 1

    @cached_property
    def written_lines(self) -> tuple[Positions, Flags]:
        """Starts of the lines that are not blank, and flags that are True if a blank line or
        nothing precedes the line.
        """
        starts = np.concatenate((np.zeros(1, dtype=np.int64), self.lines))
        ends = np.append(self.lines, len(self.text))
        written = self.visible(starts) < ends
        after_blank = np.append(True, ~written[:-1])
        return starts[written], after_blank[written]

    def visible(self, places: Positions) -> Positions:
        """First visible character from each place on (length of the text if there is none)."""
        inside = places < len(self.text)
        wanted = places.copy()
        blank = np.flatnonzero(inside)[self.space[places[inside]]]
        after = self.words.searchsorted(places[blank], "right")
        wanted[blank] = np.append(self.words, len(self.text))[after]
        return wanted


@cache
def _kinds() -> NDArray[np.uint8]:
    kinds = np.zeros(_TABLE + 1, dtype=np.uint8)
    for point in range(_TABLE):
        char = chr(point)
        kinds[point] = SPACE * char.isspace() | WORD * char.isalnum() | LOWER * char.islower()
    kinds[_TABLE] = WORD
    return kinds
