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
    """Number of tokens of `text` alone, by the tokenizer of the cut. It is never above the limit.
    """
    text: str
    """Exactly `document[start:end]`, including white space at its ends."""
