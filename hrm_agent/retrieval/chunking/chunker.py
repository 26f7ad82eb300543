"""`chunk_text`: a text, a strategy by its name, and chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.code import code_levels
from hrm_agent.retrieval.chunking.markdown import markdown_levels
from hrm_agent.retrieval.chunking.prose import lines, paragraphs, sentences, words
from hrm_agent.retrieval.chunking.semantic import topics
from hrm_agent.retrieval.chunking.spans import Level, Spans
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["STRATEGIES", "chunk_text"]

DEFAULT_SIZE, DEFAULT_OVERLAP = 512, 0.15
_MOST_OVERLAP = 0.5


def chunk_text(
    text: str,
    strategy: str = "recursive",
    tokenizer: Tokenizer | str = DEFAULT_TOKENIZER,
    *,
    size: int = DEFAULT_SIZE,
    overlap: float = DEFAULT_OVERLAP,
) -> list[Chunk]:
    """Chunks of `text` in order, covering all of it; none for an empty text.

    `size` is the limit in tokens of `tokenizer`; `overlap` the share of it that a chunk repeats of the one before, up
    to a half. Strategies: `fixed` (no overlap, whatever is asked), `sliding`, `recursive` (paragraphs, sentences,
    lines, words), `sentence`, `semantic` (changes of topic), `markdown`, `code`.
    """
    if strategy not in STRATEGIES:
        known = f"{nearest(strategy, STRATEGIES)} Known: {', '.join(STRATEGIES)}.".strip()
        raise ConfigError(f"There is no chunking strategy {strategy!r}.", known)
    if size < 1:
        raise ConfigError(f"A chunk of {size} tokens holds nothing.", "Choose a size of at least 1.")
    if not 0 <= overlap <= _MOST_OVERLAP:
        raise ConfigError(f"An overlap of {overlap:g} is no share from 0 to {_MOST_OVERLAP}.", "15 % is 0.15.")
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer)
    spans = Spans(text, tokenizer, size, 0.0 if strategy == "fixed" else overlap)
    return list(spans.cut(STRATEGIES[strategy](text), _starts(text, spans, strategy)))


def _starts(text: str, spans: Spans, strategy: str) -> list[Level]:
    """Where a chunk that overlaps may start: at a sentence or a word; in code at a line."""
    if not spans.overlap or strategy == "sliding":
        return []
    return [lines(text), words(text)] if strategy == "code" else [sentences(text), words(text)]


def _anywhere(text: str) -> Sequence[Level]:
    del text
    return ()


def _recursive(text: str) -> Sequence[Level]:
    return paragraphs(text), sentences(text), lines(text), words(text)


def _sentence(text: str) -> Sequence[Level]:
    return sentences(text), lines(text), words(text)


def _semantic(text: str) -> Sequence[Level]:
    return topics(text), *_recursive(text)


STRATEGIES: dict[str, Callable[[str], Sequence[Level]]] = {
    "fixed": _anywhere,
    "sliding": _anywhere,
    "recursive": _recursive,
    "sentence": _sentence,
    "semantic": _semantic,
    "markdown": markdown_levels,
    "code": code_levels,
}
"""Strategy -> the places where it would like to cut, the best kind first."""
