"""Splitters of other libraries by name, only for comparison with ours.

Each is called as documented and counts with the same tokenizer, so only the cutting differs. The
tokenizer is passed through our interface, or as the native object of the tokenizer's library if the
splitter accepts that. Results are returned unchanged: a `Chunk` of a library may name a span that
is not its text, or have more tokens than the limit. `benchmarks.chunking.check` counts such faults.
If a library does not know where it cut, the span starts at -1.

`library_spans` does only the library's own work, and is timed. `library_chunks` also counts tokens,
which some libraries do not.

`chonkie` is that library's recursive chunker, with its refinery for an overlap. The refinery puts
text in front of a chunk and leaves the span unchanged. `chonkie-sentence` overlaps by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from hrm_agent.errors import ConfigError, RetrievalError, nearest
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.tokenizers.base import Tokenizer, checked

__all__ = ["LIBRARIES", "library_chunks", "library_spans", "placed"]

Span = tuple[int, int, str]
"""Start, end and text, as reported by a library."""


def library_chunks(
    text: str, name: str, tokenizer: Tokenizer, *, size: int, overlap: float
) -> list[Chunk]:
    """Chunks that a library makes of `text`, with their tokens counted. `size` is in tokens,
    `overlap` is a share of it, as for `chunk_text`.
    """
    spans = library_spans(text, name, tokenizer, size=size, overlap=overlap)
    return [Chunk(start, end, tokenizer.count(part), part) for start, end, part in spans]


def library_spans(
    text: str, name: str, tokenizer: Tokenizer, *, size: int, overlap: float
) -> list[Span]:
    """Spans that a library makes of `text`, unchanged. Raise `ConfigError` for an unknown splitter
    and `RetrievalError` if it fails.
    """
    if name not in LIBRARIES:
        raise ConfigError(
            f"There is no splitter {name!r}.",
            nearest(name, LIBRARIES) or f"Known: {', '.join(LIBRARIES)}.",
        )
    cut = LIBRARIES[name](tokenizer, size, round(size * overlap))
    if not checked(text).strip():
        return []
    try:
        return list(cut(text))
    except Exception as error:  # whatever the library raises
        raise RetrievalError(
            f"{name} fails on this text: {error!r}.", "Compare without it."
        ) from error


def placed(text: str, chunks: Sequence[Chunk]) -> list[Chunk]:
    """Chunks with corrected spans, where a chunk's text can be found. A splitter is then judged by
    its cuts and not by its spans.
    """
    found: list[Chunk] = []
    for chunk in chunks:
        start = chunk.start
        if start < 0 or text[start : chunk.end] != chunk.text:
            after = found[-1].start + 1 if found else 0
            start = text.find(chunk.text, after)
        found.append(
            chunk if start < 0 else Chunk(start, start + len(chunk.text), chunk.tokens, chunk.text)
        )
    return found


def _langchain(tokenizer: Tokenizer, size: int, shared: int) -> Callable[[str], Iterable[Span]]:
    splitter = _library("langchain_text_splitters").RecursiveCharacterTextSplitter(
        chunk_size=size, chunk_overlap=shared, length_function=tokenizer.count, add_start_index=True
    )

    def cut(text: str) -> Iterable[Span]:
        for document in splitter.create_documents([text]):
            start = document.metadata["start_index"]
            yield start, start + len(document.page_content), document.page_content

    return cut


def _semchunk(tokenizer: Tokenizer, size: int, shared: int) -> Callable[[str], Iterable[Span]]:
    chunker = _library("semchunk").chunkerify(tokenizer.count, size, memoize=False)

    def cut(text: str) -> Iterable[Span]:
        parts, spans = chunker(text, overlap=shared or None, offsets=True)
        return [(start, end, part) for part, (start, end) in zip(parts, spans, strict=True)]

    return cut


def _semantic_text_splitter(
    tokenizer: Tokenizer, size: int, shared: int
) -> Callable[[str], Iterable[Span]]:
    splitter = _library("semantic_text_splitter").TextSplitter.from_callback(
        tokenizer.count, size, overlap=shared, trim=False
    )

    def cut(text: str) -> Iterable[Span]:
        return [(start, start + len(part), part) for start, part in splitter.chunk_indices(text)]

    return cut


def _chonkie(tokenizer: Tokenizer, size: int, shared: int) -> Callable[[str], Iterable[Span]]:
    library = _library("chonkie")
    counter = _for_chonkie(tokenizer)
    chunker = library.RecursiveChunker(counter, size)
    refine = library.OverlapRefinery(counter, shared, method="prefix").refine if shared else list

    def cut(text: str) -> Iterable[Span]:
        for chunk in refine(chunker.chunk(text)):
            yield chunk.start_index, chunk.end_index, chunk.text

    return cut


def _chonkie_sentence(
    tokenizer: Tokenizer, size: int, shared: int
) -> Callable[[str], Iterable[Span]]:
    chunker = _library("chonkie").SentenceChunker(_for_chonkie(tokenizer), size, shared)
    return lambda text: [
        (chunk.start_index, chunk.end_index, chunk.text) for chunk in chunker.chunk(text)
    ]


def _for_chonkie(tokenizer: Tokenizer) -> Any:
    """Native object of the tokenizer for chonkie. Without one, a wrapper with pieces of text as
    ids.
    """
    native = getattr(tokenizer, "native", None)
    if native is not None:
        return native

    class SplitterPieces(_library("chonkie.tokenizer").Tokenizer):
        def __repr__(self) -> str:
            return tokenizer.name

        def tokenize(self, text: str) -> list[str]:
            edges = [0, *tokenizer.offsets(text)[:, 1].tolist()]
            return [text[a:b] for a, b in pairwise(edges)]

        encode = tokenize

        def decode(self, tokens: Iterable[str]) -> str:
            return "".join(tokens)

        def count_tokens(self, text: str) -> int:
            return tokenizer.count(text)

    return SplitterPieces()


def _library(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module} is not installed.",
            f"Run `pip install {module.partition('.')[0].replace('_', '-')}`.",
        ) from error


LIBRARIES: dict[str, Callable[[Tokenizer, int, int], Callable[[str], Iterable[Span]]]] = {
    "chonkie": _chonkie,
    "chonkie-sentence": _chonkie_sentence,
    "langchain": _langchain,
    "semantic-text-splitter": _semantic_text_splitter,
    "semchunk": _semchunk,
}
"""Splitters by name: functions of a tokenizer, the size and the overlap in tokens that return a
splitter.
"""
