"""What a tokenizer makes of texts, in the numbers by which two of them are compared.

Everything is counted (`Tally`), and rates are derived, so that texts may come one by one and be added up: a document
at a time while indexing, a megabyte at a time from a file that fits into no memory.

Byte-level vocabularies know no unknown token: that rate is 0 by construction and says nothing. Watch the tokens per
word there, and the share of tokens that spell bytes.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hrm_agent.retrieval.tokenizers.base import Encoded, Tokenizer, Vocabulary, spelling

__all__ = ["Difference", "Tally", "TokenStatistics", "measure", "tally"]

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")
"""A run of letters and digits; where words are not set apart (Chinese, Japanese) each character is one."""
_SHOWN = 24
"""Characters of a text that are shown where it was not restored."""
_FIDELITY = ("exact", "spacing", "normalised", "lost")
"""From best to worst."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted in one text or many; tallies of the same tokenizer add up."""

    characters: int = 0
    words: int = 0
    tokens: int = 0
    unknown: int | None = None
    """Tokens that stand for what the vocabulary lacks; None for a tokenizer without a vocabulary."""
    spelled: int = 0
    """Tokens that spell bytes, or hold only a part of a character."""

    def __add__(self, other: Tally) -> Tally:
        unknown = None if self.unknown is None and other.unknown is None else (self.unknown or 0) + (other.unknown or 0)
        return Tally(
            self.characters + other.characters,
            self.words + other.words,
            self.tokens + other.tokens,
            unknown,
            self.spelled + other.spelled,
        )

    @property
    def characters_per_token(self) -> float | None:
        """None without tokens."""
        return self.characters / self.tokens if self.tokens else None

    @property
    def tokens_per_word(self) -> float | None:
        """None without words."""
        return self.tokens / self.words if self.words else None

    @property
    def unknown_rate(self) -> float | None:
        """Share of tokens; None for a tokenizer without a vocabulary."""
        return None if self.unknown is None else self.unknown / max(self.tokens, 1)

    @property
    def byte_rate(self) -> float:
        """Share of tokens that spell bytes: byte fallback, in byte-level vocabularies too."""
        return self.spelled / max(self.tokens, 1)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text encoded and decoded first differs from itself."""

    character: int
    """Position in all the texts, one after the other."""
    text: str
    """What stands there, up to 24 characters."""
    restored: str
    """What came back instead."""


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """One tokenizer on some texts."""

    tokenizer: str
    tally: Tally
    seconds: float
    """CPU time for tokens and their offsets, without decoding."""
    bytes: int
    """Of the texts in UTF-8."""
    round_trip: str | None
    """`exact`, `spacing` (but for white space), `normalised` (but for case, accents and forms too), `lost`: the worst
    that happened to any text; None for a tokenizer without a vocabulary."""
    differs: Difference | None
    """The first place where a text is not restored."""

    @property
    def megabytes_per_second(self) -> float | None:
        """UTF-8 by CPU time; None where there was nothing to measure."""
        return self.bytes / 1e6 / self.seconds if self.seconds else None

    def cost(self, dollars_per_million: float) -> float:
        """Dollars for these tokens."""
        return self.tally.tokens * dollars_per_million / 1e6


def tally(tokenizer: Tokenizer, text: str) -> Tally:
    """Count one text."""
    return _counted(tokenizer, text)[0]


def measure(
    tokenizer: Tokenizer, texts: Iterable[str], on_text: Callable[[str], None] = lambda text: None
) -> TokenStatistics:
    """Count texts one by one; `on_text` is called after each."""
    total, seconds, size, fidelity, differs = Tally(), 0.0, 0, 0, None
    for text in texts:
        begun = time.process_time()
        counted, encoded = _counted(tokenizer, text)
        seconds += time.process_time() - begun
        if encoded is not None and isinstance(tokenizer, Vocabulary):
            restored = tokenizer.decoded(encoded.ids)
            fidelity = max(fidelity, _FIDELITY.index(_fidelity(text, restored)))
            if differs is None and restored != text:
                differs = _difference(text, restored, total.characters)
        total, size = total + counted, size + len(text.encode())
        on_text(text)
    round_trip = _FIDELITY[fidelity] if isinstance(tokenizer, Vocabulary) else None
    return TokenStatistics(tokenizer.name, total, seconds, size, round_trip, differs)


def _counted(tokenizer: Tokenizer, text: str) -> tuple[Tally, Encoded | None]:
    words = sum(1 for _ in _WORD.finditer(text))
    if isinstance(tokenizer, Vocabulary):
        encoded = tokenizer.encoded(text)
        return Tally(len(text), words, len(encoded.ids), encoded.unknown, encoded.spelled), encoded
    rows = tokenizer.offsets(text)
    return Tally(len(text), words, len(rows), None, spelling(rows)), None


def _fidelity(text: str, restored: str) -> str:
    if text == restored:
        return "exact"
    if "".join(text.split()) == "".join(restored.split()):
        return "spacing"
    return "normalised" if _folded(text) == _folded(restored) else "lost"


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(char for char in plain if not char.isspace() and not unicodedata.combining(char))


def _difference(text: str, restored: str, before: int) -> Difference:
    pairs = enumerate(zip(text, restored, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(text), len(restored)))
    return Difference(before + at, text[at : at + _SHOWN], restored[at : at + _SHOWN])
