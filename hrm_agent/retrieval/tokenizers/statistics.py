"""Statistics of a tokenizer on texts, for comparing tokenizers.

Only counts are kept (`TokenTally`), and rates are derived from them. So texts may be counted one by
one, for example parts of a file that does not fit into memory.

Byte-level vocabularies have no unknown token, so their rate of unknown tokens is always 0 and means
nothing. To compare them, use tokens per word, and the share of tokens that spell bytes.
"""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hrm_agent.retrieval.tokenizers.base import Tokenizer, Vocabulary

__all__ = ["TokenStatistics", "TokenTally", "measure"]

_PART = re.compile(r"\w+")
_ALONE = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
"""Characters of languages without spaces between words (Chinese, Japanese). Each such character
counts as a word.
"""
_FIDELITY = ("exact", "spacing", "normalised", "lost")
"""Kinds of fidelity, from best to worst."""


@dataclass(frozen=True, slots=True)
class TokenTally:
    """Counts over one text or many. Tallies of the same tokenizer can be added."""

    characters: int = 0
    """Number of characters."""
    words: int = 0
    """Number of words, i.e. runs of letters and digits. In languages without spaces between words,
    number of characters.
    """
    tokens: int = 0
    """Number of tokens."""
    unknown: int | None = None
    """Number of unknown tokens (None for a tokenizer without a vocabulary)."""
    spelled: int = 0
    """Number of tokens that spell bytes, or hold only a part of a character."""

    def __add__(self, other: TokenTally) -> TokenTally:
        unknown = (
            None
            if self.unknown is None and other.unknown is None
            else (self.unknown or 0) + (other.unknown or 0)
        )
        return TokenTally(
            self.characters + other.characters,
            self.words + other.words,
            self.tokens + other.tokens,
            unknown,
            self.spelled + other.spelled,
        )

    @property
    def characters_per_token(self) -> float | None:
        """Characters per token (None without tokens)."""
        return self.characters / self.tokens if self.tokens else None

    @property
    def tokens_per_word(self) -> float | None:
        """Tokens per word (None without words)."""
        return self.tokens / self.words if self.words else None

    @property
    def unknown_rate(self) -> float | None:
        """Share of unknown tokens (None for a tokenizer without a vocabulary)."""
        return None if self.unknown is None else self.unknown / max(self.tokens, 1)

    @property
    def byte_rate(self) -> float | None:
        """Share of tokens that spell bytes or parts of characters, by byte fallback or in a
        byte-level vocabulary.

        None for a tokenizer without a vocabulary.
        """
        return None if self.unknown is None else self.spelled / max(self.tokens, 1)


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Statistics of one tokenizer on some texts."""

    tokenizer: str
    """Name of the tokenizer."""
    tally: TokenTally
    """Counts over all texts."""
    seconds: float
    """CPU time for tokens and their offsets, without decoding."""
    bytes: int
    """Size of the texts in UTF-8."""
    round_trip: str | None
    """Worst fidelity of any decoded text: `exact`, `spacing` (white space differs), `normalised`
    (case, accents or forms of characters differ, too), or `lost` (None for a tokenizer without a
    vocabulary).
    """

    @property
    def megabytes_per_second(self) -> float | None:
        """UTF-8 megabytes per CPU second (None if no time was measured)."""
        return self.bytes / 1e6 / self.seconds if self.seconds else None

    def cost(self, dollars_per_million: float) -> float:
        """Price of these tokens in dollars."""
        return self.tally.tokens * dollars_per_million / 1e6


def measure(
    tokenizer: Tokenizer, texts: Iterable[str], on_text: Callable[[str], None] = lambda text: None
) -> TokenStatistics:
    """Count texts one by one. `on_text` is called after each text."""
    name = tokenizer.name
    total = TokenTally()
    seconds = 0.0
    size = 0
    fidelity = 0 if isinstance(tokenizer, Vocabulary) else None
    for text in texts:
        unknown = None
        spelled = 0
        begun = time.process_time()
        if isinstance(tokenizer, Vocabulary):
            encoded = tokenizer.encoded(text)
            seconds += time.process_time() - begun
            tokens = len(encoded.offsets)
            unknown = encoded.unknown
            spelled = encoded.spelled
            fidelity = max(fidelity or 0, _fidelity(text, tokenizer.decoded(encoded.ids)))
        else:
            tokens = len(tokenizer.offsets(text))
            seconds += time.process_time() - begun
        total += TokenTally(len(text), _words(text), tokens, unknown, spelled)
        size += len(text.encode())
        on_text(text)
    round_trip = None if fidelity is None else _FIDELITY[fidelity]
    return TokenStatistics(name, total, seconds, size, round_trip)


def _words(text: str) -> int:
    """Number of runs of letters and digits, counted without a Python object for each."""
    kinds = _kinds(ascii_only=text.isascii())
    kind = kinds[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
    begins = (kind == 1) & (np.concatenate(([0], kind[:-1])) != 1)
    return int(np.count_nonzero(begins)) + int(np.count_nonzero(kind == 2))


@cache
def _kinds(*, ascii_only: bool) -> NDArray[np.uint8]:
    """Kind of each code point: 0 if it is not part of a word, 1 if it is, 2 if it is a word by
    itself.
    """
    every = "".join(map(chr, range(128 if ascii_only else sys.maxunicode + 1)))
    kinds = np.zeros(len(every), dtype=np.uint8)
    for kind, pattern in ((1, _PART), (2, _ALONE)):
        for match in pattern.finditer(every):
            kinds[match.start() : match.end()] = kind
    return kinds


def _fidelity(text: str, restored: str) -> int:
    """Index of the fidelity in `_FIDELITY`."""
    if text == restored:
        return 0
    if "".join(text.split()) == "".join(restored.split()):
        return 1
    return 2 if "".join(_folded(text)) == "".join(_folded(restored)) else 3


def _folded(text: str) -> Iterator[str]:
    """Characters without case, accents and spacing, equal for all forms of a character."""
    for char in text:
        if char.isascii():
            yield "" if char.isspace() else char.lower()
        else:
            plain = unicodedata.normalize("NFKD", char).casefold()
            yield "".join(
                part for part in plain if not part.isspace() and not unicodedata.combining(part)
            )
