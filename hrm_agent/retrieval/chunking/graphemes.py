r"""Ends of graphemes, the characters as a reader sees them.

An "é" may be two code points, and an emoji of a family of four may be seven. A chunk that ends
inside a grapheme shows text that no author wrote. The rules are Unicode's (UAX 29), as in `\X` of
the `regex` library. Most text does not need the library: only code points outside the plain ranges
below, and their neighbours, go to it. Flags, which are pairs of code points, are matched by a
pattern of this module, since `\X` would look back over a whole run of flags.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import regex
from numpy.typing import NDArray

__all__ = ["code_points", "grapheme_ends"]

_PLAIN = (
    (0x0009, 0x000A),
    (0x0020, 0x007E),
    (0x00AF, 0x02FF),
    (0x0391, 0x0482),
    (0x048A, 0x052F),
    (0x05D0, 0x05EA),
    (0x0620, 0x064A),
    (0x2010, 0x2027),
    (0x3001, 0x3029),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xFF01, 0xFF60),
)
"""Plain ranges: code points in them never join with each other. They have no combining marks, emoji
or parts of Hangul syllables.
"""
_TABLE = 0x10000
"""Number of code points in the table. All code points beyond it go to the library."""
_FLAG = "\U0001f1e6-\U0001f1ff"
_GRAPHEME = regex.compile(rf"[{_FLAG}][{_FLAG}]?[\p{{GCB=EX}}\p{{GCB=ZWJ}}\p{{GCB=SM}}]*+|\X")


def code_points(text: str) -> NDArray[np.uint32]:
    """Code points of a text, one number per character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def grapheme_ends(text: str, points: NDArray[np.uint32] | None = None) -> NDArray[np.bool_]:
    """`len(text) + 1` flags. Flag i is True if the text may be cut before character i. The first
    and the last flag are True. `points`: code points, if already computed.
    """
    may_cut = np.ones(len(text) + 1, dtype=np.bool_)
    points = code_points(text) if points is None else points
    if text.isascii():
        may_cut[1:-1] = (points[:-1] != 0x0D) | (points[1:] != 0x0A)
        return may_cut
    for start, end in _doubtful(points):
        at = start
        may_cut[start + 1 : end] = False
        for grapheme in _GRAPHEME.findall(text[start:end]):
            at += len(grapheme)
            may_cut[at] = True
    return may_cut


def _doubtful(points: NDArray[np.uint32]) -> list[tuple[int, int]]:
    """Stretches outside the plain ranges, each with the plain character before and after it."""
    doubt = np.zeros(len(points) + 2, dtype=np.bool_)
    doubt[1:-1] = _doubts()[np.minimum(points, _TABLE)]
    steps = np.flatnonzero(doubt[1:] != doubt[:-1])
    starts = steps[::2]
    ends = steps[1::2]
    widened = zip(
        (starts - 1).clip(0).tolist(), (ends + 1).clip(max=len(points)).tolist(), strict=True
    )
    stretches: list[tuple[int, int]] = []
    for start, end in widened:
        if stretches and start < stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], end)
        else:
            stretches.append((start, end))
    return stretches


@cache
def _doubts() -> NDArray[np.bool_]:
    doubts = np.ones(_TABLE + 1, dtype=np.bool_)
    for first, last in _PLAIN:
        doubts[first : last + 1] = False
    return doubts
