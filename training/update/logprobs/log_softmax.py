"""Log-softmax of given logits at given tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["CHUNK_ELEMENTS", "chosen_logprobs"]

CHUNK_ELEMENTS = 2**25
"""Number of logits taken through the log-softmax at once: 128 MiB in single precision."""


def chosen_logprobs(
    logits_KV: Float[Tensor, "K V"],
    token_ids_K: Int[Tensor, " K"],
    temperatures_K: Float[Tensor, " K"] | None = None,
) -> Float[Tensor, " K"]:
    """Log-softmax of each row at its token, in single precision or better, a bounded number of
    logits at a time.

    Rows are divided by their temperatures (None: 1 for all).
    """
    size = max(1, CHUNK_ELEMENTS // logits_KV.shape[-1])
    logits = logits_KV.split(size)
    token_ids = token_ids_K.split(size)
    if temperatures_K is None or bool((temperatures_K == 1).all()):
        divided = (_exact(rows) for rows in logits)
    else:
        divided = (
            _exact(rows) / t[:, None]
            for rows, t in zip(logits, temperatures_K.split(size), strict=True)
        )
    chunks = zip(divided, token_ids, strict=True)
    return torch.cat(
        [-nn.functional.cross_entropy(rows, ids, reduction="none") for rows, ids in chunks]
    )


def _exact(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
