"""A tokenizer by its string."""

from __future__ import annotations

from functools import lru_cache

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
from hrm_agent.retrieval.tokenizers.plain import PLAIN

__all__ = ["load_tokenizer"]


@lru_cache(maxsize=16)
def load_tokenizer(name: str = DEFAULT_TOKENIZER) -> Tokenizer:
    """`word`, `character`, `pieces`, `hf:NAME_OR_FILE`, `tiktoken:NAME` or `sentencepiece:FILE`."""
    if name in PLAIN:
        return PLAIN[name]
    raise ConfigError(f"There is no tokenizer {name!r}.", nearest(name, PLAIN))
