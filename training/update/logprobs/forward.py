"""Inputs of a forward pass: the model's arguments, and the place of each token in its hidden
states.
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
    """Inputs of one model call for a whole micro-batch."""

    arguments: Mapping[str, Any]
    """Keyword arguments of the model's forward."""
    rows_N: Int[Tensor, " N"]  # noqa: N815
    """Row of each token of the micro-batch within the model's B x T."""
    columns_N: Int[Tensor, " N"]  # noqa: N815
    """Column of each token within the model's B x T."""


Forward = Callable[[nn.Module, MicroBatch], AbstractContextManager[ModelInputs]]
"""Context manager in which the model may be called with the inputs, and must not be called
otherwise.
"""
