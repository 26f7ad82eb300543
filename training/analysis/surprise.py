"""Mean -log p of the sampled tokens, as recorded: what the entropy is the mean of, for all steps and without weights.

It is an estimate of the mean entropy, and tells nothing of a single token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hrm_agent.trajectory import Call, LogprobKind, Trajectory

__all__ = ["Surprise", "SurpriseRow", "surprise_of", "surprise_rows"]


@dataclass(frozen=True, slots=True)
class Surprise:
    """Of some tokens."""

    total: float = 0.0
    """Sum of -log p, in nats."""
    tokens: int = 0
    """Tokens that have one that can be compared with an entropy."""


@dataclass(frozen=True, slots=True)
class SurpriseRow:
    """Of all sampled tokens of one part of a run."""

    part: str
    """Name of the part."""
    step: int | None
    """Training step, counted from 1; None outside of training."""
    tokens: int
    """Completion tokens."""
    mean: float
    """Mean -log p, in nats."""


def surprise_of(trajectory: Trajectory) -> Surprise:
    """Of the tokens of a rollout whose log-probs are of the whole distribution that they were sampled from."""
    calls = [call for call in trajectory.own_calls if is_comparable(call)]
    logprobs = [np.asarray(call.logprobs)[np.asarray(call.mask, np.bool_)] for call in calls]
    return Surprise(-sum(float(each.sum()) for each in logprobs), sum(map(len, logprobs)))


def is_comparable(call: Call) -> bool:
    """Whether the recorded log-probs are those of the distribution at the temperature of the call."""
    if not call.token_ids or not call.logprobs:
        return False
    raw = call.logprob_kind is LogprobKind.RAW and call.sampled_with.temperature == 1
    return raw or call.logprob_kind is LogprobKind.TEMPERED


def surprise_rows(found: Iterable[tuple[str, int | None, Surprise]]) -> list[SurpriseRow]:
    """One row for each part that has such tokens, from what its rollouts have."""
    parts: dict[str, tuple[int | None, float, int]] = {}
    for part, step, each in found:
        _, total, tokens = parts.get(part, (step, 0.0, 0))
        parts[part] = step, total + each.total, tokens + each.tokens
    return [SurpriseRow(name, step, tokens, total / tokens) for name, (step, total, tokens) in parts.items() if tokens]
