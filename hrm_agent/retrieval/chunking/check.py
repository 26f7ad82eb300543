"""What must hold of every list of chunks, looked at from outside: for tests, and for splitters that are not ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.graphemes import grapheme_ends
from hrm_agent.retrieval.tokenizers.base import Tokenizer

__all__ = ["faults"]


def faults(text: str, chunks: Sequence[Chunk], tokenizer: Tokenizer, size: int) -> list[str]:
    """A line for each thing that is wrong; none if citations can rest on `chunks`."""
    return [*_coverage(text, chunks), *_limits(text, chunks, tokenizer, size), *_broken(text, chunks, tokenizer, size)]


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
        if chunk.text != text[chunk.start : chunk.end]:
            yield f"chunk {number} is not text[{chunk.start}:{chunk.end}]"
        if (tokens := tokenizer.count(chunk.text)) != chunk.tokens:
            yield f"chunk {number} says {chunk.tokens} tokens and has {tokens}"
        if tokens > size:
            yield f"chunk {number} has {tokens} tokens, over {size}"


def _broken(text: str, chunks: Sequence[Chunk], tokenizer: Tokenizer, size: int) -> Iterator[str]:
    """A grapheme may be cut only if it is over the limit by itself."""
    ends = grapheme_ends(text)
    for place in sorted({place for chunk in chunks for place in (chunk.start, chunk.end) if not ends[place]}):
        first, last = place, place
        while not ends[first]:
            first -= 1
        while not ends[last]:
            last += 1
        if tokenizer.count(text[first:last]) <= size:
            yield f"the grapheme from {first} to {last} is cut at {place}"
