"""Counts and metrics that the ranks of a data-parallel training exchange.

Each rank has different micro-batches. The denominators of the loss are the numbers of trained
tokens and of rollouts on *all* ranks. They are divided by the number of ranks, because the loss is
a sum but data-parallel training averages gradients. The number of rounds is the largest number of
micro-batches of a rank. A rank with fewer micro-batches continues with batches that train nothing:
forward and backward passes of sharded weights are collective, so the other ranks would hang without
it. Gradients are exchanged after the last round (`hrm_agent.training.update.gradients`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.objectives import LARGEST, Counts

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["Agreed", "agree", "idle_batch", "max_over_ranks", "over_ranks", "sum_over_ranks"]


@dataclass(frozen=True, slots=True)
class Agreed:
    """Counts of one mini-batch, known to all ranks."""

    tokens: int
    """Number of trained tokens of all ranks."""
    rounds: int
    """Largest number of micro-batches of a rank."""
    sequences: float
    """Number of trajectories with trained tokens, of all ranks. A trajectory that is only partly in
    the mini-batch counts by its share.
    """
    split: bool
    """True if on some rank a trajectory's tokens are in several micro-batches."""
    ranks: int
    """Number of ranks."""

    @property
    def counts(self) -> Counts:
        return Counts(self.tokens / self.ranks, self.sequences / self.ranks)


def agree(
    batches: Sequence[MicroBatch], accelerator: Accelerator | None, device: torch.device
) -> Agreed:
    """Exchange the counts of this rank's micro-batches with the other ranks."""
    tokens = sum(batch.trained_tokens for batch in batches)
    sequences = sum(float((1 / batch.lengths_K.double()).sum()) for batch in batches)
    own = [float(tokens), float(len(batches)), sequences, float(_is_split(batches))]
    if accelerator is None:
        return Agreed(tokens, len(batches), sequences, _is_split(batches), 1)
    gathered: Any = accelerator.gather(torch.tensor([own], dtype=torch.float64, device=device))
    total = gathered.sum(0)
    largest = gathered.max(0).values
    ranks = accelerator.num_processes
    return Agreed(int(total[0]), int(largest[1]), float(total[2]), bool(largest[3]), ranks)


def _is_split(batches: Sequence[MicroBatch]) -> bool:
    seen: set[int] = set()
    for batch in batches:
        here = set(batch.sequences_K.tolist())
        if seen & here:
            return True
        seen |= here
    return False


def sum_over_ranks(value: float, accelerator: Accelerator | None, device: torch.device) -> float:
    """Sum of each rank's value."""
    if accelerator is None:
        return value
    gathered: Any = accelerator.gather(torch.tensor([value], dtype=torch.float64, device=device))
    return float(gathered.sum())


def max_over_ranks(value: float, accelerator: Accelerator | None, device: torch.device) -> float:
    """Largest of each rank's value."""
    if accelerator is None:
        return value
    gathered: Any = accelerator.gather(torch.tensor([value], dtype=torch.float64, device=device))
    return float(gathered.max())


def over_ranks(metrics: Mapping[str, Tensor], accelerator: Accelerator | None) -> dict[str, float]:
    """Metrics over all ranks. Each rank divided its sums by the denominator per rank (`Counts`), so
    the ranks are averaged.
    """
    if accelerator is None:
        return {name: float(value) for name, value in metrics.items()}
    gathered: Any = accelerator.gather(torch.stack(list(metrics.values())).unsqueeze(0))
    columns = zip(metrics, gathered.unbind(1), strict=True)
    return {
        name: float(column.max() if name == LARGEST else column.mean()) for name, column in columns
    }


def idle_batch(device: torch.device) -> MicroBatch:
    """Batch that trains nothing, for a rank without further micro-batches."""
    no_tokens = torch.zeros(0, dtype=torch.long)
    nothing = torch.zeros(0)
    one = torch.zeros(1, dtype=torch.long)
    return MicroBatch(
        token_ids_N=one,
        positions_N=one,
        parents_N=one - 1,
        loss_indices_K=no_tokens,
        weights_K=nothing,
        old_logprobs_K=nothing,
        temperatures_K=nothing,
        old_temperatures_K=nothing,
        versions_K=no_tokens,
        sequences_K=no_tokens,
        lengths_K=nothing,
    ).to(device)
