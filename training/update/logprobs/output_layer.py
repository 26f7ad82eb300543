"""The output layer of a model, within whatever wraps it.

Of a batch's positions only a part is trained, and the output layer is the widest of the model. So
the hidden states are narrowed to the positions that predict a trained token *before* that layer: by
a hook on it, within the model's ordinary forward, so that whatever wraps the model (DDP, FSDP,
LoRA) and whatever follows the layer (soft caps, scales) stays as it is.

Where log-probs are taken without logits (`vocabulary_chunks`), the layer's weight is all that is
needed of it: its input is caught, and it sees one position only, by which it shows whether anything
follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["in_place_of_logits", "only_positions", "output_layer"]


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


class Found:
    """What `in_place_of_logits` computed, and the logits it was checked against."""

    result: Any = None
    """Of `compute`."""
    output: Tensor | None = None
    """Of the layer, at one position."""

    def is_last(self, logits: Tensor) -> bool:
        """Whether the model's logits are the layer's, with nothing behind."""
        return self.output is not None and torch.equal(
            self.output.flatten(), logits.flatten().to(self.output.dtype)
        )


@contextmanager
def in_place_of_logits(
    layer: nn.Module, rows_P: Tensor, columns_P: Tensor, compute: Callable[[Tensor, nn.Module], Any]
) -> Generator[Found]:
    """Within the block `compute` gets the hidden states of the given positions, and `layer`, while
    it is being called.

    While it is being called, so that parameters that are gathered for the call (FSDP) are there.
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
