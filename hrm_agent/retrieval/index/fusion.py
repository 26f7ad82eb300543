"""Hits of a question, and the fusion of two rankings into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from hrm_agent.retrieval.index.full_text import Ranked

__all__ = ["MODES", "Hit", "Mode", "Placed", "fused"]

Mode = Literal["words", "vectors", "hybrid"]
"""Ranking by words of the question, by similarity of vectors, or by both."""
MODES: tuple[Mode, ...] = get_args(Mode)

_CONSTANT = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009). With a larger constant,
the first ranks weigh less compared with the others.
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """Chunk found for a question."""

    file: str
    """Path inside the indexed folder, with forward slashes (`LABEL//PATH` for any folder but the
    first).
    """
    start: int
    """First character in the document's text."""
    end: int
    """End in the document's text, one past the last character."""
    text: str
    """Exact text of the chunk, `document[start:end]`."""
    score: float
    """BM25, cosine, or sum of reciprocal ranks. Larger is better. Scores of different searches
    cannot be compared.
    """
    revision: str
    """Hash of the document's text. The span holds for this text only."""
    words_rank: int | None = None
    """Rank by words, from 1 (None if the chunk is not in this ranking)."""
    vectors_rank: int | None = None
    """Rank by vectors, from 1 (None if the chunk is not in this ranking)."""
    page: int | None = None
    """Page of a PDF on which the chunk begins, from 1 (None for other kinds)."""
    language: str = ""
    """Code of the language in which the document's words are stemmed (empty if they are not
    stemmed).
    """


@dataclass(frozen=True, slots=True)
class Placed:
    """Ranked chunk, before its text is read."""

    chunk: int
    """Id of the chunk in the index."""
    score: float
    """Score as in `Hit.score`."""
    words_rank: int | None
    """Rank by words, from 1 (None if the chunk is not in this ranking)."""
    vectors_rank: int | None
    """Rank by vectors, from 1 (None if the chunk is not in this ranking)."""


def fused(words: Ranked | None, vectors: Ranked | None) -> Sequence[Placed]:
    """Fuse both rankings by reciprocal ranks. If one ranking is None, the other is returned with
    its scores.
    """
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
