"""Overlap of a question's answer with the retrieved text, in characters.

The measures are those of Smith and Troynikov, "Evaluating Chunking Strategies for Retrieval"
(Chroma technical report, 2024), section "Metrics": with e the characters of the references and r
the retrieved ones,

    recall      |e and r| / |e|     how much of the answer is there
    precision   |e and r| / |r|     how much of what is there is answer
    IoU         |e and r| / |e or r|     Jaccard's index of the two: both at once

Deviations: characters and not tokens are counted, so that no tokenizer is part of a score. Text in
several overlapping chunks counts once in r, while the report counts it each time it is retrieved.
Only a *token budget* is charged for it each time. The answer is a set of characters of one corpus:
a chunk of another corpus adds to r only.

    MRR         1 / the rank of the first chunk that holds the answer, among the first ten; 0 if none does (Voorhees,
                "The TREC-8 Question Answering Track Report", 1999)

A chunk holds the answer if it shares with a reference at least half of the shorter of the two: a
chunk of 2,000 characters has to contain half of a reference of one sentence, and half of a chunk of
one sentence has to lie in a long reference. A few characters at an edge do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["RANKS", "Overlap", "Piece", "SpanOf", "merged", "overlap", "reciprocal_rank"]

RANKS = 10
"""Number of chunks in which MRR looks for the answer."""

SpanOf = tuple[int, int]
"""Start and end in characters of a text: the first, and one past the last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Retrieved text."""

    corpus: str | None
    """Name of its corpus (None if its span is not its text: the piece is shown, but nothing in it
    can be cited).
    """
    start: int
    """First character in the corpus."""
    end: int
    """End in the corpus, one past the last character."""
    tokens: int
    """Number of tokens that it takes of a budget."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Numbers of characters: of an answer, of the retrieved text, and in both."""

    wanted: int
    """Characters of the answer."""
    shown: int
    """Characters that were retrieved."""
    held: int
    """Characters of the answer that were retrieved."""

    @property
    def recall(self) -> float:
        return self.held / self.wanted

    @property
    def precision(self) -> float:
        """Share of the retrieved characters that are in the answer (0 if nothing was retrieved)."""
        return self.held / self.shown if self.shown else 0.0

    @property
    def iou(self) -> float:
        return self.held / (self.wanted + self.shown - self.held)


def merged(spans: Iterable[SpanOf]) -> list[SpanOf]:
    """Spans of the same characters, in order, of which no two touch."""
    found: list[SpanOf] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def overlap(pieces: Iterable[Piece], corpus: str, references: Iterable[SpanOf]) -> Overlap:
    """Compare retrieved pieces with an answer, the spans `references` of `corpus`."""
    of_corpus, astray = defaultdict[str, list[SpanOf]](list), 0
    for piece in pieces:
        if piece.corpus is None:
            astray += piece.end - piece.start
        else:
            of_corpus[piece.corpus].append((piece.start, piece.end))
    answer, found = merged(references), {name: merged(spans) for name, spans in of_corpus.items()}
    shown = sum(_length(spans) for spans in found.values()) + astray
    return Overlap(_length(answer), shown, _shared(answer, found.get(corpus, [])))


def reciprocal_rank(pieces: Sequence[Piece], corpus: str, references: Sequence[SpanOf]) -> float:
    """Reciprocal rank of the first piece that holds a reference, among the first ten (0 if none
    does).
    """
    for rank, piece in enumerate(pieces[:RANKS], 1):
        if piece.corpus == corpus and any(_holds(piece, reference) for reference in references):
            return 1 / rank
    return 0.0


def _holds(piece: Piece, reference: SpanOf) -> bool:
    shared = min(piece.end, reference[1]) - max(piece.start, reference[0])
    return 2 * shared >= min(piece.end - piece.start, reference[1] - reference[0])


def _length(spans: Iterable[SpanOf]) -> int:
    return sum(end - start for start, end in spans)


def _shared(one: Sequence[SpanOf], other: Sequence[SpanOf]) -> int:
    """Number of characters in both of two lists of spans, each as `merged` returns it. Each step
    passes one of the first two spans.
    """
    i = j = total = 0
    while i < len(one) and j < len(other):
        total += max(0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total
