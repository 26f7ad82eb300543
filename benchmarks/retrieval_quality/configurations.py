"""Configurations that an evaluation compares: a way to cut and a way to rank.

A configuration is written as it is printed: `semantic:512/77:words` cuts at changes of topic into
chunks of at most 512 tokens, which share 77 tokens with the previous chunk, and ranks by words.
`default` cuts each file like `hrm-agent index`. Each splitter of another library has two names,
since its spans are often wrong:

* `langchain` uses the spans that the library reports. A chunk whose span is not its text cannot be
  cited: it takes a rank among the hits and tokens of the budget, and answers nothing.
* `langchain-located` searches each chunk's text after the start of the previous chunk. This
  compares fairly where texts are cut, and is the default baseline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self, cast

from benchmarks.chunking.libraries import LIBRARIES, library_chunks
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.chunker import STRATEGIES, chunk_text
from hrm_agent.retrieval.index.folder import Chunking
from hrm_agent.retrieval.index.fusion import MODES, Mode
from hrm_agent.retrieval.index.reading import Document
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["DEFAULT", "LOCATED", "Configuration"]

DEFAULT, LOCATED = "default", "-located"
_WRITTEN = re.compile(r"([\w-]+):(\d+)/(\d+):(\w+)")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Configuration of an evaluation. It compares by value, and `read` parses its `str`."""

    strategy: str
    """Name of the strategy: `default`, one of `STRATEGIES`, or one of `LIBRARIES` with or without
    `-located`.
    """
    size: int
    """Maximum tokens of a chunk."""
    overlap: int
    """Tokens that neighbours share, if the strategy overlaps at all."""
    mode: Mode
    """Ranking of chunks, one of `MODES`."""

    def __str__(self) -> str:
        return f"{self.strategy}:{self.size}/{self.overlap}:{self.mode}"

    def __post_init__(self) -> None:
        known = [DEFAULT, *STRATEGIES, *LIBRARIES, *(name + LOCATED for name in LIBRARIES)]
        for name, names, kind in (
            (self.strategy, known, "chunking strategy"),
            (self.mode, MODES, "mode"),
        ):
            if name not in names:
                hint = f"{nearest(name, names)} Known: {', '.join(names)}.".strip()
                raise ConfigError(f"There is no {kind} {name!r}.", hint)
        if self.size < 1:
            raise ConfigError(
                f"{self}: a chunk cannot have {self.size} tokens.", "Choose a size of at least 1."
            )
        if not 0 <= 2 * self.overlap <= self.size:
            raise ConfigError(
                f"{self}: the overlap is at most half of the size.", "512/77 is 15 %."
            )

    @classmethod
    def read(cls, written: str) -> Self:
        """Parse a configuration such as `langchain-located:512/64:words`."""
        match = _WRITTEN.fullmatch(written)
        if match is None:
            raise ConfigError(
                f"{written!r} is not a configuration.",
                "Write STRATEGY:SIZE/OVERLAP:MODE, both in tokens.",
            )
        return cls(match[1], int(match[2]), int(match[3]), cast("Mode", match[4]))

    def cut(self, document: Document, tokenizer: str) -> list[Chunk]:
        """Chunks of a document, except chunks of white space alone, which no index holds."""
        share = self.overlap / self.size
        library = self.strategy.removesuffix(LOCATED)
        if self.strategy == DEFAULT:
            chunks: Iterable[Chunk] = Chunking(tokenizer=tokenizer, size=self.size, overlap=share)(
                document
            )
        elif library in LIBRARIES:
            chunks = library_chunks(
                document.text, library, load_tokenizer(tokenizer), size=self.size, overlap=share
            )
            chunks = chunks if library == self.strategy else _located(document.text, chunks)
        else:
            chunks = chunk_text(
                document.text, self.strategy, tokenizer, size=self.size, overlap=share
            )
        return [chunk for chunk in chunks if chunk.text.strip()]


def _located(text: str, chunks: Iterable[Chunk]) -> Iterable[Chunk]:
    """Chunks with the span of their text, which is searched after the start of the previous chunk.
    A chunk whose text is not found is unchanged.
    """
    after = 0
    for chunk in chunks:
        start = text.find(chunk.text, after)
        if start < 0:
            yield chunk
        else:
            after = start + 1
            yield replace(chunk, start=start, end=start + len(chunk.text))
