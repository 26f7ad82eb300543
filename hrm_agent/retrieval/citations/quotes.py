"""Citations that can be checked: a quote with its span in a text.

Models sometimes invent quotes. The quote of a citation is exactly `text[start:end]`. The words that
a model quotes match a passage if the two are the same apart from white space, quotation marks and
dashes, which models often change. Any other quote counts as fabricated: there is no threshold of
similarity.

`find_quote` searches one text. `QuotableText` is for a text that is searched often, e.g. a source
of the research agent. `resolve` checks a quote with its document, span and revision against an
index, and returns a verdict with the reason.

A quote begins and ends at a word boundary: `able` does not match in `unable`, nor `12` in `12.5`. Scripts
without spaces between words may be cut anywhere but within a character. Words joined by a hyphen
count as one word, since the first part may reverse the meaning (`non-toxic`). Words joined by an
apostrophe count as two, except for the English `n't`.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING

# before Python 3.12, `TypedDict` of `typing` is not enough for LangGraph's JSON schemas
from typing_extensions import TypedDict

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
"""Separator between an answer and the list of its citations, whose lines begin with `[1]`, `[2]`,
...
"""
_WORD = re.compile(r"\S+")
_ALIKE = str.maketrans("’‘ʼ`´“”„«»‐‑‒–—−", "'''''\"\"\"\"\"------")
"""Characters that models confuse, each with the character to compare instead."""


class Citation(TypedDict):
    """Quote with its span: `quote` is the cited text's `[start:end]`. It is plain data, so that a
    conversation's state can hold it.
    """

    source: str
    """Name of the cited text: a source of a conversation, or a file of an index."""
    start: int
    """First character of the quote in the cited text."""
    end: int
    """End of the quote, one past its last character."""
    quote: str
    """Cited words, exactly as in the text."""
    url: str
    """Address of the text, in the cited revision (empty without one)."""


class CitationVerdict(StrEnum):
    """Result of comparing a quote with the stored text. Only `verbatim` is accepted."""

    VERBATIM = "verbatim"
    """Exact text in the cited span."""
    RESPACED = "respaced"
    """Words of the cited span, but white space, quotation marks or dashes differ, e.g. a space
    instead of a line break.
    """
    MISPLACED = "misplaced"
    """Words of the document, but outside of the cited span."""
    CHANGED = "changed"
    """Document has changed since the cited revision, and its span does not have the exact quote."""
    FABRICATED = "fabricated"
    """Quote that is missing in the document, or empty."""
    UNKNOWN = "unknown"
    """Document is not in the index."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Verdict on a quote, with its citation."""

    verdict: CitationVerdict
    """Result of comparing the quote with the stored text."""
    citation: Citation | None = None
    """Span of the words, in the document's own characters (None if they were not found)."""

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
    """Check that a document has a quote within `[start:end]` (`end` None: the end of the document).

    `revision`: hash of the text from which the span was taken (None for the current text).
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
    """Span in `text[start:end]` that matches a quote. White space, quotation marks and dashes may
    differ (None without a match).
    """
    span = _quotable(text[start:end]).find(quote, whole_words=False)
    return (start + span[0], start + span[1]) if span else None


class QuotableText:
    """Text in which many quotes are searched. Its normalized form is computed once and cached."""

    def __init__(self, text: str) -> None:
        self._text = text

    def find(self, quote: str, *, whole_words: bool = True) -> tuple[int, int] | None:
        """Span of a quote in the whole text, as from `find_quote`. By default the quote has to
        begin and end at a word.
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
        """Text with one space between words and otherwise original characters. It has the same
        length as the plain form, in which a hyphen that joins words and other dashes look alike.
        """
        return " ".join(self._text.split())

    @cached_property
    def _plain(self) -> str:
        return _plain(self._text)


_quotable = lru_cache(maxsize=16)(QuotableText)


def _find(text: str, quote: str, own: str, whole_words: bool) -> int:
    """Position of a quote in a text (-1 if it is missing). `own`: the text with original
    characters.
    """
    at = text.find(quote)
    while (
        at >= 0
        and whole_words
        and (_is_within_word(own, at) or _is_within_word(own, at + len(quote)))
    ):
        at = text.find(quote, at + 1)
    return at


def _plain(text: str) -> str:
    """`text` with one space between words and plain typography. Each word keeps its length."""
    return " ".join(text.translate(_ALIKE).split())


def _place(text: str, plain: str, at: int) -> int:
    """Position in a text of the character at `at` in its plain form."""
    word = next(islice(_WORD.finditer(text), plain.count(" ", 0, at), None))
    return word.start() + at - (plain.rfind(" ", 0, at) + 1)


_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
"""Characters of Thai, Lao, Burmese, Khmer, Chinese and Japanese."""
_HYPHENS = "-\u2010\u2011\u00ad"
_MINUS = "-\u2212"
_IN_NUMBERS = ".,:/"
_APOSTROPHES = "'\u2019"
_JOINER = "\u200d"


def _is_within_word(text: str, at: int) -> bool:
    """True if `text[:at]` and `text[at:]` share a word. False at both ends of the text."""
    if not 0 < at < len(text):
        return False
    before = text[at - 1]
    after = text[at]
    if _JOINER in (before, after) or unicodedata.category(after).startswith("M"):
        return True
    if _is_of_word(before) and _is_of_word(after):
        return True
    return (
        _joins(text, at - 1) or _joins(text, at) or _is_sign(text, at - 1) or _is_negation(text, at)
    )


def _is_of_word(character: str) -> bool:
    known = (
        character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")
    )
    return known and not _UNSPACED.match(character)


def _joins(text: str, at: int) -> bool:
    """True if the character joins its two neighbours to one word."""
    if not 0 < at < len(text) - 1:
        return False
    around = text[at - 1], text[at + 1]
    if text[at] in _IN_NUMBERS:
        return all(map(str.isdigit, around))
    return text[at] in _HYPHENS and all(map(_is_of_word, around))


def _is_sign(text: str, at: int) -> bool:
    """True if the character is the minus sign of the number after it."""
    return text[at] in _MINUS and text[at + 1].isdigit() and not (at and text[at - 1].isalnum())


def _is_negation(text: str, at: int) -> bool:
    """True if `'t` begins here and ends a word."""
    found = (
        text[at] in _APOSTROPHES
        and text[at + 1 : at + 2] in ("t", "T")
        and _is_of_word(text[at - 1])
    )
    return found and not (at + 2 < len(text) and _is_of_word(text[at + 2]))
