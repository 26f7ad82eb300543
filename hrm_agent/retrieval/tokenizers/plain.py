"""Tokenizers that are regular expressions: words, characters, and `pieces`, the default.

The default has to work in a bare install without a network, and 512 of its tokens should fit into a
model that takes 512. No available vocabulary does both: the small policy's byte pairs were learnt
on puzzles (English costs it about two characters a token), named vocabularies are downloads, and
one trained and shipped by us would match no other model's vocabulary, at a twentieth of the speed.
`pieces` therefore has no vocabulary. It cuts as the large byte-pair vocabularies do on average: a
word with the space before it, at most seven Latin letters, three of another alphabet, one
ideograph, three digits, a run of white space. It is meant to count a little high, so that its
chunks fit. If the model is known, name its vocabulary instead (`hf:`, `tiktoken:`,
`sentencepiece:`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hrm_agent.retrieval.tokenizers.base import Offsets, checked, tiled

__all__ = ["PLAIN", "Characters", "Expression"]

_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PIECES = re.compile(
    rf" ?(?:[A-Za-z]{{1,7}}|[{_IDEOGRAPH}]|[^\W\d_A-Za-z{_IDEOGRAPH}]{{1,3}}|\d{{1,3}}|[^\w\s])|_{{1,4}}|\s{{1,8}}|.",
    re.DOTALL,
)
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Characters:
    """Tokenizer with one token per character (code point)."""

    name: str = "character"
    """Name that loads it."""
    local: bool = True
    """True, since no token reaches over a space: a text may be counted by its parts."""

    def count(self, text: str) -> int:
        return len(checked(text))

    def offsets(self, text: str) -> Offsets:
        starts = np.arange(len(checked(text)), dtype=np.int64)
        return np.stack((starts, starts + 1), axis=1)


@dataclass(frozen=True)
class Expression:
    """Tokenizer with one token per match. Text between matches is no token."""

    name: str
    """Name that loads it."""
    pattern: re.Pattern[str]
    """Expression without groups that never matches an empty string."""
    covering: bool
    """True if every character of every text is in a match."""
    local: bool = True
    """True if no token reaches over a space between a letter or a digit and a letter."""

    def count(self, text: str) -> int:
        return len(self.pattern.findall(checked(text)))

    def offsets(self, text: str) -> Offsets:
        if self.covering:
            sizes = np.fromiter(map(len, self.pattern.findall(checked(text))), dtype=np.int64)
            ends = np.cumsum(sizes)
            return np.stack((ends - sizes, ends)).T
        spans = [match.span() for match in self.pattern.finditer(checked(text))]
        rows = np.array(spans, dtype=np.int64).reshape(-1, 2)
        return tiled(rows[:, 0], rows[:, 1], len(text))


PLAIN = {
    "character": Characters(),
    "pieces": Expression("pieces", _PIECES, covering=True),
    "word": Expression("word", _WORDS, covering=False),
}
"""Tokenizers that need no library and no file, by name. `word` counts words and single punctuation
marks, but no white space.
"""
