"""Loading of a tokenizer by its string."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.tokenizers.base import DEFAULT_TOKENIZER, Tokenizer
from hrm_agent.retrieval.tokenizers.encodings import Tiktoken, encodings_on_disk
from hrm_agent.retrieval.tokenizers.libraries import HuggingFace, SentencePiece, models_on_disk
from hrm_agent.retrieval.tokenizers.plain import PLAIN

__all__ = ["load_tokenizer", "tokenizers_at_hand"]

_LIBRARIES: dict[str, Callable[[str], Tokenizer]] = {
    "hf": HuggingFace,
    "sentencepiece": SentencePiece,
    "tiktoken": Tiktoken,
}


@lru_cache(maxsize=16)
def load_tokenizer(name: str = DEFAULT_TOKENIZER) -> Tokenizer:
    """Load a tokenizer: `word`, `character`, `pieces`, `hf:NAME_OR_FILE`, `tiktoken:NAME_OR_FILE`
    or `sentencepiece:FILE`.
    """
    if name in PLAIN:
        return PLAIN[name]
    library, _, source = name.partition(":")
    if source and library in _LIBRARIES:
        return _LIBRARIES[library](source)
    known = (
        f"Known: {', '.join(PLAIN)}, hf:NAME_OR_FILE, tiktoken:NAME_OR_FILE, sentencepiece:FILE."
    )
    meant = nearest(name, [*PLAIN, *tokenizers_at_hand()])
    raise ConfigError(f"There is no tokenizer {name!r}.", f"{meant} {known}".strip())


def tokenizers_at_hand() -> list[str]:
    """Names of all tokenizers that can be loaded without a download or a file of the user. Their
    libraries are installed.
    """
    found = [*PLAIN]
    if find_spec("tiktoken"):
        found += [f"tiktoken:{encoding}" for encoding in encodings_on_disk()]
    if find_spec("tokenizers") and find_spec("huggingface_hub"):
        found += [f"hf:{model}" for model in models_on_disk()]
    return found
