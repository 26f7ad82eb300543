"""`chunk_text`: cut a text into chunks by a named strategy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.markdown import markdown_levels
from hrm_agent.retrieval.chunking.semantic import topics
from hrm_agent.retrieval.chunking.sentences import Prose
from hrm_agent.retrieval.chunking.spans import CutLevel, Spans
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer, checked
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

__all__ = ["STRATEGIES", "chunk_text"]

DEFAULT_STRATEGY, DEFAULT_SIZE, DEFAULT_OVERLAP = "semantic", 512, 0.15
"""Default settings, explained in `docs/documents.md`."""
_MOST_OVERLAP = 0.5
_CONTINUES = re.compile(r"[})\]]|else\b|elif\b|except\b|finally\b|catch\b|end\b")
"""Beginning of a line of code that belongs to the previous line."""


def chunk_text(
    text: str,
    strategy: str = DEFAULT_STRATEGY,
    tokenizer: Tokenizer | str = DEFAULT_TOKENIZER,
    *,
    size: int = DEFAULT_SIZE,
    overlap: float = DEFAULT_OVERLAP,
    embeddings: Embeddings | None = None,
) -> list[Chunk]:
    """Chunks of `text` in order, covering all of it (empty for an empty text).

    `size` is the limit in tokens of `tokenizer`. `overlap`, at most a half, is the share of the
    limit that a chunk repeats from the previous chunk. Strategies: `fixed` (ignores `overlap`),
    `sliding`, `recursive` (paragraphs, sentences, lines, words), `sentence`, `semantic` (changes of
    topic, found by words or, if given, by `embeddings`), `markdown`, `code`.
    """
    if strategy not in STRATEGIES:
        known = f"{nearest(strategy, STRATEGIES)} Known: {', '.join(STRATEGIES)}.".strip()
        raise ConfigError(f"There is no chunking strategy {strategy!r}.", known)
    if size < 1:
        raise ConfigError(f"A chunk cannot have {size} tokens.", "Choose a size of at least 1.")
    if not 0 <= overlap <= _MOST_OVERLAP:
        raise ConfigError(
            f"An overlap of {overlap:g} is not a share from 0 to {_MOST_OVERLAP}.",
            "Write 0.15 for 15 %.",
        )
    if embeddings is not None and strategy != "semantic":
        raise ConfigError(
            f"Embeddings were given, but the strategy {strategy!r} does not use them.",
            "Choose `semantic`, or leave the embeddings out.",
        )
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer)
    prose = Prose(checked(text))
    levels = _semantic(prose, embeddings) if embeddings is not None else STRATEGIES[strategy](prose)
    spans = Spans(prose, tokenizer, size, 0.0 if strategy == "fixed" else overlap)
    starts = list[CutLevel]()
    if spans.overlap and strategy != "sliding":  # chunks of `sliding` start anywhere
        whole = prose.lines if strategy == "code" else prose.sentences
        starts = [CutLevel(whole), CutLevel(prose.words)]
    return list(spans.cut(levels, starts))


def _recursive(prose: Prose) -> Sequence[CutLevel]:
    return [
        CutLevel(places) for places in (prose.paragraphs, prose.sentences, prose.lines, prose.words)
    ]


def _semantic(prose: Prose, embeddings: Embeddings | None = None) -> Sequence[CutLevel]:
    return topics(prose, embeddings), *_recursive(prose)


def code_levels(prose: Prose) -> Sequence[CutLevel]:
    """Places to cut code of any indented language: definitions at the margin, blocks, statements at
    the margin, lines, words.

    A parser would find better places, but each language needs a parser of its own. Indentation is
    enough to keep a function whole if it fits. The best place is a line at the margin after a blank
    line, then any line after a blank line, then a line at the margin that closes nothing, then any
    line.
    """
    starts, after_blank = prose.written_lines
    margin = ~prose.space[starts]
    text = prose.text
    margin[margin] = [_CONTINUES.match(text, start) is None for start in starts[margin].tolist()]
    ranks = (after_blank & margin, after_blank & ~margin, ~after_blank & margin)
    return [
        CutLevel(places) for places in (*(starts[rank] for rank in ranks), prose.lines, prose.words)
    ]


STRATEGIES: dict[str, Callable[[Prose], Sequence[CutLevel]]] = {
    "fixed": lambda prose: (),
    "sliding": lambda prose: (),
    "recursive": _recursive,
    "sentence": lambda prose: [
        CutLevel(places) for places in (prose.sentences, prose.lines, prose.words)
    ],
    "semantic": _semantic,
    "markdown": markdown_levels,
    "code": code_levels,
}
"""Places to cut by strategy, the best kind first."""
