"""Computation of spans: the end of each chunk, and the start of the next chunk.

Strategies only propose places to cut (`levels`, the best kind first). This module guarantees what
citations rely on:

* *Exact spans.* Chunks are pairs of positions in the given text. Nothing is stripped, joined or
  searched again, so repeated text has no effect. The first chunk starts at 0, the last ends at the
  end of the text, and no chunk starts after the end of the previous chunk.
* *The limit.* The text is tokenized once, and the positions of tokens give the end of a chunk. A
  chunk alone may have more tokens than inside of the text. So each chunk is counted again, and
  shortened if it is over the limit. With a `local` tokenizer, only the two edges of a chunk are
  counted again, up to the first and from the last space that no token reaches over. That takes
  little more than one pass over the text, instead of two or more.
* *Graphemes.* Every place to cut is an end of a grapheme. A grapheme is cut, between code points,
  only if it alone is over the limit. If a single code point is over the limit, `ConfigError` is
  raised, since no chunk can hold it.
* *Overlap moves the start back* into the previous chunk, to the best place at two to four thirds of
  the wanted number of tokens. The end of the previous chunk does not change, and overlap counts
  towards the limit.
* *Linear time.* Every chunk but the last takes at least a quarter of the limit, and looks no
  farther than the limit. So no text is scanned many times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_agent.errors import ConfigError
from hrm_agent.retrieval.chunking.boundaries import Positions, Surface
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.tokenizers.base import Tokenizer
from hrm_agent.retrieval.tokenizers.plain import Characters, Expression

__all__ = ["CutLevel", "Spans"]

_JOINT = re.compile(" (?<=[A-Za-z0-9] )(?=[A-Za-z])")
"""Space that no token of a local tokenizer reaches over."""
_LEAST_WINDOW = 16
"""Number of characters that are searched for the end of a grapheme, in addition to four times those
that fit the limit.
"""


@dataclass(frozen=True)
class CutLevel:
    """Places of one kind where a text may be cut."""

    places: Positions
    """Positions in ascending order. A cut is before the character at the position."""
    strength: NDArray[np.float64] | None = None
    """Quality of each place. The best place within reach is taken (None if all are equal: the last
    place within reach is taken).
    """

    def last(self, first: int, last: int) -> int | None:
        """Best place to end a chunk, from `first` to `last`, both included (None without a
        place).
        """
        low, high = _within(self.places, first, last)
        if low >= high:
            return None
        if self.strength is None:
            return int(self.places[high - 1])
        return int(self.places[low + np.argmax(self.strength[low:high])])

    def nearest(self, wanted: int, first: int, last: int) -> int | None:
        """Place nearest to `wanted`, from `first` to `last`, both included (None without a
        place).
        """
        low, high = _within(self.places, first, last)
        if low >= high:
            return None
        at = min(max(int(self.places.searchsorted(wanted)), low), high - 1)
        before = max(at - 1, low)
        return min(
            int(self.places[before]), int(self.places[at]), key=lambda place: abs(place - wanted)
        )


class Spans:
    """Text with its tokens, cut into chunks within the limit."""

    def __init__(self, surface: Surface, tokenizer: Tokenizer, size: int, overlap: float) -> None:
        """Tokenize a text. `size` is the limit in tokens, `overlap` the share of the limit that a
        chunk has in common with the previous chunk.
        """
        self.text = surface.text
        self.graphemes = surface.graphemes
        self.tokenizer = tokenizer
        self.size = size
        self.overlap = round(size * overlap)
        # the tokens of these tokenizers do not depend on the text before them
        self._restarts = isinstance(tokenizer, Characters | Expression)
        rows = tokenizer.offsets(surface.text)
        self._starts, self._ends = (
            np.ascontiguousarray(rows[:, 0]),
            np.ascontiguousarray(rows[:, 1]),
        )

    def cut(self, levels: Sequence[CutLevel], starts: Sequence[CutLevel]) -> Iterator[Chunk]:
        """Yield chunks. A chunk ends at the best place of `levels`, and its overlap begins at the
        best place of `starts`.
        """
        levels = [self._whole(level) for level in levels]
        starts = [self._whole(level) for level in starts]
        start = end = 0
        while end < len(self.text):
            chunk = (
                self._next(start, end, levels)
                or self._next(end, end, levels)
                or self._within_grapheme(end)
            )
            yield chunk
            end = chunk.end
            start = self._overlapping(chunk, starts)

    def _whole(self, level: CutLevel) -> CutLevel:
        """Level without the places inside of a grapheme."""
        kept = self.graphemes[level.places]
        if kept.all():
            return level
        return CutLevel(
            level.places[kept], None if level.strength is None else level.strength[kept]
        )

    def _next(self, start: int, after: int, levels: Sequence[CutLevel]) -> Chunk | None:
        """Chunk from `start` to a place after `after` (None if no such place is within the limit)."""
        budget = self.size
        step = 1
        while budget > 0 and (limit := self._reach(start, budget)) > after:
            end = self._end(start, after, limit, levels)
            if end is None:
                return None
            tokens = self.count(start, end)
            if tokens <= self.size:
                return Chunk(start, end, tokens, self.text[start:end])
            budget -= max(tokens - self.size, step)
            step *= 2
        return None

    def _end(self, start: int, after: int, limit: int, levels: Sequence[CutLevel]) -> int | None:
        if limit == len(self.text):
            return limit
        first = max(after + (limit - after) // 4 + 1, (start + limit) // 2)
        for level in levels:
            if (place := level.last(first, limit)) is not None:
                return place
        found = np.flatnonzero(self.graphemes[after + 1 : limit + 1])
        return after + 1 + int(found[-1]) if len(found) else None

    def _within_grapheme(self, start: int) -> Chunk:
        """Grapheme at `start`, or as much of it as fits the limit. Raises `ConfigError` if one code
        point is over the limit.
        """
        reached = self._reach(start, self.size) - start
        window = self.graphemes[start + 1 : start + _LEAST_WINDOW + 4 * reached]
        sizes = [int(np.argmax(window)) + 1] if window.any() else []
        sizes += [size for size in (reached, reached // 2, reached // 4) if size > 1]
        for size in (*sizes, 1):
            if (tokens := self.count(start, start + size)) <= self.size:
                return Chunk(start, start + size, tokens, self.text[start : start + size])
        raise ConfigError(
            f"Character {start}, {self.text[start]!r}, has more than {self.size} tokens of"
            f" {self.tokenizer.name}.",
            "Choose a larger chunk size.",
        )

    def _reach(self, start: int, tokens: int) -> int:
        """Farthest position up to which the text from `start` touches at most `tokens` tokens."""
        beyond = int(self._ends.searchsorted(start, "right")) + tokens
        return int(self._starts[beyond]) if beyond < len(self._starts) else len(self.text)

    def _overlapping(self, chunk: Chunk, levels: Sequence[CutLevel]) -> int:
        """Start of the chunk after `chunk`."""
        if not self.overlap or chunk.end == len(self.text):
            return chunk.end
        beyond = int(self._starts.searchsorted(chunk.end))
        most, wanted, least = (
            int(self._starts[max(beyond - tokens, 0)])
            for tokens in (self.overlap * 4 // 3, self.overlap, -(-self.overlap * 2 // 3))
        )
        first = max(most, chunk.start + 1)
        last = min(least, chunk.end)
        for level in levels:
            if (place := level.nearest(wanted, first, last)) is not None:
                return place
        found = np.flatnonzero(self.graphemes[first : last + 1]) + first
        return int(found[np.argmin(np.abs(found - wanted))]) if len(found) else chunk.end

    def count(self, start: int, end: int) -> int:
        """Number of tokens of `text[start:end]` alone, equal to `tokenizer.count`."""
        text = self.text
        if self._restarts:
            low = int(self._starts.searchsorted(start))
            high = int(self._ends.searchsorted(end))
            if (
                low <= high < len(self._ends)
                and self._starts[low] == start
                and self._ends[high] == end
            ):  # whole tokens
                return high + 1 - low
        joint = _JOINT.search(text, start + 1, end) if self.tokenizer.local else None
        if joint is None:
            return self.tokenizer.count(text[start:end])
        first = last = joint.start()
        place = end - 1
        while (place := text.rfind(" ", first + 1, place)) > 0:
            if _JOINT.match(text, place, end):
                last = place
                break
        inside = int(self._starts.searchsorted(last)) - int(self._starts.searchsorted(first))
        return (
            inside + self.tokenizer.count(text[start:first]) + self.tokenizer.count(text[last:end])
        )


def _within(places: Positions, first: int, last: int) -> tuple[int, int]:
    """Indices of the places from `first` to `last`, both included."""
    return int(places.searchsorted(first)), int(places.searchsorted(last, "right"))
