"""Encoders of text over one vocabulary: with its added tokens, and without."""

from __future__ import annotations

from typing import Any, cast

from tokenizers import Tokenizer

from hrm_agent.errors import ModelError

__all__ = ["own_encoder", "plain_encoder"]


def own_encoder(tokenizer: Any) -> Tokenizer:
    """An encoder of one's own, so that no caller's truncation or padding reaches it; the vocabulary
    is shared.

    Raises `ModelError` where the tokenizer has no backend of the `tokenizers` library.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"The tokenizer {tokenizer.name_or_path!r} is not backed by the `tokenizers` library.",
            "Use a model with a tokenizer.json.",
        )
    own = plain_encoder(backend)
    added = cast("dict[int, Any]", backend.get_added_tokens_decoder())
    own.add_tokens([added[token_id] for token_id in sorted(added)])
    if {i: str(t.content) for i, t in own.get_added_tokens_decoder().items()} != {
        i: t.content for i, t in added.items()
    }:
        own = Tokenizer.from_str(backend.to_str())  # ids with gaps between them: slow, and exact
        own.no_truncation()
        own.no_padding()
    own.encode_special_tokens = False
    return own


def plain_encoder(encoder: Tokenizer) -> Tokenizer:
    """The same vocabulary without added tokens: any spelling is text to it."""
    plain = Tokenizer(encoder.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        found: Any = getattr(encoder, part)
        if found is not None:
            setattr(plain, part, found)
    return plain
