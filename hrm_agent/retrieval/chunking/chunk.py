"""Chunk: a span of a text with its number of tokens."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Chunk"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a document, exactly `document[start:end]`, to which a citation refers."""

    start: int
    """First character, counted from 0 in the document as a Python string."""
    end: int
    """End, one past the last character."""
    tokens: int
    """Number of tokens of `text` alone, by the tokenizer that it was cut with. Never more than the
    limit.
    """
    text: str
    """Exactly `document[start:end]`, white space at its ends included."""
