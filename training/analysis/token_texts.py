"""What each token says, so that the texts of all tokens in order are the text of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hrm_agent.models.codec.stream_decoder import PieceDecoder
from hrm_agent.models.engine import Codec

__all__ = ["token_texts"]

_WAITING = 8
"""Most tokens that wait for the rest of a character."""


def token_texts(codec: Codec, token_ids: Sequence[int]) -> list[str]:
    """The text of each token; of a character made of several tokens, the last one has it and those before are empty."""
    pieces = PieceDecoder(partial(_text, codec), _WAITING)
    texts = [pieces.push(token_id) for token_id in token_ids]
    return [*texts[:-1], texts[-1] + pieces.finish()] if texts else []


def _text(codec: Codec, token_ids: Sequence[int]) -> str:
    """Control tokens included, of which a codec leaves out one at the end."""
    controls: Any = getattr(codec, "control_token_ids", ())
    ends = bool(token_ids) and token_ids[-1] in controls
    return codec.decode([*token_ids, token_ids[-1]] if ends else token_ids)
