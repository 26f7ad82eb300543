"""Comparison of several ways to cut one text: faults, cut sentences and words, overlap, time.

Our strategies and the splitters of other libraries are checked by the same functions. A wrong span
is counted. It is corrected if the chunk's text can be found, so overlap and coverage measure the
cutting and not the spans. Sentence ends are found by a separate expression and not by the rules of
our strategies.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import fmean

from hrm_agent.errors import ConfigError, HrmError, nearest
from hrm_agent.retrieval.chunking.check import ChunkTally, shared_tokens, tally
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.chunker import STRATEGIES, chunk_text
from hrm_agent.retrieval.chunking.libraries import LIBRARIES, library_spans, placed
from hrm_agent.retrieval.tokenizers.base import Tokenizer

__all__ = ["Cutting", "compare", "sentence_ends", "splitters_at_hand"]

_SENTENCE = re.compile(
    r"[.!?\u2026][\"'\u2019\u201d)\]*_`]*\s+|[\u3002\uff01\uff1f][\u300d\u300f\u201d]?\s*|\n\s*\n\s*"
    r"|\n(?= {0,3}(?:#|[-*+] |\d+[.)] |\||>|```|~~~))"
)
"""End of a sentence. Lines of a list, a table, a quotation and the like count as sentences."""
_VISIBLE = re.compile(r"\S")
_WARMING = 500
"""Number of characters that are cut for warm-up, before the clock starts."""
_MODULES = {
    "chonkie": "chonkie",
    "langchain": "langchain_text_splitters",
    "semantic": "semantic_text_splitter",
}


@dataclass(frozen=True, slots=True)
class Cutting:
    """Chunks of one text by one strategy or splitter, with their measures."""

    name: str
    """Name of our strategy or of a library's splitter."""
    chunks: list[Chunk]
    """Chunks, with wrong spans corrected if possible. `faults.wrong_spans` counts them as wrong."""
    faults: ChunkTally
    """Number of faults of the chunks."""
    overlaps: list[int]
    """Number of tokens that each chunk shares with the next."""
    cut_sentences: int
    """Chunks that end inside of a sentence."""
    cut_words: int
    """Chunks that end between two letters or digits."""
    seconds: float
    """CPU time of cutting, tokenizing included."""
    problem: str = ""
    """Reason why there are no chunks (empty if there are)."""

    @property
    def mean_tokens(self) -> float | None:
        """Mean tokens of a chunk (None without chunks)."""
        return fmean(chunk.tokens for chunk in self.chunks) if self.chunks else None

    @property
    def most_tokens(self) -> int | None:
        """Maximum tokens of a chunk (None without chunks)."""
        return max((chunk.tokens for chunk in self.chunks), default=None)

    @property
    def mean_overlap(self) -> float | None:
        """Mean tokens that two neighbours share (None with fewer than two chunks)."""
        return fmean(self.overlaps) if self.overlaps else None


def splitters_at_hand() -> list[str]:
    """Names of our strategies, then of the libraries' splitters that are installed."""
    return [
        *STRATEGIES,
        *(name for name in LIBRARIES if find_spec(_MODULES.get(name.partition("-")[0], name))),
    ]


def compare(
    text: str,
    names: Sequence[str],
    tokenizer: Tokenizer,
    *,
    size: int,
    overlap: float,
    on_name: Callable[[str], None] = lambda name: None,
) -> list[Cutting]:
    """Cut `text` in each way. `on_name` is called after each.

    An error of a library on this text is reported in `problem`. Raise `ConfigError` for invalid
    settings.
    """
    for name in names:
        if name not in (known := [*STRATEGIES, *LIBRARIES]):
            raise ConfigError(
                f"There is no strategy {name!r}.",
                nearest(name, known) or f"Known: {', '.join(known)}.",
            )
    chunk_text("", tokenizer=tokenizer, size=size, overlap=overlap)
    ends, found = sentence_ends(text), list[Cutting]()
    for name in names:
        found.append(_cut(text, name, tokenizer, size, overlap, ends))
        on_name(name)
    return found


def sentence_ends(text: str) -> frozenset[int]:
    """First character after each sentence and the white space behind it. An abbreviation counts as
    an end.
    """
    return frozenset(match.end() for match in _SENTENCE.finditer(text))


def _cut(
    text: str, name: str, tokenizer: Tokenizer, size: int, overlap: float, ends: frozenset[int]
) -> Cutting:
    cut_by = chunk_text if name in STRATEGIES else library_spans
    begun = time.process_time()
    try:
        # imports, expressions, tables
        cut_by(text[:_WARMING], name, tokenizer, size=size, overlap=overlap)
        begun = time.process_time()
        found = cut_by(text, name, tokenizer, size=size, overlap=overlap)
    except HrmError as error:
        return Cutting(
            name, [], ChunkTally(0, 0, 0, 0), [], 0, 0, time.process_time() - begun, error.message
        )
    seconds = time.process_time() - begun
    said = [
        one if isinstance(one, Chunk) else Chunk(one[0], one[1], tokenizer.count(one[2]), one[2])
        for one in found
    ]
    chunks = placed(text, said)
    cut = [chunk.end for chunk in chunks if 0 < chunk.end < len(text)]
    return Cutting(
        name,
        chunks,
        faults=_faults(text, said, chunks, tokenizer, size),
        overlaps=shared_tokens(text, chunks, tokenizer),
        cut_sentences=sum(place not in ends for place in _seen(text, cut) if place < len(text)),
        cut_words=sum(text[place - 1].isalnum() and text[place].isalnum() for place in cut),
        seconds=seconds,
    )


def _faults(
    text: str, said: Sequence[Chunk], chunks: Sequence[Chunk], tokenizer: Tokenizer, size: int
) -> ChunkTally:
    """Faults of the chunks: wrong spans by the original spans, all others by the corrected ones."""
    mended = tally(text, chunks, tokenizer, size)
    wrong = sum(text[chunk.start : chunk.end] != chunk.text or chunk.start < 0 for chunk in said)
    return ChunkTally(wrong, mended.over_limit, mended.cut_graphemes, mended.lost)


def _seen(text: str, places: Iterable[int]) -> list[int]:
    """First visible character from each place on, by increasing place. No stretch is searched
    twice.
    """
    seen, found = -1, list[int]()
    for place in sorted(places):
        if place > seen:
            match = _VISIBLE.search(text, place)
            seen = match.start() if match else len(text)
        found.append(seen)
    return found
