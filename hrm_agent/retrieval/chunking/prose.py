"""Where written language may be cut: paragraphs, sentences, lines, words.

A sentence ends with its mark and white space, if what follows could begin another: no small letter, and no
abbreviation before. That is wrong now and then ("Dr. Who"), which costs a worse place to cut and no more. Full-width
marks need no white space. Each expression reads a text once, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from hrm_agent.retrieval.chunking.graphemes import code_points
from hrm_agent.retrieval.chunking.spans import Level

__all__ = ["lines", "paragraphs", "sentences", "words"]

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_SENTENCE = re.compile(
    r"[.!?\u2026][\"'\u2019\u201d)\]]{0,3}\s+(?=\S)|[\u3002\uff01\uff1f][\u300d\u300f\u201d]?|\n\s*\n\s*"
)
_SPACES = np.array([i for i in range(0x3001) if chr(i).isspace()], dtype=np.uint32)
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|cf|No|Fig|al|e\.g|i\.e|a\.m|p\.m|approx|Inc|Ltd|Co|Gen|Col|Rev))$"
)


def paragraphs(text: str) -> Level:
    """After empty lines."""
    return _level(match.end() for match in _PARAGRAPH.finditer(text))


def sentences(text: str) -> Level:
    """After the white space behind a sentence, and after paragraphs."""
    return _level(match.end() for match in _SENTENCE.finditer(text) if _ends(text, match))


def lines(text: str) -> Level:
    """After each line break."""
    return Level(np.flatnonzero(code_points(text) == 0x0A) + 1)


def words(text: str) -> Level:
    """After each run of white space."""
    space = np.isin(code_points(text), _SPACES)
    return Level(np.flatnonzero(space[:-1] & ~space[1:]) + 1)


def _ends(text: str, match: re.Match[str]) -> bool:
    if match[0][0] != ".":
        return True
    if match.end() < len(text) and text[match.end()].islower():
        return False
    return not _ABBREVIATION.search(text, max(match.start() - 8, 0), match.start())


def _level(places: Iterable[int]) -> Level:
    return Level(np.fromiter(places, dtype=np.int64))
