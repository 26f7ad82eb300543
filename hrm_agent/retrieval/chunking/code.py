"""Where source code may be cut, in any language that is indented.

A parser for each language would know more and would have to be there for each. What indentation
tells is enough to keep a function whole where it fits: the best place is a line that starts at the
margin after an empty one, then any line after an empty one, then any line at the margin that closes
nothing, then any line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hrm_agent.retrieval.chunking.boundaries import Surface
from hrm_agent.retrieval.chunking.spans import CutLevel

__all__ = ["code_levels"]

_CONTINUES = re.compile(r"[})\]]|else\b|elif\b|except\b|finally\b|catch\b|end\b")
"""Begins a line that belongs to the one before it."""


def code_levels(surface: Surface) -> Sequence[CutLevel]:
    """Definitions at the margin, blocks, statements at the margin, lines, words."""
    starts, after_blank = surface.written_lines
    margin = ~surface.space[starts]
    text = surface.text
    margin[margin] = [_CONTINUES.match(text, start) is None for start in starts[margin].tolist()]
    ranks = (after_blank & margin, after_blank & ~margin, ~after_blank & margin)
    return [
        CutLevel(places)
        for places in (*(starts[rank] for rank in ranks), surface.lines, surface.words)
    ]
