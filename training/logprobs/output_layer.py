"""The output layer of a model, within whatever wraps it.

Of a batch's positions only a part is trained, and the output layer is the widest of the model. So the hidden states are
narrowed to the positions that predict a trained token *before* that layer: by a hook on it, within the model's ordinary
forward, so that whatever wraps the model (DDP, FSDP, LoRA) and whatever follows the layer (soft caps, scales) stays as
it is.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

__all__ = ["only_positions", "output_layer"]


def output_layer(model: nn.Module) -> nn.Module:
    """The layer that turns hidden states into logits, inside whatever wraps the model."""
    while not hasattr(model, "get_output_embeddings"):
        model = model.get_submodule("module")
    layer = model.get_output_embeddings()  # type: ignore[operator]
    assert isinstance(layer, nn.Module)
    return layer


@contextmanager
def only_positions(layer: nn.Module, rows_K: Tensor, columns_K: Tensor) -> Generator[None]:
    """Within the block `layer` sees the hidden states of the given positions only."""

    def narrow(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        return (inputs[0][rows_K, columns_K],)

    handle = layer.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        handle.remove()
