"""A LoRA adapter under training, on a model whose own weights stay as they are.

PEFT puts its layers into the model in place: the model is the same object of the same class, the engine's replica
(`hrm_agent.models.local.packed_attention`) shares the adapter's weights as it shares all others, and nothing else of a
training has to know. The adapter's weights are in single precision whatever the model's own are in, 4 bits included.

A folder of an adapter has PEFT's two files and the model's name (`hrm_agent.models.adapter_folder`): neither weights
nor the tokenizer of the model, which a training leaves as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import nn

from hrm_agent.errors import ModelError
from hrm_agent.models.adapter_folder import write_base
from hrm_agent.models.local.load_weights import need_package, quiet_libraries
from hrm_agent.training.config_parts import AdapterPart
from hrm_agent.training.schedule import dropout_seed

__all__ = ["Adapter"]

_ALL = ("all-linear",)
_WEIGHTS = "adapter_model.safetensors"


class Adapter:
    """The layers of an adapter in a model."""

    def __init__(self, wrapped: Any, base: str) -> None:
        """`wrapped` is PEFT's; `base` is the string of the model."""
        self._wrapped, self._base = wrapped, base

    @classmethod
    def put_into(cls, model: Any, options: AdapterPart, *, base: str, folder: str, seed: int) -> Self:
        """A fresh adapter, which changes nothing yet, in a model; from here on no other weight of it is trained.

        `base` is the model's string, `folder` its folder or name on the hub. Raises `ModelError` where the model has no
        layer of those that `options` name.
        """
        need_package("peft", "adapters", f"lora_rank = {options.lora_rank}")
        quiet_libraries()
        import peft

        targets = "all-linear" if options.lora_targets == _ALL else list(options.lora_targets)
        config = peft.LoraConfig(
            r=options.lora_rank,
            lora_alpha=options.alpha,  # pyright: ignore[reportArgumentType]: a float serves as well
            lora_dropout=options.lora_dropout,
            target_modules=targets,
            task_type="CAUSAL_LM",
        )
        try:
            with dropout_seed(seed):
                wrapped = peft.get_peft_model(model, config)
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"{base!r} takes no adapter on {', '.join(options.lora_targets)}: {str(error).partition('. ')[0]}.",
                f"lora_targets of this model: {', '.join(_linear(model)) or 'it has no linear layer'}.",
            ) from error
        config.base_model_name_or_path = str(Path(folder).resolve()) if Path(folder).is_dir() else folder
        return cls(wrapped, base)

    def save(self, folder: Path) -> None:
        """Weights and configuration of the adapter, and the name of its model."""
        folder.mkdir(parents=True, exist_ok=True)
        self._wrapped.save_pretrained(folder, save_embedding_layers=False)
        write_base(folder, self._base)

    def load(self, folder: Path) -> None:
        """Take the weights that `save` wrote. Raises `ModelError` where they are another adapter's."""
        import peft

        given, own = load_file(folder / _WEIGHTS), peft.get_peft_model_state_dict(self._wrapped)
        shapes = [{name: weight.shape for name, weight in weights.items()} for weights in (given, own)]
        if shapes[0] != shapes[1]:
            name = min(name for name in given.keys() | own.keys() if shapes[0].get(name) != shapes[1].get(name))
            raise ModelError(f"The adapter in {folder} is another one: {name!r} does not fit, for example.")
        peft.set_peft_model_state_dict(self._wrapped, given)

    def without(self) -> nn.Module:
        """The model as it is without the adapter, on the same weights."""
        return _Without(self._wrapped)


class _Without(nn.Module):
    """Runs a model with its adapter switched off, and without dropout. Not for gradients."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__()
        self._held = (wrapped,)  # in a tuple: no part of this module, which would change its mode with its own

    def get_output_embeddings(self) -> nn.Module:
        return self._held[0].get_output_embeddings()

    def forward(self, **inputs: Any) -> Any:
        model, training = self._held[0], self._held[0].training
        try:
            with model.disable_adapter(), torch.no_grad():
                return model.eval().get_base_model()(**inputs)
        finally:
            model.train(training)


def _linear(model: nn.Module) -> list[str]:
    """Last parts of the names of the layers that an adapter can be put on."""
    return sorted({name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, nn.Linear)})
