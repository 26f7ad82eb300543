"""Where Markdown may be cut: before headings, the upper ones first, then between blocks, then as prose.

Read line by line rather than parsed: all that is needed is which lines begin a block, and a page that is no valid
Markdown has to be cut too. Inside a fence nothing is a heading or a sentence, and only line ends are places to cut.
Not covered: underlined headings, fences inside of quotations, HTML blocks.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hrm_agent.retrieval.chunking.prose import lines, sentences, words
from hrm_agent.retrieval.chunking.spans import Level

__all__ = ["markdown_levels"]

Kind = Literal["upper", "lower", "block", "open", "close"]

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t\n]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])[ \t]")


def markdown_levels(text: str) -> Sequence[Level]:
    """Headings of rank 1 and 2, the other headings, blocks, sentences, lines, words."""
    found: dict[Kind, list[int]] = {"upper": [], "lower": [], "block": [], "open": [], "close": []}
    for kind, start in _marks(text):
        found[kind].append(start)
    places = {kind: np.array(starts, dtype=np.int64) for kind, starts in found.items()}
    upper, lower, blocks = (Level(places[kind]) for kind in ("upper", "lower", "block"))
    sentence = sentences(text).places
    prose = Level(sentence[~_between(sentence, places["open"], places["close"])])
    return upper, lower, blocks, prose, lines(text), words(text)


def _between(places: NDArray[np.int64], opened: NDArray[np.int64], closed: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places are after an opening and not after its closing."""
    return np.searchsorted(opened, places) > np.searchsorted(closed, places, "right")


def _marks(text: str) -> Iterator[tuple[Kind, int]]:
    """What begins at which line, in ascending order for each kind."""
    fence, blank = "", True
    for line in _LINE.finditer(text):
        mark = _FENCE.match(line[0])
        if fence:
            if mark and mark[1].startswith(fence) and not line[0][mark.end() :].strip():
                fence, blank = "", True
                yield "close", line.end()
        elif mark:
            fence = mark[1]
            yield "open", line.start()
            yield "block", line.start()
        else:
            blank = yield from _plain_line(line[0], line.start(), after_blank=blank)


def _plain_line(line: str, start: int, *, after_blank: bool) -> Generator[tuple[Kind, int], None, bool]:
    if heading := _HEADING.match(line):
        yield "upper" if len(heading[1]) < 3 else "lower", start
    blank = not line.strip()
    if not blank and (after_blank or heading or _ITEM.match(line)):
        yield "block", start
    return blank
