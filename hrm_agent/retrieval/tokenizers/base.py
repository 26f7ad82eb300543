"""What a chunk is measured in.

A tokenizer here does less than one for a model: it counts, and it says where each token lies. Ids
appear only where vocabularies are compared (`hrm_agent.retrieval.tokenizers.statistics`). Three
rules hold for all of them:

* Offsets are character positions in the text that was handed in, whatever the tokenizer did to it
  inside (lower case, Unicode normalisation, bytes). A character that takes several tokens is named
  by each of them.
* Offsets cover the text: what a tokenizer drops, white space mostly, belongs to the token after it,
  or to the last one.
* A text is text: the spelling of a control token in it (`<|endoftext|>`) raises nowhere.

Text comes as a Python string, which may hold lone surrogates. They are no characters and no library
takes them, so they are refused here, once; `hrm_agent.basics.unicode.replace_surrogates` puts
U+FFFD in their places and leaves every position as it was.
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
"""Needs no download; see `hrm_agent.retrieval.tokenizers.plain`."""

Offsets = NDArray[np.int64]
"""One row (start, end) per token, in the order of the text; in characters."""


class Tokenizer(Protocol):
    """Counts tokens, and says where they are."""

    @property
    def name(self) -> str:
        """The string that loads it again."""
        ...

    @property
    def local(self) -> bool:
        """True if no token reaches over a space between a letter or a digit and a letter.

        Then a long text may be counted by its parts. Where this is not known it is False, and costs
        time only.
        """
        ...

    def count(self, text: str) -> int:
        """Number of tokens of `text` on its own; 0 for an empty text."""
        ...

    def offsets(self, text: str) -> Offsets:
        """Where the tokens lie: as many rows as `count` says, covering `text` from its first
        character to its last.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A text in the tokens of a vocabulary, all of it from one pass."""

    ids: list[int]
    """Token ids in the vocabulary."""
    offsets: Offsets
    """As many rows as there are ids; see `Tokenizer.offsets`."""
    unknown: int
    """Tokens that stand for what the vocabulary lacks."""
    spelled: int
    """Tokens that are bytes, or that hold a part of a character only: what a vocabulary has no
    token for, spelled.
    """


@runtime_checkable
class Vocabulary(Protocol):
    """A tokenizer with a vocabulary, which may lack something and may change what it encodes."""

    def encoded(self, text: str) -> Encoded: ...

    def decoded(self, ids: list[int]) -> str:
        """The text that these tokens stand for."""
        ...


def checked(text: str) -> str:
    """`text`, if it holds characters only."""
    place = find_surrogate(text)
    if place is None:
        return text
    raise HrmError(
        f"The text has a lone surrogate, U+{ord(text[place]):04X}, at character {place}: it is not"
        " valid Unicode.",
        "Put `hrm_agent.basics.unicode.replace_surrogates(text)` in its place, which keeps every"
        " position.",
    )


def tiled(starts: Offsets, ends: Offsets, length: int) -> Offsets:
    """Rows (start, end) that leave no character out, from tokens in order that may.

    A gap goes to the token after it; so does an empty token, which is a part of the character that
    follows.
    """
    if not len(starts):
        return np.zeros((0, 2), dtype=np.int64)
    filled = np.where(ends > starts, ends, length)
    reached = np.minimum.accumulate(np.append(filled[:-1], length)[::-1])[::-1]
    before = np.concatenate((np.zeros(1, dtype=np.int64), reached[:-1]))
    return np.stack((np.minimum(starts, before), reached), axis=1)


def spelling(rows: Offsets, is_byte: NDArray[np.bool_] | None = None) -> int:
    """`Encoded.spelled`: tokens that share a character with a neighbour, and those that are known
    to be bytes.
    """
    shared = rows[1:, 0] < rows[:-1, 1]
    spelled = np.append(shared, False) | np.insert(shared, 0, False)
    if is_byte is not None and len(rows):
        spelled |= is_byte
    return int(np.count_nonzero(spelled[: len(rows)]))
