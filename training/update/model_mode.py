"""Which parts of a model behave as in training, decided in one place for all that a trainer does
with it.

A model may drop units (`attention_dropout`, `resid_pdrop`, `layerdrop`), add noise (the router of a
mixture of experts) or change running statistics while it is in `train()`. An engine never does: it
answers in `eval()`.

| | mode |
|---|---|
| engine, reference policy, log-probs, evaluation | as the model answers: nothing is dropped |
| update of reinforcement learning | as the model answers, but for an adapter's own `lora_dropout` |
| supervised fine-tuning | `train()`: the dropout that the model's `config.json` asks for acts |

In reinforcement learning a ratio, a divergence and a correction compare two policies. Under another
draw of dropout the policy is another one, and what is measured is the dropout. The dropout of an
adapter is asked for by a key of the run, which refuses it where something is compared
(`GrpoConfig`). Supervised fine-tuning compares nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

__all__ = ["as_it_answers", "in_update", "learning_from_texts"]

_ADAPTERS_DROPOUT = "lora_dropout"


@contextmanager
def as_it_answers(model: nn.Module) -> Generator[None]:
    """Within the block no part of `model` is in training; afterwards each is in the mode that it
    was in.
    """
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


@contextmanager
def in_update(model: nn.Module) -> Generator[None]:
    """As `as_it_answers`, but adapters drop what `lora_dropout` says, and layers are computed again
    in the backward pass where the model was told to (`TrainedPolicy.recompute_activations`).
    """
    with as_it_answers(model):
        for name, module in model.named_modules():
            if _ADAPTERS_DROPOUT in name.split("."):
                module.training = True
        layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
        again: list[Any] = [layer for layer in layers if layer.gradient_checkpointing]
        before = [layer._gradient_checkpointing_func for layer in again]
        for layer, checkpoint in zip(again, before, strict=True):
            layer.training = True  # the library's condition for computing a layer again
            layer._gradient_checkpointing_func = partial(_computed_again, checkpoint)
        try:
            yield
        finally:
            for layer, checkpoint in zip(again, before, strict=True):
                layer._gradient_checkpointing_func = checkpoint


def learning_from_texts(model: nn.Module) -> None:
    """Put `model` in the mode of supervised fine-tuning, in which its own dropout acts."""
    model.train()


def _computed_again(checkpoint: Callable[..., Tensor], call: Any, *given: Any) -> Tensor:
    return checkpoint(partial(_outside_of_training, call), *given)


def _outside_of_training(call: Any, *given: Any) -> Any:
    """Output of a layer without dropout of its own; `call` is a `partial` of its `__call__`."""
    layer = call.func.__self__
    layer.training = False
    try:
        return call(*given)
    finally:
        layer.training = True
