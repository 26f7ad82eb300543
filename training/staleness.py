"""Tokens that weights of some versions ago sampled: how far they are behind, and a bound on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.objectives.tokens import sum_by_sequence

__all__ = ["fresh_only", "most_behind", "versions_behind"]

_BY_TOKEN = (
    "loss_indices_K",
    "weights_K",
    "old_logprobs_K",
    "temperatures_K",
    "old_temperatures_K",
    "versions_K",
    "sequences_K",
    "lengths_K",
)


def versions_behind(batches: Sequence[MicroBatch], version: int) -> int:
    """Sum over the trained tokens of how many versions before `version` they were sampled by."""
    return sum(int((version - batch.versions_K).sum()) for batch in batches)


def most_behind(batches: Sequence[MicroBatch], version: int) -> int:
    """How many versions before `version` the oldest of the trained tokens was sampled by; 0 without any."""
    return max((int((version - batch.versions_K).max()) for batch in batches if batch.trained_tokens), default=0)


def fresh_only(batches: Sequence[MicroBatch], version: int, max_staleness: int) -> list[MicroBatch]:
    """The batches without the entries of tokens that are more than `max_staleness` versions behind.

    Such tokens are context: they count neither among the trained tokens of the step nor of their trajectory.
    """
    kept = [_of(batch, version - batch.versions_K <= max_staleness) for batch in batches]
    kept = [batch for batch in kept if batch.trained_tokens]
    if not kept:
        return []
    sequences = torch.cat([batch.sequences_K for batch in kept])
    lengths = sum_by_sequence(torch.ones(len(sequences), device=sequences.device), sequences)
    parts = lengths.split([batch.trained_tokens for batch in kept])
    return [replace(batch, lengths_K=part) for batch, part in zip(kept, parts, strict=True)]


def _of(batch: MicroBatch, fresh_K: Tensor) -> MicroBatch:
    return replace(batch, **{name: getattr(batch, name)[fresh_K] for name in _BY_TOKEN})
