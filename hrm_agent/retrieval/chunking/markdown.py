"""Places to cut Markdown. Headings are preferred, those of the upper ranks most, then changes of
topic, then ends of blocks.

Text is read line by line and not parsed, since only the lines that begin a block are needed, and
invalid Markdown has to be cut, too. Inside a fence nothing counts as a heading or a sentence, and
only line ends are places to cut. Not covered: underlined headings, fences inside of quotations,
HTML blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hrm_agent.retrieval.chunking.boundaries import Flags, Positions
from hrm_agent.retrieval.chunking.semantic import topics
from hrm_agent.retrieval.chunking.sentences import Prose
from hrm_agent.retrieval.chunking.spans import CutLevel

__all__ = ["markdown_levels"]

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t\n]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^\n]*")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])[ \t]")


def markdown_levels(prose: Prose) -> Sequence[CutLevel]:
    """Places by preference: headings of rank 1 and 2, other headings, changes of topic, blocks,
    sentences, lines, words.
    """
    starts, after_blank = prose.written_lines
    first = prose.points[prose.visible(starts)]
    fences = np.array(
        list(_fences(prose.text, starts[_among(first, "`~")])), dtype=np.int64
    ).reshape(-1, 2)
    free = ~_inside(starts, fences)
    ranks = np.zeros(len(starts), dtype=np.int64)  # 1 to 6; 0 for lines that are not headings
    signed = free & _among(first, "#")
    found = [_HEADING.match(prose.text, start) for start in starts[signed].tolist()]
    ranks[signed] = [len(heading[1]) if heading else 0 for heading in found]
    items = free & _among(first, "-*+0123456789")
    items[items] = [_ITEM.match(prose.text, start) is not None for start in starts[items].tolist()]
    behind = np.zeros(len(starts) + 1, dtype=np.bool_)
    behind[starts.searchsorted(fences[:, 1])] = True
    opening = np.isin(starts, fences[:, 0])
    blocks = free & (after_blank | behind[:-1] | items | (ranks > 0)) | opening
    upper = (ranks > 0) & (ranks < 3)
    lower = ranks >= 3
    spoken = ~_inside(prose.sentences, fences)
    changes = topics(prose)
    strength = None if changes.strength is None else changes.strength[spoken]
    rest = (starts[blocks], prose.sentences[spoken], prose.lines, prose.words)
    headings = (CutLevel(starts[upper]), CutLevel(starts[lower]))
    return [
        *headings,
        CutLevel(changes.places[spoken], strength),
        *(CutLevel(places) for places in rest),
    ]


def _fences(text: str, candidates: Positions) -> Iterator[tuple[int, int]]:
    """Start of the first line and end of the last line of each fenced block."""
    opened = -1
    fence = ""
    for start in candidates.tolist():
        mark = _FENCE.match(text, start)
        if mark and opened < 0:
            opened = start
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not text[mark.end(1) : mark.end()].strip():
            yield opened, min(mark.end() + 1, len(text))
            opened = -1
    if opened >= 0:
        yield opened, len(text) + 1


def _inside(places: Positions, fences: Positions) -> Flags:
    """Flags that are True for places inside a fenced block (False at its end)."""
    return fences[:, 0].searchsorted(places, "right") > fences[:, 1].searchsorted(places, "right")


def _among(points: NDArray[np.uint32], wanted: str) -> Flags:
    return np.isin(points, [ord(char) for char in wanted])
