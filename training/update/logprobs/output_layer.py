"""Output layer of a model, inside any wrapper.

Only a part of a batch's positions is trained, and the output layer is the widest of the model. So
*before* that layer, the hidden states are narrowed to the positions that predict a trained token. A
hook on the layer does this within the model's ordinary forward, so that wrappers of the model (DDP,
FSDP, LoRA) and operations after the layer (soft caps, scales) remain in effect.

Log-probs without logits (`vocabulary_chunks`) need only the layer's weight and its input, which is
caught. The layer itself then sees one position, whose output shows whether any operation follows
the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["in_place_of_logits", "only_positions", "output_layer"]


def output_layer(model: nn.Module) -> nn.Module:
    """Layer that turns hidden states into logits, inside any wrapper of the model."""
    while not hasattr(model, "get_output_embeddings"):
        model = model.get_submodule("module")
    layer = model.get_output_embeddings()  # type: ignore[operator]
    assert isinstance(layer, nn.Module)
    return layer


@contextmanager
def only_positions(layer: nn.Module, rows_K: Tensor, columns_K: Tensor) -> Generator[None]:
    """Pass `layer` the hidden states of the given positions only, within the block."""

    def narrow(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        return (inputs[0][rows_K, columns_K],)

    handle = layer.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        handle.remove()


class Found:
    """Result of `in_place_of_logits`, and the logits with which it is checked."""

    result: Any = None
    """Result of `compute`."""
    output: Tensor | None = None
    """Output of the layer, at one position."""

    def is_last(self, logits: Tensor) -> bool:
        """True if the model's logits are the layer's output, with no operation after it."""
        return self.output is not None and torch.equal(
            self.output.flatten(), logits.flatten().to(self.output.dtype)
        )


@contextmanager
def in_place_of_logits(
    layer: nn.Module, rows_P: Tensor, columns_P: Tensor, compute: Callable[[Tensor, nn.Module], Any]
) -> Generator[Found]:
    """Call `compute` with the hidden states of the given positions and `layer`, when the model is
    run within the block.

    `compute` runs inside the call of `layer`, while parameters that FSDP gathers for the call are
    available.
    """
    found = Found()
    caught: list[Tensor] = []

    def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        caught.append(inputs[0][rows_P, columns_P])
        return (caught[0][:1].detach(),)

    def after(_: nn.Module, __: Any, output: Tensor) -> None:
        found.output = output.detach()
        found.result = compute(caught[0], layer)

    handles = layer.register_forward_pre_hook(before), layer.register_forward_hook(after)
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
