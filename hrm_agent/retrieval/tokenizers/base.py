"""Tokenizer interface, by which chunks are measured.

Such a tokenizer does less than the tokenizer of a model: it counts tokens and returns their
offsets. Ids appear only in comparisons of vocabularies
(`hrm_agent.retrieval.tokenizers.statistics`). Three rules hold for all tokenizers:

* Offsets are character positions in the given text, whatever the tokenizer does to it internally
  (lower case, Unicode normalisation, bytes). If a character takes several tokens, it is within the
  offsets of each of them.
* Offsets cover the text. Characters that the tokenizer drops, mostly white space, belong to the
  token after them, or to the last token.
* The spelling of a control token in a text (`<|endoftext|>`) is plain text and raises no error.

A Python string may hold lone surrogates. Surrogates are not characters, and no library accepts
them, so `checked` refuses them. `hrm_agent.basics.unicode.replace_surrogates` replaces each by
U+FFFD, which keeps every position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_agent.basics.unicode import find_surrogate
from hrm_agent.errors import HrmError

__all__ = [
    "DEFAULT_TOKENIZER",
    "Encoded",
    "Offsets",
    "Tokenizer",
    "Vocabulary",
    "checked",
    "spelling",
    "tiled",
]

DEFAULT_TOKENIZER = "pieces"
"""Default tokenizer, which needs no download. See `hrm_agent.retrieval.tokenizers.plain`."""

Offsets = NDArray[np.int64]
"""Offsets in characters, one row (start, end) per token, in the order of the text."""


class Tokenizer(Protocol):
    """Tokenizer that counts tokens and returns their offsets."""

    @property
    def name(self) -> str:
        """String that loads the tokenizer."""
        ...

    @property
    def local(self) -> bool:
        """True if no token reaches over a space that has a letter or a digit before it and a letter
        after it.

        If True, a long text may be counted in parts. False if this is not known, which only makes
        counting slower.
        """
        ...

    def count(self, text: str) -> int:
        """Number of tokens of `text` alone (0 for an empty text)."""
        ...

    def offsets(self, text: str) -> Offsets:
        """Offsets of the tokens, as many rows as `count` returns, covering `text` completely."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Text in the tokens of a vocabulary, encoded in one pass."""

    ids: list[int]
    """Token ids in the vocabulary."""
    offsets: Offsets
    """Offsets of the tokens, one row for each id. See `Tokenizer.offsets`."""
    unknown: int
    """Number of unknown tokens."""
    spelled: int
    """Number of tokens that are bytes or only a part of a character, for characters that the
    vocabulary lacks.
    """


@runtime_checkable
class Vocabulary(Protocol):
    """Tokenizer with a vocabulary, which may lack characters and may change the text that it
    encodes.
    """

    def encoded(self, text: str) -> Encoded: ...

    def decoded(self, ids: list[int]) -> str:
        """Text that the tokens with these ids spell."""
        ...


def checked(text: str) -> str:
    """Return `text` if it has no lone surrogates. Raise `HrmError` otherwise."""
    place = find_surrogate(text)
    if place is None:
        return text
    raise HrmError(
        f"The text has a lone surrogate, U+{ord(text[place]):04X}, at character {place}: the text"
        " is not valid Unicode.",
        "Use `hrm_agent.basics.unicode.replace_surrogates(text)` instead, which keeps every"
        " position.",
    )


def tiled(starts: Offsets, ends: Offsets, length: int) -> Offsets:
    """Rows (start, end) without gaps, from ordered tokens that may have gaps.

    A gap belongs to the token after it. An empty token is a part of the next character, so it also
    gets a gap before it.
    """
    if not len(starts):
        return np.zeros((0, 2), dtype=np.int64)
    filled = np.where(ends > starts, ends, length)
    reached = np.minimum.accumulate(np.append(filled[:-1], length)[::-1])[::-1]
    before = np.concatenate((np.zeros(1, dtype=np.int64), reached[:-1]))
    return np.stack((np.minimum(starts, before), reached), axis=1)


def spelling(rows: Offsets, is_byte: NDArray[np.bool_] | None = None) -> int:
    """Number of tokens for `Encoded.spelled`: tokens that share a character with a neighbour, and
    tokens that `is_byte` marks.
    """
    shared = rows[1:, 0] < rows[:-1, 1]
    spelled = np.append(shared, False) | np.insert(shared, 0, False)
    if is_byte is not None and len(rows):
        spelled |= is_byte
    return int(np.count_nonzero(spelled[: len(rows)]))
