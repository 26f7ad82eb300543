"""Where source code may be cut, in any language that is indented.

A parser for each language would know more and would have to be there for each. What indentation tells is enough to
keep a function whole where it fits: the best place is a line that starts at the margin after an empty one, then any
line after an empty one, then any line at the margin that closes nothing, then any line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from hrm_agent.retrieval.chunking.prose import lines, words
from hrm_agent.retrieval.chunking.spans import Level

__all__ = ["code_levels"]

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_CONTINUES = re.compile(r"[\s})\]]|else\b|elif\b|except\b|finally\b|catch\b|end\b")
"""Begins a line that belongs to the one before it."""


def code_levels(text: str) -> Sequence[Level]:
    """Definitions at the margin, blocks, statements at the margin, lines, words."""
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    for start, rank in _ranked(text):
        found[rank].append(start)
    return *(Level(np.array(starts, dtype=np.int64)) for starts in found), lines(text), words(text)


def _ranked(text: str) -> Iterator[tuple[int, int]]:
    blank = True
    for line in _LINE.finditer(text):
        was_blank, blank = blank, not line[0].strip()
        margin = not _CONTINUES.match(line[0])
        if not blank and (was_blank or margin):
            yield line.start(), 2 if not was_blank else 0 if margin else 1
