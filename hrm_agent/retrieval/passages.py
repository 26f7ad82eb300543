"""Passages of texts, ranked by a question with BM25 in memory, without an index.

There are two uses. `scored_passages` cuts one long text into passages, of which the caller shows
the best. `best_passages` chooses among the passages of all hits of a search, which are often too
long to be shown in full. A hit with many good passages gets more space than a hit with few.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from hrm_agent.retrieval.chunking.chunker import chunk_text
from hrm_agent.retrieval.languages import guess_language
from hrm_agent.retrieval.terms import is_common, terms_of

__all__ = ["Extract", "best_passages", "scored_passages"]

PASSAGE_TOKENS = 128
_K, _B = 1.2, 0.75
"""Usual constants of BM25."""
Span = tuple[int, int]


class Extract(Protocol):
    """Part of a document, e.g. a `Hit`."""

    @property
    def file(self) -> str:
        """Name of the document."""
        ...

    @property
    def start(self) -> int:
        """First character of the part in the document."""
        ...

    @property
    def text(self) -> str:
        """Text of the part."""
        ...

    @property
    def language(self) -> str:
        """Code of the document's language (empty if unknown)."""
        ...


def scored_passages(text: str, question: str) -> list[tuple[Span, float]]:
    """Passages of a text as spans in order, each with its score (0 if it has no word of the
    question).
    """
    passages = _passages(text)
    return list(zip(passages.spans, passages.scores(question), strict=True))


def best_passages(hits: Sequence[Extract], question: str, limit: int) -> list[list[Span]]:
    """Choose passages of hits to show in `limit` characters. Returns, for each hit, ordered spans
    of its text that do not touch.

    All passages are chosen if they fit. Otherwise, the best passage of each hit is chosen first, in
    the order of the hits, and then the best of all other passages, as long as they fit. Text that
    two hits share counts once and belongs to the first of them. Passages of white space alone are
    left out.
    """
    parts = [(number, span) for number, spans in enumerate(_own_spans(hits)) for span in spans]
    counted = _Counted(
        _terms(hits[number].text[start:end], hits[number].language)
        for number, (start, end) in parts
    )
    asked = [
        term
        for language in dict.fromkeys(hit.language for hit in hits)
        for term in _terms(question, language)
    ]
    ranked = sorted(zip(counted.scores(asked), parts, strict=True), key=lambda one: -one[0])
    first = {number: (score, span) for score, (number, span) in reversed(ranked)}
    order = [(number, first[number][1]) for number in sorted(first)] + [part for _, part in ranked]
    chosen: list[list[Span]] = [[] for _ in hits]
    for number, (start, end) in dict.fromkeys(order):
        if end - start <= limit:
            chosen[number].append((start, end))
            limit -= end - start
    if order and not any(chosen):  # no passage fits
        number, (start, _) = order[0]
        chosen[number].append((start, start + limit))
    return [_joined(spans) for spans in chosen]


def _own_spans(hits: Sequence[Extract]) -> Iterator[list[Span]]:
    """Passages of each hit, without text of a previous hit."""
    for number, hit in enumerate(hits):
        before = [
            (one.start, one.start + len(one.text)) for one in hits[:number] if one.file == hit.file
        ]
        spans: list[Span] = []
        for start, end in _left_of((hit.start, hit.start + len(hit.text)), before):
            at = start - hit.start
            spans += [(at + a, at + b) for a, b in _cut(hit.text[at : end - hit.start])]
        yield [(a, b) for a, b in spans if not hit.text[a:b].isspace()]


def _left_of(span: Span, others: Iterable[Span]) -> list[Span]:
    left = [span]
    for start, end in others:
        left = [
            piece
            for a, b in left
            for piece in (((a, b),) if end <= a or b <= start else ((a, start), (end, b)))
            if piece[0] < piece[1]
        ]
    return left


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


def _cut(text: str) -> list[Span]:
    return [
        (chunk.start, chunk.end)
        for chunk in chunk_text(text, "recursive", size=PASSAGE_TOKENS, overlap=0.0)
    ]


def _terms(text: str, language: str) -> list[str]:
    return [term for term in terms_of(text, language) if not is_common(term)]


class _Counted:
    """Terms of passages, counted for scoring."""

    def __init__(self, passages: Iterable[list[str]]) -> None:
        self._counts = [Counter(terms) for terms in passages]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._in = Counter(term for counts in self._counts for term in counts)

    def scores(self, asked: Iterable[str]) -> list[float]:
        """BM25 score of each passage."""
        mean = sum(self._lengths) / max(len(self._lengths), 1) or 1.0
        wanted = list[tuple[str, float]]()
        for term in dict.fromkeys(asked):
            if number := self._in[term]:
                rarity = math.log(1 + (len(self._counts) - number + 0.5) / (number + 0.5))
                wanted.append((term, rarity))
        return [
            sum(
                rare * n * (_K + 1) / (n + _K * (1 - _B + _B * length / mean))
                for term, rare in wanted
                if (n := counts[term])
            )
            for counts, length in zip(self._counts, self._lengths, strict=True)
        ]


class _Passages:
    """Passages of one text."""

    def __init__(self, text: str) -> None:
        self.spans = _cut(text)
        self._language = guess_language(text)
        self._counted = _Counted(
            _terms(text[start:end], self._language) for start, end in self.spans
        )

    def scores(self, question: str) -> list[float]:
        return self._counted.scores(_terms(question, self._language))


_passages = lru_cache(maxsize=32)(_Passages)
