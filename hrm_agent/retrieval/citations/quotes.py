"""Citations that can be checked: a quote, and the span of a text that it stands in.

A model writes quotes, and it also makes them up. What is cited is `text[start:end]`, to the
character: a quote stands in a text as it is, or but for white space, quotation marks and dashes,
which a model writes for one another. All else is fabricated, however close it comes: nothing here
is a matter of degree. A model's quote begins and ends at a word: `able` is not what `unable` says.

`find_quote` answers for one text, `QuotableText` for one that is asked often, as a source of the
research agent is. `resolve` holds a claim (these words, in this span of this document, in this
revision) against an index, and says what is wrong with one that it rejects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING

# typing's has too little for LangGraph's JSON schemas before Python 3.12
from typing_extensions import TypedDict

from hrm_agent.retrieval.citations.word_boundaries import is_within_word

if TYPE_CHECKING:
    from hrm_agent.retrieval.index.database import DocumentIndex

__all__ = [
    "CITATION_LIST",
    "Citation",
    "CitationVerdict",
    "QuotableText",
    "Resolution",
    "find_quote",
    "resolve",
]

CITATION_LIST = "\n\nSources:\n"
"""Between an answer and the list of its citations, whose lines begin with `[1]`, `[2]`, ..."""
_WORD = re.compile(r"\S+")
_ALIKE = str.maketrans("’‘ʼ`´“”„«»‐‑‒–—−", "'''''\"\"\"\"\"------")
"""Characters that a model writes for one another."""


class Citation(TypedDict):
    """`quote` is the cited text's `[start:end]`. Plain data: a state of a conversation holds it as
    it is.
    """

    source: str
    """Name of the cited text: a source of a conversation, or a file of an index."""
    start: int
    """First character of the quote in the cited text."""
    end: int
    """One past its last character."""
    quote: str
    """The cited words, as the text has them."""
    url: str
    """Address of the text, in the revision that is cited; empty where it has none."""


class CitationVerdict(StrEnum):
    """How a quote stands to the stored text. Only `verbatim` is accepted."""

    VERBATIM = "verbatim"
    """Word for word in the cited span."""
    RESPACED = "respaced"
    """Word for word, but with other white space, quotation marks or dashes, as when a line break
    became a space.
    """
    MISPLACED = "misplaced"
    """In the document, outside the cited span."""
    CHANGED = "changed"
    """The document is another revision than the cited one, and does not have the quote in this
    place now.
    """
    FABRICATED = "fabricated"
    """Nowhere in the document, or no words at all."""
    UNKNOWN = "unknown"
    """The index has no such document."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the stored text says to a quote."""

    verdict: CitationVerdict
    """How the quote stands to the stored text."""
    citation: Citation | None = None
    """Where the words stand, in the document's own characters; None: nowhere."""

    @property
    def accepted(self) -> bool:
        return self.verdict is CitationVerdict.VERBATIM


def resolve(
    index: DocumentIndex,
    quote: str,
    file: str,
    start: int = 0,
    end: int | None = None,
    revision: str | None = None,
) -> Resolution:
    """Check that a document has a quote within `[start:end]`; without an end, anywhere after the
    start.

    `revision`: hash of the text that the span was taken from; None: the text as it is now.
    """
    stored = index.document(file)
    if stored is None:
        return Resolution(CitationVerdict.UNKNOWN)
    end = len(stored.text) if end is None else end
    verdict, span = _judged(stored.text, quote, start, end)
    if (
        revision not in (None, stored.revision)
        and quote.strip()
        and verdict is not CitationVerdict.VERBATIM
    ):
        verdict = CitationVerdict.CHANGED
    if span is None:
        return Resolution(verdict)
    found = Citation(
        source=file, start=span[0], end=span[1], quote=stored.text[slice(*span)], url=""
    )
    return Resolution(verdict, found)


def _judged(
    text: str, quote: str, start: int, end: int
) -> tuple[CitationVerdict, tuple[int, int] | None]:
    if 0 <= start < end <= len(text) and (span := find_quote(text, quote, start, end)):
        exact = text[slice(*span)] == quote
        return CitationVerdict.VERBATIM if exact else CitationVerdict.RESPACED, span
    span = find_quote(text, quote)
    return CitationVerdict.MISPLACED if span else CitationVerdict.FABRICATED, span


def find_quote(
    text: str, quote: str, start: int = 0, end: int | None = None
) -> tuple[int, int] | None:
    """The span in `text[start:end]` where a quote stands: to the character, or but for white space
    and typography.
    """
    span = _quotable(text[start:end]).find(quote, whole_words=False)
    return (start + span[0], start + span[1]) if span else None


class QuotableText:
    """A text that many quotes are looked for in: what it is compared by is made once, and kept as
    long as this is.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def find(self, quote: str, *, whole_words: bool = True) -> tuple[int, int] | None:
        """What `find_quote` says of the whole text; only where the quote begins and ends at a word,
        unless told.
        """
        if not quote.strip():
            return None
        if (at := _find(self._text, quote, self._text, whole_words)) >= 0:
            return at, at + len(quote)
        wanted = _plain(quote)
        if (at := _find(self._plain, wanted, self._respaced, whole_words)) < 0:
            return None
        first = _place(self._text, self._plain, at)
        last_word = next(islice(_WORD.finditer(self._text, first), wanted.count(" "), None))
        return first, last_word.start() + len(wanted.rpartition(" ")[2])

    @cached_property
    def _respaced(self) -> str:
        """As long as the plain form, with the characters of its own: not every dash joins words."""
        return " ".join(self._text.split())

    @cached_property
    def _plain(self) -> str:
        return _plain(self._text)


_quotable = lru_cache(maxsize=16)(QuotableText)


def _find(text: str, quote: str, own: str, whole_words: bool) -> int:
    """Where a text has a quote; -1: nowhere. `own`: the text in its own characters."""
    at = text.find(quote)
    while (
        at >= 0
        and whole_words
        and (is_within_word(own, at) or is_within_word(own, at + len(quote)))
    ):
        at = text.find(quote, at + 1)
    return at


def _plain(text: str) -> str:
    """`text` with one space between words, and plain typography:
    word for word as long as it was.
    """
    return " ".join(text.translate(_ALIKE).split())


def _place(text: str, plain: str, at: int) -> int:
    """Where in a text the character stands that its plain form has at `at`."""
    word = next(islice(_WORD.finditer(text), plain.count(" ", 0, at), None))
    return word.start() + at - (plain.rfind(" ", 0, at) + 1)
