"""Citations that can be checked: a quote, and the span of a document that it is said to stand in.

A model writes quotes, and it also makes them up. A quote is accepted if the stored text has it to the character, inside
the span that is cited and in the revision that is cited; what was accepted names the span of the quote itself. What is
not accepted says why, and where the words are if they are somewhere else in the document.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from hrm_agent.retrieval.index.database import DocumentIndex, Stored

__all__ = ["Citation", "CitationVerdict", "Resolution", "resolve"]


class CitationVerdict(StrEnum):
    """How a citation stands to the stored text. Only `verbatim` is accepted."""

    VERBATIM = "verbatim"
    RESPACED = "respaced"
    """Word for word, but with other white space, as when a line break became a space."""
    MISPLACED = "misplaced"
    """In the document, outside the cited span."""
    CHANGED = "changed"
    """The document is another revision than the cited one, and does not have the quote in this place now."""
    FABRICATED = "fabricated"
    """Nowhere in the document, or no words at all."""
    UNKNOWN = "unknown"
    """The index has no such document."""


@dataclass(frozen=True, slots=True)
class Citation:
    """What is claimed."""

    file: str
    start: int
    """First character of the span that the quote stands in."""
    end: int
    """One past the last."""
    quote: str
    revision: str | None = None
    """Hash of the text that the span was taken from; None: the text as it is now."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the stored text says to a citation."""

    citation: Citation
    verdict: CitationVerdict
    start: int | None = None
    """Where the quote itself begins in the stored text; None if it is not there."""
    end: int | None = None
    text: str | None = None
    """`document[start:end]`: for an accepted citation, the quote."""

    @property
    def accepted(self) -> bool:
        return self.verdict is CitationVerdict.VERBATIM


def resolve(citation: Citation, index: DocumentIndex) -> Resolution:
    """Check a citation against the stored text."""
    stored = index.document(citation.file)
    if stored is None:
        return Resolution(citation, CitationVerdict.UNKNOWN)
    if not citation.quote.strip():
        return Resolution(citation, CitationVerdict.FABRICATED)
    changed = citation.revision not in (None, stored.revision)
    verdict, start, end = _find(citation, stored)
    if changed and verdict is not CitationVerdict.VERBATIM:
        verdict = CitationVerdict.CHANGED
    return Resolution(citation, verdict, start, end, None if start is None else stored.text[start:end])


def _find(citation: Citation, stored: Stored) -> tuple[CitationVerdict, int | None, int | None]:
    quote, text = citation.quote, stored.text
    valid = 0 <= citation.start < citation.end <= len(text)
    at = text.find(quote, citation.start, citation.end) if valid else -1
    if at >= 0:
        return CitationVerdict.VERBATIM, at, at + len(quote)
    respaced = re.compile(r"\s+".join(map(re.escape, quote.split())))
    if valid and (match := respaced.search(text, citation.start, citation.end)):
        return CitationVerdict.RESPACED, *match.span()
    if match := respaced.search(text):
        return CitationVerdict.MISPLACED, *match.span()
    return CitationVerdict.FABRICATED, None, None
