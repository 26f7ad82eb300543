"""The passages of one text, ranked by a question: BM25 within the text, in memory and without an index."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

from hrm_agent.retrieval.chunking.chunker import chunk_text
from hrm_agent.retrieval.terms import terms_of

__all__ = ["scored_passages"]

PASSAGE_TOKENS = 128
_K, _B = 1.2, 0.75
"""BM25's usual constants."""


def scored_passages(text: str, question: str) -> list[tuple[tuple[int, int], float]]:
    """The passages of a text in its order, spans of it, each with its score; 0 where it has no word of the question."""
    passages = _passages(text)
    return list(zip(passages.spans, passages.scores(question), strict=True))


class _Passages:
    """The passages of one text, ready to be asked."""

    def __init__(self, text: str) -> None:
        chunks = chunk_text(text, "recursive", size=PASSAGE_TOKENS, overlap=0.0)
        self.spans = [(chunk.start, chunk.end) for chunk in chunks]
        self._counts = [Counter(terms_of(text[start:end])) for start, end in self.spans]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._in = Counter(term for counts in self._counts for term in counts)

    def scores(self, question: str) -> list[float]:
        """BM25 of each passage."""
        mean = sum(self._lengths) / max(len(self._lengths), 1) or 1.0
        wanted = [(term, self._rarity(term)) for term in dict.fromkeys(terms_of(question)) if term in self._in]
        return [
            sum(
                rare * n * (_K + 1) / (n + _K * (1 - _B + _B * length / mean))
                for term, rare in wanted
                if (n := counts[term])
            )
            for counts, length in zip(self._counts, self._lengths, strict=True)
        ]

    def _rarity(self, term: str) -> float:
        number = self._in[term]
        return math.log(1 + (len(self.spans) - number + 0.5) / (number + 0.5))


@lru_cache(maxsize=32)
def _passages(text: str) -> _Passages:
    return _Passages(text)
