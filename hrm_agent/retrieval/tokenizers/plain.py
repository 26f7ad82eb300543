"""Tokenizers that are regular expressions: words, characters, and `pieces`, the default.

The default has to work in a bare install without a network, and a chunk of 512 of its tokens should
fit into a model that takes 512. No available vocabulary does both. The small policy's byte pairs
were learnt on puzzles, and give about two characters per token in English. Named vocabularies are
downloads. A new vocabulary in this package would match no other model's either, at a twentieth of
the speed. `pieces` therefore has no vocabulary. Its pieces are as long as the average tokens of
large byte-pair vocabularies: at most seven Latin letters, three letters of another alphabet, one
ideograph, three digits, each with the space before it, or a run of white space. Its counts are a
little too high on purpose, so that its chunks fit. If the model is known, name its vocabulary
instead (`hf:`, `tiktoken:`, `sentencepiece:`).
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
    """Name that loads the tokenizer."""
    local: bool = True
    """True, since no token reaches over a space. So a text may be counted in parts."""

    def count(self, text: str) -> int:
        return len(checked(text))

    def offsets(self, text: str) -> Offsets:
        starts = np.arange(len(checked(text)), dtype=np.int64)
        return np.stack((starts, starts + 1), axis=1)


@dataclass(frozen=True)
class Expression:
    """Tokenizer with one token per match. Text between matches counts as no token."""

    name: str
    """Name that loads the tokenizer."""
    pattern: re.Pattern[str]
    """Expression without groups that never matches an empty string."""
    covering: bool
    """True if every character of every text is in a match."""
    local: bool = True
    """True if no token reaches over a space that has a letter or a digit before it and a letter
    after it.
    """

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
"""Tokenizers that need no library and no file, by name. `word` counts words and punctuation marks,
but not white space.
"""
