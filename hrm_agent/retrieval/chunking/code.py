"""Places to cut source code, in any language that is indented.

A parser would know more, but each language needs its own. Indentation is enough to keep a function
whole if it fits. The best place is a line at the margin after a blank line, then any line after a
blank line, then a line at the margin that closes nothing, then any line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hrm_agent.retrieval.chunking.boundaries import Surface
from hrm_agent.retrieval.chunking.spans import CutLevel

__all__ = ["code_levels"]

_CONTINUES = re.compile(r"[})\]]|else\b|elif\b|except\b|finally\b|catch\b|end\b")
"""Beginning of a line that belongs to the previous one."""


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
