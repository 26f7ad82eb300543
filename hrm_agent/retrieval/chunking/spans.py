"""The span core: where the next chunk ends and where the one after it starts.

Strategies only propose places to cut (`levels`, the best kind first); everything that a citation
relies on is kept here, whatever they propose:

* *Exact spans.* Chunks are pairs of positions in the text that was handed in. Nothing is stripped,
  joined or searched for again, so a text that repeats itself cannot confuse them. The first starts
  at 0, the last ends at the end, and none starts after its predecessor's end.
* *The limit.* The text is tokenized once, and positions are looked up in that index. A piece of a
  text may count more on its own than inside of it, so the chunk is counted again and shortened
  where it is over. Where the tokenizer is `local` only its two edges are, up to the first and the
  last space that no token reaches over: one pass and a bit, instead of two and more.
* *Graphemes.* Every place to cut is an end of a grapheme. Only one that is over the limit alone is
  cut, between code points; a code point that is over it alone is an error, as no chunk can hold it.
* *Overlap moves the start back* into the chunk before, to the best place at two to four thirds of
  the wanted number of tokens. The end is not touched, and overlap counts towards the limit.
* *Linear time.* A chunk takes a quarter of its limit at least as long as there is anything to take,
  and looks no farther than the limit, so no text makes it look at the same characters again and
  again.
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
"""No token of a local tokenizer reaches over this space."""
_LEAST_WINDOW = 16
"""Characters in which the end of a grapheme is looked for, beside four times as far as the limit
reaches.
"""


@dataclass(frozen=True)
class CutLevel:
    """One kind of place where a text may be cut."""

    places: Positions
    """Positions in ascending order; a cut is before the character."""
    strength: NDArray[np.float64] | None = None
    """How good each place is: the best within reach is taken. None: all are alike, and the last
    within reach is.
    """

    def last(self, first: int, last: int) -> int | None:
        """The place to end a chunk with, from `first` to `last`, both included."""
        low, high = _within(self.places, first, last)
        if low >= high:
            return None
        if self.strength is None:
            return int(self.places[high - 1])
        return int(self.places[low + np.argmax(self.strength[low:high])])

    def nearest(self, wanted: int, first: int, last: int) -> int | None:
        """The place nearest to `wanted`, from `first` to `last`, both included."""
        low, high = _within(self.places, first, last)
        if low >= high:
            return None
        at = min(max(int(self.places.searchsorted(wanted)), low), high - 1)
        before = max(at - 1, low)
        return min(
            int(self.places[before]), int(self.places[at]), key=lambda place: abs(place - wanted)
        )


class Spans:
    """One text, its tokens and the places to cut it."""

    def __init__(self, surface: Surface, tokenizer: Tokenizer, size: int, overlap: float) -> None:
        """`size`: limit in tokens; `overlap`: share of it that a chunk has in common with the one
        before.
        """
        self.text = surface.text
        self.graphemes = surface.graphemes
        self.tokenizer = tokenizer
        self.size = size
        self.overlap = round(size * overlap)
        # a token does not know what was before it
        self._restarts = isinstance(tokenizer, Characters | Expression)
        rows = tokenizer.offsets(surface.text)
        self._starts, self._ends = (
            np.ascontiguousarray(rows[:, 0]),
            np.ascontiguousarray(rows[:, 1]),
        )

    def cut(self, levels: Sequence[CutLevel], starts: Sequence[CutLevel]) -> Iterator[Chunk]:
        """Chunks that end at the best of `levels`, and overlap from the best of `starts` on."""
        levels, starts = (
            [self._whole(level) for level in levels],
            [self._whole(level) for level in starts],
        )
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
        """Without the places inside of a grapheme."""
        kept = self.graphemes[level.places]
        if kept.all():
            return level
        return CutLevel(
            level.places[kept], None if level.strength is None else level.strength[kept]
        )

    def _next(self, start: int, after: int, levels: Sequence[CutLevel]) -> Chunk | None:
        """The chunk from `start` to some place behind `after`, if there is one within the limit."""
        budget, step = self.size, 1
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
        """The grapheme at `start` or, where it is over the limit, as much of it as fits."""
        reached = self._reach(start, self.size) - start
        window = self.graphemes[start + 1 : start + _LEAST_WINDOW + 4 * reached]
        sizes = [int(np.argmax(window)) + 1] if window.any() else []
        sizes += [size for size in (reached, reached // 2, reached // 4) if size > 1]
        for size in (*sizes, 1):
            if (tokens := self.count(start, start + size)) <= self.size:
                return Chunk(start, start + size, tokens, self.text[start : start + size])
        raise ConfigError(
            f"Character {start}, {self.text[start]!r}, alone is more than {self.size} tokens of"
            f" {self.tokenizer.name}.",
            "Choose a larger chunk size.",
        )

    def _reach(self, start: int, tokens: int) -> int:
        """The farthest position such that the text from `start` up to it touches at most so many
        tokens.
        """
        beyond = int(self._ends.searchsorted(start, "right")) + tokens
        return int(self._starts[beyond]) if beyond < len(self._starts) else len(self.text)

    def _overlapping(self, chunk: Chunk, levels: Sequence[CutLevel]) -> int:
        """Where the chunk after `chunk` starts."""
        if not self.overlap or chunk.end == len(self.text):
            return chunk.end
        beyond = int(self._starts.searchsorted(chunk.end))
        most, wanted, least = (
            int(self._starts[max(beyond - tokens, 0)])
            for tokens in (self.overlap * 4 // 3, self.overlap, -(-self.overlap * 2 // 3))
        )
        first, last = max(most, chunk.start + 1), min(least, chunk.end)
        for level in levels:
            if (place := level.nearest(wanted, first, last)) is not None:
                return place
        found = np.flatnonzero(self.graphemes[first : last + 1]) + first
        return int(found[np.argmin(np.abs(found - wanted))]) if len(found) else chunk.end

    def count(self, start: int, end: int) -> int:
        """Tokens of `text[start:end]` on its own, as `tokenizer.count` would say."""
        text = self.text
        if self._restarts and (whole := self._whole_tokens(start, end)) is not None:
            return whole
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

    def _whole_tokens(self, start: int, end: int) -> int | None:
        """How many tokens lie between, if one starts at `start` and one ends at `end`."""
        first, last = int(self._starts.searchsorted(start)), int(self._ends.searchsorted(end))
        whole = (
            first <= last < len(self._ends)
            and self._starts[first] == start
            and self._ends[last] == end
        )
        return last + 1 - first if whole else None


def _within(places: Positions, first: int, last: int) -> tuple[int, int]:
    """Indices of the places from `first` to `last`, both included."""
    return int(places.searchsorted(first)), int(places.searchsorted(last, "right"))
