"""Aggregation of the losses of tokens to one number.

    token        1 / N * sum over tokens
    sequence     1 / M * sum over rollouts of 1 / n_i * sum over the n_i tokens of rollout i
    constant     1 / M * sum over rollouts of 1 / C   * sum over tokens

N and M are the trained tokens and rollouts of the **whole** batch of an optimiser step, over all
micro-batches and ranks. They are passed in: with a mean over each micro-batch, the weight of a
token would depend on the tokens batched with it.
"""

from __future__ import annotations

from typing import assert_never

from torch import Tensor

from hrm_agent.training.update.objectives.options import LossOptions
from hrm_agent.training.update.objectives.tokens import Counts

__all__ = ["aggregate"]


def aggregate(loss_K: Tensor, lengths_K: Tensor, counts: Counts, options: LossOptions) -> Tensor:
    """Share of the loss of this micro-batch."""
    match options.aggregation:
        case "token":
            return loss_K.sum() / counts.tokens
        case "sequence":
            return (loss_K / lengths_K).sum() / counts.sequences
        case "constant":
            return loss_K.sum() / (counts.sequences * options.constant)
        case _:
            assert_never(options.aggregation)
