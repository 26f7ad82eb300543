"""Ranking of a configuration: its chunks in the index that agents search, and the best chunks for
each question.

All corpora are in one index, so that a question searches the other corpora as well. With `apart`
each corpus has its own index. A chunk whose span is not its text is indexed as a separate document:
a search finds it by its words, but it has no place in a corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.retrieval_quality.configurations import Configuration
from benchmarks.retrieval_quality.questions import QuestionSet
from benchmarks.retrieval_quality.spans import RANKS, Piece
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.index.database import DocumentIndex, Hit
from hrm_agent.retrieval.index.reading import Document, DocumentKind
from hrm_agent.retrieval.tokenizers.base import Tokenizer

__all__ = ["RankedPiece", "Ranking", "depth_for", "rank", "within"]

_SPARE = 4
"""Factor for the number of chunks to search, since most chunks are shorter than their limit."""


@dataclass(frozen=True, slots=True)
class RankedPiece:
    """Hit with its span and the text shown to a reader."""

    piece: Piece
    """Span in its corpus, and its tokens."""
    text: str
    """Text shown to a reader."""


@dataclass
class Ranking:
    """Hits of a configuration for all questions."""

    found: list[list[RankedPiece]]
    """Hits of each question, best first, in the order of the set."""
    tokens: list[int] = field(default_factory=list[int])
    """Number of tokens of each chunk."""
    wrong: int = 0
    """Number of chunks whose span is not their text."""


def rank(
    questions: QuestionSet,
    configuration: Configuration,
    tokenizer: Tokenizer,
    depth: int,
    *,
    apart: bool = False,
    embeddings: str | None = None,
) -> Ranking:
    """Index the corpora by `configuration` and search `depth` chunks for every question.

    `embeddings`, as for `hrm-agent index`, are used only by the modes that rank by vectors.
    """
    ranking, mode = Ranking([[] for _ in questions.questions]), configuration.mode
    names, vectors = list(questions.documents), None if mode == "words" else embeddings
    for group in [[name] for name in names] if apart else [names]:
        with TemporaryDirectory() as folder, _index(Path(folder), vectors) as index:
            pieces = _Pieces(index, ranking)
            for name in group:
                document = questions.documents[name]
                pieces.put(name, document, configuration.cut(document, tokenizer.name))
            for number, question in enumerate(questions.questions):
                if question.corpus in group:
                    hits = index.search(question.text, depth, mode)
                    ranking.found[number] = [RankedPiece(pieces.of(hit), hit.text) for hit in hits]
    return ranking


def _index(folder: Path, vectors: str | None) -> DocumentIndex:
    return DocumentIndex(folder / "index.db", create=True, embeddings=vectors)


def depth_for(k: int, budget: int, size: int) -> int:
    """Number of chunks to search: enough for `k`, for the budget and for MRR."""
    return max(k, RANKS, _SPARE * -(-budget // size))


def within(found: Sequence[RankedPiece], budget: int, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Best pieces within a budget of tokens. The last piece is cut where the budget ends."""
    for hit in found:
        if hit.piece.tokens > budget:
            if budget:
                shown = int(tokenizer.offsets(hit.text)[budget - 1][1])
                yield replace(hit.piece, end=hit.piece.start + shown, tokens=budget)
            return
        yield hit.piece
        budget -= hit.piece.tokens


class _Pieces:
    """Chunks of an index by file and span of a hit."""

    def __init__(self, index: DocumentIndex, ranking: Ranking) -> None:
        self._index, self._ranking = index, ranking
        self._pieces: dict[tuple[str, int, int], Piece] = {}

    def put(self, corpus: str, document: Document, chunks: Sequence[Chunk]) -> None:
        right = [chunk for chunk in chunks if _is_exact(document.text, chunk)]
        self._put(corpus, document, right, corpus)
        wrong = [chunk for chunk in chunks if not _is_exact(document.text, chunk)]
        for number, chunk in enumerate(wrong):
            moved = replace(chunk, start=0, end=len(chunk.text))
            self._put(f"{corpus}\0{number}", Document(chunk.text, DocumentKind.TEXT), [moved], None)
        self._ranking.wrong += len(wrong)
        self._ranking.tokens += [chunk.tokens for chunk in chunks]

    def _put(
        self, file: str, document: Document, chunks: Sequence[Chunk], corpus: str | None
    ) -> None:
        self._index.put(file, file, document, chunks)
        for chunk in chunks:
            self._pieces[file, chunk.start, chunk.end] = Piece(
                corpus, chunk.start, chunk.end, chunk.tokens
            )

    def of(self, hit: Hit) -> Piece:
        return self._pieces[hit.file, hit.start, hit.end]


def _is_exact(text: str, chunk: Chunk) -> bool:
    return chunk.start >= 0 and text[chunk.start : chunk.end] == chunk.text
