"""Checks that hold for every list of chunks, independent of the chunker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.graphemes import grapheme_ends
from hrm_agent.retrieval.tokenizers.base import Tokenizer

__all__ = ["ChunkTally", "faults", "shared_tokens", "tally"]


@dataclass(frozen=True, slots=True)
class ChunkTally:
    """Number of faults in a list of chunks that break citations."""

    wrong_spans: int
    """Chunks that differ from the text at their span."""
    over_limit: int
    """Chunks with more tokens than the limit."""
    cut_graphemes: int
    """Chunk boundaries inside of a grapheme that fits the limit."""
    lost: int
    """Characters in no chunk's span, without white space, which several libraries drop on
    purpose.
    """

    @property
    def total(self) -> int:
        return self.wrong_spans + self.over_limit + self.cut_graphemes + self.lost


def tally(text: str, chunks: Sequence[Chunk], tokenizer: Tokenizer, size: int) -> ChunkTally:
    """Count the faults of chunks. Missing white space between chunks is allowed."""
    covered = np.zeros(len(text), dtype=np.bool_)
    for chunk in chunks:
        covered[max(chunk.start, 0) : max(chunk.end, 0)] = True
    return ChunkTally(
        wrong_spans=sum(not _exact(text, chunk) for chunk in chunks),
        over_limit=sum(tokenizer.count(chunk.text) > size for chunk in chunks),
        cut_graphemes=len(list(_broken(text, chunks, tokenizer, size))),
        lost=sum(not text[i].isspace() for i in np.flatnonzero(~covered)),
    )


def shared_tokens(text: str, chunks: Sequence[Chunk], tokenizer: Tokenizer) -> list[int]:
    """Number of tokens that each chunk shares with the next."""
    return [
        tokenizer.count(text[max(after.start, 0) : before.end])
        for before, after in pairwise(chunks)
    ]


def faults(text: str, chunks: Sequence[Chunk], tokenizer: Tokenizer, size: int) -> list[str]:
    """Describe each fault in one line (empty if citations can rely on `chunks`)."""
    return [
        *_coverage(text, chunks),
        *_limits(text, chunks, tokenizer, size),
        *_broken(text, chunks, tokenizer, size),
    ]


def _exact(text: str, chunk: Chunk) -> bool:
    return 0 <= chunk.start < chunk.end <= len(text) and text[chunk.start : chunk.end] == chunk.text


def _coverage(text: str, chunks: Sequence[Chunk]) -> Iterator[str]:
    start, end = 0, 0
    for number, chunk in enumerate(chunks):
        if chunk.start > end or (number and chunk.start <= start):
            yield f"chunk {number} starts at {chunk.start}, after a chunk from {start} to {end}"
        if chunk.end <= end:
            yield f"chunk {number} ends at {chunk.end}, and the one before at {end}"
        start, end = chunk.start, chunk.end
    if end != len(text):
        yield f"the last chunk ends at {end} of {len(text)}"


def _limits(text: str, chunks: Sequence[Chunk], tokenizer: Tokenizer, size: int) -> Iterator[str]:
    for number, chunk in enumerate(chunks):
        if not _exact(text, chunk):
            yield f"chunk {number} is not text[{chunk.start}:{chunk.end}]"
        if (tokens := tokenizer.count(chunk.text)) != chunk.tokens:
            yield f"chunk {number} says {chunk.tokens} tokens and has {tokens}"
        if tokens > size:
            yield f"chunk {number} has {tokens} tokens, over {size}"


def _broken(text: str, chunks: Sequence[Chunk], tokenizer: Tokenizer, size: int) -> Iterator[str]:
    """Yield boundaries inside of a grapheme. Only one that is over the limit by itself may be
    cut.
    """
    ends = grapheme_ends(text)
    for place in sorted({place for chunk in chunks for place in (chunk.start, chunk.end)}):
        if not 0 <= place <= len(text) or ends[place]:
            continue
        first, last = place, place
        while not ends[first]:
            first -= 1
        while not ends[last]:
            last += 1
        if tokenizer.count(text[first:last]) <= size:
            yield f"the grapheme from {first} to {last} is cut at {place}"
