"""What a strategy gives: the model's arguments,
and where in its hidden states each token stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from hrm_agent.training.update.batch import MicroBatch

__all__ = ["Forward", "ModelInputs"]


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """One call of the model for a whole micro-batch."""

    arguments: Mapping[str, Any]
    """Keyword arguments of the model's forward."""
    rows_N: Int[Tensor, " N"]  # noqa: N815
    """Row of each token of the micro-batch within the model's B x T."""
    columns_N: Int[Tensor, " N"]  # noqa: N815
    """Its column."""


Forward = Callable[[nn.Module, MicroBatch], AbstractContextManager[ModelInputs]]
"""Within the block the model may be called with the inputs, and nobody else may call it."""
