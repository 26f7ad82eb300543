"""Mode of the parts of a model (training or evaluation) in everything that a trainer does with the
model.

In `train()` a model may drop units (`attention_dropout`, `resid_pdrop`, `layerdrop`), add noise
(the router of a mixture of experts) or change running statistics. An engine answers in `eval()`,
where a model does none of this.

| | mode |
|---|---|
| engine, reference policy, log-probs, evaluation | as the model answers: nothing is dropped |
| update of reinforcement learning | as the model answers, except for an adapter's `lora_dropout` |
| supervised fine-tuning | `train()`: the dropout of the model's `config.json` is active |

Reinforcement learning compares two policies in a ratio, a divergence and a correction. Each draw of
dropout makes another policy, so with dropout the comparison would measure the dropout. An adapter's
dropout is an option of a run, and `GrpoConfig` refuses it if policies are compared. Supervised
fine-tuning compares no policies.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

__all__ = ["as_it_answers", "in_update", "learning_from_texts"]

_ADAPTERS_DROPOUT = "lora_dropout"


@contextmanager
def as_it_answers(model: nn.Module) -> Generator[None]:
    """Put all parts of `model` in evaluation mode within the block, and restore their modes
    afterwards.
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
    """Put `model` in the mode of a policy update within the block, and restore its mode afterwards.

    All parts are in evaluation mode, except that adapters apply `lora_dropout`, and layers are
    computed again in the backward pass if `TrainedPolicy.recompute_activations` was called.
    """
    with as_it_answers(model):
        for name, module in model.named_modules():
            if _ADAPTERS_DROPOUT in name.split("."):
                module.training = True
        layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
        again: list[Any] = [layer for layer in layers if layer.gradient_checkpointing]
        before = [layer._gradient_checkpointing_func for layer in again]
        hooks: list[Any] = []
        for layer, checkpoint in zip(again, before, strict=True):
            layer.training = True  # transformers recomputes a layer in training mode only
            layer._gradient_checkpointing_func = partial(_computed_again, layer, checkpoint)
            # without gradients the library may run the layer as it is, in its training mode
            hooks.append(layer.register_forward_pre_hook(_drop_nothing))
            hooks.append(layer.register_forward_hook(_come_back, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for layer, checkpoint in zip(again, before, strict=True):
                layer._gradient_checkpointing_func = checkpoint


def learning_from_texts(model: nn.Module) -> None:
    """Put `model` in the mode of supervised fine-tuning, in which the dropout of its configuration
    is active.
    """
    model.train()


def _computed_again(
    layer: nn.Module, checkpoint: Callable[..., Tensor], call: Callable[..., Tensor], *given: Any
) -> Tensor:
    return checkpoint(partial(_outside_of_training, layer, call), *given)


def _outside_of_training(layer: nn.Module, call: Callable[..., Tensor], *given: Any) -> Tensor:
    """Output of `call`, which runs `layer`, without the layer's own dropout."""
    layer.training = False
    try:
        return call(*given)
    finally:
        layer.training = True


def _drop_nothing(layer: nn.Module, _: Any) -> None:
    if not torch.is_grad_enabled():
        layer.training = False


def _come_back(layer: nn.Module, _given: Any, _output: Any) -> None:
    if not torch.is_grad_enabled():
        layer.training = True
