"""What a question finds, and how two rankings become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from hrm_agent.retrieval.index.full_text import Ranked

__all__ = ["MODES", "Hit", "Mode", "Placed", "fused"]

Mode = Literal["words", "vectors", "hybrid"]
"""By the words of the question, by likeness of vectors, or by both."""
MODES: tuple[Mode, ...] = get_args(Mode)

_CONSTANT = 60
"""Of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009): how little the first places stand
out.
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a question found."""

    file: str
    """Path inside the indexed folder, with forward slashes; of a further folder `LABEL//PATH`."""
    start: int
    """First character in the document's text."""
    end: int
    """One past the last character."""
    text: str
    """`document[start:end]`, to the character."""
    score: float
    """BM25, cosine, or the sum of reciprocal ranks; larger is better, and comparable within one
    answer only.
    """
    revision: str
    """Hash of the document's text: the span holds in this text."""
    words_rank: int | None = None
    """Place in the ranking by words, from 1; None if it is not in it."""
    vectors_rank: int | None = None
    """Place in the ranking by vectors, from 1; None if it is not in it."""
    page: int | None = None
    """Page of a PDF on which the chunk begins, from 1; None for other kinds."""
    language: str = ""
    """Code of the language that the document's words are stemmed in; empty: they are not."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk in an answer, before it is looked up."""

    chunk: int
    """The chunk's number in the index."""
    score: float
    """As in `Hit`."""
    words_rank: int | None
    """Place in the ranking by words, from 1; None if it is not in it."""
    vectors_rank: int | None
    """Place in the ranking by vectors, from 1; None if it is not in it."""


def fused(words: Ranked | None, vectors: Ranked | None) -> Sequence[Placed]:
    """Both rankings as one, by reciprocal ranks; one of them as it is where the other is None."""
    places = [
        {chunk: rank for rank, (chunk, _) in enumerate(ranked or (), start=1)}
        for ranked in (words, vectors)
    ]
    if words is None or vectors is None:
        scores = dict(words or vectors or ())
    else:
        chunks = places[0].keys() | places[1].keys()
        scores = {
            chunk: sum(1 / (_CONSTANT + of[chunk]) for of in places if chunk in of)
            for chunk in chunks
        }
    placed = [
        Placed(chunk, score, places[0].get(chunk), places[1].get(chunk))
        for chunk, score in scores.items()
    ]
    return sorted(
        placed, key=lambda one: (-one.score, one.words_rank or one.vectors_rank or 0, one.chunk)
    )
