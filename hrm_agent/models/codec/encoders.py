"""Encoders of text over one vocabulary, with and without its added tokens."""

from __future__ import annotations

from typing import Any, cast

from tokenizers import Tokenizer

from hrm_agent.errors import ModelError

__all__ = ["own_encoder", "plain_encoder"]


def own_encoder(tokenizer: Any) -> Tokenizer:
    """Separate encoder with the same vocabulary. If another user of the tokenizer sets truncation
    or padding, this encoder is not affected.

    Raises `ModelError` if the tokenizer has no backend of the `tokenizers` library.
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
        own = Tokenizer.from_str(backend.to_str())  # slow, but exact for ids with gaps
        own.no_truncation()
        own.no_padding()
    own.encode_special_tokens = False
    return own


def plain_encoder(encoder: Tokenizer) -> Tokenizer:
    """Encoder with the same vocabulary but without added tokens. It encodes any spelling as text."""
    plain = Tokenizer(encoder.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        found: Any = getattr(encoder, part)
        if found is not None:
            setattr(plain, part, found)
    return plain
