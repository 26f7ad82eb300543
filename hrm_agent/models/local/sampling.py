"""Sampling for many rows at once, with random numbers that depend on the request, not on the batch.

Each token is drawn with a uniform number, which is a hash of (seed of the request, index of the
token in the answer). So the draws of an answer do not depend on other requests in the batch, on
their order, or on interruptions of the engine, and a stored run can be sampled again. The token is
found by inverting the cumulative distribution in float64.

Log-probs are tempered: log softmax of the float32 logits divided by the row's temperature, over the
whole vocabulary, independent of top-p and schema. A trainer has to take the gradient of that
distribution. At temperature 0 nothing is sampled, and log-probs are those of temperature 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["Held", "sample_rows", "seed_state", "uniform"]

Held = tuple[torch.Tensor, torch.Tensor]
"""Schema constraints of H rows: [H] indices of the rows, and [H, vocabulary] True for allowed
tokens, at least one in each row.
"""

_CHUNK_ELEMENTS = 2**19
"""Number of logits sampled from at once on a CPU. Larger tensors are returned to the system and
mapped again at each step, which costs twice as much as the arithmetic.
"""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFT = (np.uint64(30), np.uint64(27), np.uint64(31))


def seed_state(seed: int) -> np.uint64:
    """State for `uniform` from the seed of a request."""
    return _splitmix(np.asarray([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))[0]


def uniform(state_R: np.ndarray[Any, Any], index_R: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Uniform numbers in [0, 1), float64: a pure function of the seed's state and the token's index
    in the answer.
    """
    counter = (index_R.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (_splitmix(state_R + counter) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def sample_rows(
    logits_RV: torch.Tensor,
    uniform_R: torch.Tensor,
    temperature_R: torch.Tensor,
    top_p_R: torch.Tensor,
    held: Held | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row, with its tempered log-prob. Temperature 0 takes the most probable
    token (the first of several equally probable tokens).

    `held`: allowed tokens of some rows. Their log-probs stay those of the whole vocabulary.
    """
    count, vocabulary = logits_RV.shape
    size = count if logits_RV.is_cuda else max(1, _CHUNK_ELEMENTS // vocabulary)
    parts = [
        _sample(
            logits_RV[start : start + size],
            uniform_R[start : start + size],
            temperature_R[start : start + size],
            top_p_R[start : start + size],
            _held_within(held, start, start + size),
        )
        for start in range(0, count, size)
    ]
    if len(parts) == 1:
        return parts[0]
    tokens, logprobs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _held_within(held: Held | None, start: int, stop: int) -> Held | None:
    """Constraints of the rows from `start` to `stop`, counted from `start`."""
    if held is None:
        return None
    index_H, allowed_HV = held
    within_H = (index_H >= start) & (index_H < stop)
    return index_H[within_H] - start, allowed_HV[within_H]


def _sample(
    logits_RV: torch.Tensor,
    uniform_R: torch.Tensor,
    temperature_R: torch.Tensor,
    top_p_R: torch.Tensor,
    held: Held | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    tempered_RV = _tempered(torch.log_softmax(logits_RV.float(), dim=-1), temperature_R)
    open_RV = tempered_RV if held is None else _among(tempered_RV, held)
    token_R = _invert(_weights(open_RV, top_p_R), uniform_R)
    greedy_R = temperature_R == 0
    if greedy_R.any():
        token_R = torch.where(greedy_R, open_RV.argmax(dim=-1), token_R)
    return token_R, tempered_RV.gather(1, token_R[:, None])[:, 0]


def _tempered(raw_RV: torch.Tensor, temperature_R: torch.Tensor) -> torch.Tensor:
    """Log-probs at each row's temperature. Rows at temperature 0 or 1 are bitwise unchanged,
    whatever the other rows have.
    """
    plain_R1 = ((temperature_R == 0) | (temperature_R == 1))[:, None]
    if bool(plain_R1.all()):
        return raw_RV
    divided_RV = raw_RV / torch.where(plain_R1, 1.0, temperature_R[:, None])
    return torch.where(plain_R1, raw_RV, torch.log_softmax(divided_RV, dim=-1))


def _among(tempered_RV: torch.Tensor, held: Held) -> torch.Tensor:
    """Log-probs among the allowed tokens. Other rows are unchanged."""
    index_H, allowed_HV = held
    masked_HV = tempered_RV[index_H].masked_fill(~allowed_HV, float("-inf"))
    return tempered_RV.index_copy(0, index_H, torch.log_softmax(masked_HV, dim=-1))


def _weights(tempered_RV: torch.Tensor, top_p_R: torch.Tensor) -> torch.Tensor:
    """Sampling weights. Those of a row need not add up to 1."""
    weights_RV = tempered_RV.exp()
    narrow_R = top_p_R < 1
    if bool(narrow_R.any()):
        weights_RV[narrow_R] = _nucleus(weights_RV[narrow_R], top_p_R[narrow_R])
    return weights_RV


def _nucleus(probs_RV: torch.Tensor, top_p_R: torch.Tensor) -> torch.Tensor:
    """Probabilities with zeros outside the smallest set of most probable tokens that has at least
    the mass `top_p`.
    """
    sorted_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
    before_RV = sorted_RV.double().cumsum(dim=-1) - sorted_RV
    kept_RV = torch.where(before_RV < top_p_R[:, None], sorted_RV, 0.0)
    return torch.zeros_like(probs_RV).scatter_(1, order_RV, kept_RV)


def _invert(weights_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    cumulative_RV = weights_RV.cumsum(dim=-1, dtype=torch.float64)
    target_R1 = uniform_R[:, None] * cumulative_RV[:, -1:]
    found_R = torch.searchsorted(cumulative_RV, target_R1, right=True)[:, 0]
    return found_R.clamp_(max=weights_RV.shape[1] - 1)


def _splitmix(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> _SHIFT[0])) * _MIX[0]
    mixed = (mixed ^ (mixed >> _SHIFT[1])) * _MIX[1]
    return mixed ^ (mixed >> _SHIFT[2])
