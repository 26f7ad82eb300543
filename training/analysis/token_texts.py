"""What each token says, so that the texts of all tokens in order are the text of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hrm_agent.models.engine import Codec

__all__ = ["token_texts"]

_UNFINISHED = "\ufffd"
_WAITING = 8
"""Most tokens that wait for the rest of a character."""


def token_texts(codec: Codec, token_ids: Sequence[int]) -> list[str]:
    """The text of each token; of a character made of several tokens, the last one has it and those before are empty."""
    texts: list[str] = []
    context = read = 0
    for place in range(len(token_ids)):
        before = _text(codec, token_ids[context:read])
        after = _text(codec, token_ids[context : place + 1])
        last = place + 1 == len(token_ids)
        if after.endswith(_UNFINISHED) and not last and place - read < _WAITING:
            texts.append("")
            continue
        texts.append(after[len(before) :])
        context, read = read, place + 1
    return texts


def _text(codec: Codec, token_ids: Sequence[int]) -> str:
    """Control tokens included, of which a codec leaves out one at the end."""
    controls: Any = getattr(codec, "control_token_ids", ())
    ends = bool(token_ids) and token_ids[-1] in controls
    return codec.decode([*token_ids, token_ids[-1]] if ends else token_ids)
