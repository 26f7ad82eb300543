"""Retrieval of text: tokenizers, chunks that are exact spans, indexes and citations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrm_agent.retrieval.chunking.chunk import Chunk
    from hrm_agent.retrieval.chunking.chunker import STRATEGIES, chunk_text
    from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
    from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["DEFAULT_TOKENIZER", "STRATEGIES", "Chunk", "Tokenizer", "chunk_text", "load_tokenizer"]

_HOMES = {
    "DEFAULT_TOKENIZER": "hrm_agent.retrieval.tokenizers.base",
    "STRATEGIES": "hrm_agent.retrieval.chunking.chunker",
    "Chunk": "hrm_agent.retrieval.chunking.chunk",
    "Tokenizer": "hrm_agent.retrieval.tokenizers.base",
    "chunk_text": "hrm_agent.retrieval.chunking.chunker",
    "load_tokenizer": "hrm_agent.retrieval.tokenizers.load",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use, since the command line imports this package long before it needs
    most of it.
    """
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
