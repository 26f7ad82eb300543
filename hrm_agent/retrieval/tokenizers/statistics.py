"""What a tokenizer makes of a text, in the numbers by which two of them are compared.

Byte-level vocabularies know no unknown token: the rate is 0 by construction and says nothing. Watch characters per
token there, and the share of tokens that spell only a part of a character.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from hrm_agent.retrieval.tokenizers.base import Offsets, Tokenizer

__all__ = ["TokenStatistics", "Vocabulary", "measure"]

_WORD = re.compile(r"\w+")


@runtime_checkable
class Vocabulary(Protocol):
    """A tokenizer with a vocabulary, which may lack something and may change what it encodes."""

    def unknown(self, text: str) -> int:
        """How many tokens of `text` are the unknown one."""
        ...

    def restored(self, text: str) -> str:
        """`text` encoded and decoded again."""
        ...


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """One tokenizer on one text."""

    tokenizer: str
    characters: int
    tokens: int
    characters_per_token: float | None
    """None without tokens."""
    tokens_per_word: float | None
    """Words are runs of letters and digits; None without any."""
    unknown_rate: float | None
    """Share of tokens that are the unknown one; None for a tokenizer without a vocabulary."""
    partial_rate: float
    """Share of tokens that spell only a part of a character: byte fallback, in byte-level vocabularies too."""
    round_trip: str | None
    """`exact`, `spacing` (but for white space), `normalised` (but for case, accents and forms too), `lost`; None for a
    tokenizer without a vocabulary."""


def measure(tokenizer: Tokenizer, text: str) -> TokenStatistics:
    rows = tokenizer.offsets(text)
    tokens, words = len(rows), len(_WORD.findall(text))
    known = isinstance(tokenizer, Vocabulary)
    return TokenStatistics(
        tokenizer=tokenizer.name,
        characters=len(text),
        tokens=tokens,
        characters_per_token=len(text) / tokens if tokens else None,
        tokens_per_word=tokens / words if words else None,
        unknown_rate=tokenizer.unknown(text) / max(tokens, 1) if known else None,
        partial_rate=_partial(rows) / max(tokens, 1),
        round_trip=_fidelity(text, tokenizer.restored(text)) if known else None,
    )


def _partial(rows: Offsets) -> int:
    """Tokens that have a character in common with a neighbour."""
    shared = rows[1:, 0] < rows[:-1, 1]
    return int(np.count_nonzero(np.append(shared, False) | np.insert(shared, 0, False)))


def _fidelity(text: str, restored: str) -> str:
    if text == restored:
        return "exact"
    if "".join(text.split()) == "".join(restored.split()):
        return "spacing"
    return "normalised" if _folded(text) == _folded(restored) else "lost"


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(char for char in plain if not char.isspace() and not unicodedata.combining(char))
