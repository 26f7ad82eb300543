"""A chunk: a span of a text, and how many tokens it has."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Chunk"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a document, `document[start:end]` to the character:
    what a citation of it rests on.
    """

    start: int
    """First character, counted from 0 in the document as a Python string."""
    end: int
    """One past the last character."""
    tokens: int
    """Tokens of `text` on its own, by the tokenizer that it was cut with; never more than the
    limit.
    """
    text: str
    """Exactly `document[start:end]`, white space at its ends included."""
