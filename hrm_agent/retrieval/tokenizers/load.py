"""A tokenizer by its string."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
from hrm_agent.retrieval.tokenizers.libraries import HuggingFace, SentencePiece, Tiktoken
from hrm_agent.retrieval.tokenizers.plain import PLAIN

__all__ = ["load_tokenizer"]

_LIBRARIES: dict[str, Callable[[str], Tokenizer]] = {
    "hf": HuggingFace,
    "sentencepiece": SentencePiece,
    "tiktoken": Tiktoken,
}


@lru_cache(maxsize=16)
def load_tokenizer(name: str = DEFAULT_TOKENIZER) -> Tokenizer:
    """`word`, `character`, `pieces`, `hf:NAME_OR_FILE`, `tiktoken:NAME` or `sentencepiece:FILE`."""
    if name in PLAIN:
        return PLAIN[name]
    library, _, source = name.partition(":")
    if source and library in _LIBRARIES:
        return _LIBRARIES[library](source)
    known = f"Known: {', '.join(PLAIN)}, hf:NAME_OR_FILE, tiktoken:NAME, sentencepiece:FILE."
    raise ConfigError(f"There is no tokenizer {name!r}.", f"{nearest(name, PLAIN)} {known}".strip())
