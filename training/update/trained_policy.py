"""Policy under training: all weights of a model, or an adapter on frozen weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import torch
from safetensors.torch import load_model
from torch import nn

from hrm_agent.errors import ModelError
from hrm_agent.models.adapter_folder import on_its_base, write_codec
from hrm_agent.models.codec.chat_template import PolicyCodec
from hrm_agent.models.codec.opening import open_codec
from hrm_agent.models.loading.load_weights import load_for_answers
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.model_string import CodecOptions, LoadOptions, ModelString, parse_model
from hrm_agent.training.checkpoints import save_policy
from hrm_agent.training.config.parts import AdapterPart, LossPart
from hrm_agent.training.update.adapters import Adapter, AdaptersByRole
from hrm_agent.training.update.gradients import weights_not_finite
from hrm_agent.training.update.teachers import Teacher, Teachers, open_teacher

__all__ = ["TrainedPolicy", "copy_of_trained"]


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """Causal LM under training."""

    name: str
    """Model string of the policy."""
    model: Any
    """Model, including the adapter's layers if there is one."""
    tokenizer: Any
    """Tokenizer, which a training does not change."""
    adapter: Adapter | None
    """Adapter that is trained (None if all weights are)."""
    options: LoadOptions
    """Options with which the weights were loaded."""
    codec: PolicyCodec
    """Codec of the policy's conversations."""
    codec_options: CodecOptions
    """Options of the codec, with its renderer by name."""

    @classmethod
    def load(
        cls, name: str, adapter: AdapterPart, *, dtype: str, device: torch.device | str, seed: int
    ) -> Self:
        """Load a policy for training. Raises `ModelError` if it cannot be trained."""
        wanted = adapter.lora_rank > 0
        folder = model_folder(name, adapter=wanted)
        whole = on_its_base(parse_model(name))
        # Quantized weights are not packed for sampling: whenever the engine and the trainer take
        # turns, packing would round the scales again.
        options = replace(
            whole.options, adapter=None, dtype=dtype, device=str(device), kernel="plain"
        )
        model, tokenizer = load_for_answers(folder, options, whole.codec)
        codec = open_codec(tokenizer, whole.codec, model.generation_config)
        _refuse_not_finite(model, name)
        asked = whole.codec
        if asked.renderer == "auto":  # the renderer's choice needs the model's name on the hub
            from renderers.base import MODEL_RENDERER_MAP

            asked = replace(asked, renderer=MODEL_RENDERER_MAP[tokenizer.name_or_path])
        if not wanted:
            return cls(name, model, tokenizer, None, options, codec, asked)
        base = _named(whole, replace(options, device="auto", kernel=whole.options.kernel))
        start = whole.options.adapter
        kind = AdaptersByRole if adapter.lora_roles else Adapter
        put = kind.put_into(model, adapter, base=base, folder=folder, seed=seed, start=start)
        # put the adapter's new layers in evaluation mode, too
        return cls(name, model.eval(), tokenizer, put, options, codec, asked)

    def save(self, folder: Path, card: str) -> None:
        """Save the trained weights and a card. If all weights are trained, also save the tokenizer
        and chat template.
        """
        if self.adapter is None:
            save_policy(self.model, self.tokenizer, folder, card)
            write_codec(folder, self.codec_options)
        else:
            self.adapter.save(folder)
            (folder / "README.md").write_text(card, encoding="utf-8")

    def read(self, folder: Path) -> None:
        """Read the weights that `save` wrote."""
        if self.adapter is None:
            load_model(self.model, folder / "model.safetensors")
        else:
            self.adapter.load(folder)

    def reference(self) -> nn.Module:
        """Policy that the training starts from; call this before the first update. If all weights
        are trained, it is a second model. With a fresh adapter, it is the same model without the
        adapter. If the training began with an existing adapter, it is the same model with a copy of
        the adapter's current weights.
        """
        if self.adapter is not None:
            return self.adapter.reference()
        model, _ = load_for_answers(model_folder(self.name), self.options)
        return model.eval().requires_grad_(False)

    def teachers(
        self, loss: LossPart, by_family: Mapping[str, str] | None = None, roles: Sequence[str] = ()
    ) -> Teachers | None:
        """Models that teach this policy, which has an adapter for each of `roles` (None without a
        teacher). Some families of tasks have teachers of their own. Raises `ModelError` as
        `open_teacher` does.
        """
        if loss.teacher is None:
            return None

        def opened(name: str) -> Teacher:
            return open_teacher(name, self.name, self.tokenizer, self.options, roles)

        own = by_family or {}
        by_name = {name: opened(name) for name in dict.fromkeys((loss.teacher, *own.values()))}
        teachers = {family: by_name[name] for family, name in own.items()}
        return Teachers(by_name[loss.teacher], teachers, loss.teacher_prompt, self.codec)

    def recompute_activations(self) -> None:
        """Keep only each layer's inputs for the backward pass, which computes the layer again."""
        model: Any = self.model
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise ModelError(
                f"{self.name!r} does not support gradient checkpointing.",
                "Leave gradient_checkpointing out.",
            )
        # transformers gave it a new name, and warns of the old one
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def _refuse_not_finite(model: Any, name: str) -> None:
    """Raise `ModelError` if non-finite weights would make every answer and every gradient
    non-finite.

    Non-finite rows of an embedding are allowed, since a row affects only texts with its token, and
    steps on such texts are skipped.
    """
    rows = {
        id(layer.weight)
        for layer in (model.get_input_embeddings(), model.get_output_embeddings())
        if layer
    }
    broken = [
        each for each in weights_not_finite(model) if id(model.get_parameter(each)) not in rows
    ]
    if broken:
        raise ModelError(
            f"{name!r} cannot be trained: {len(broken)} of its tensors hold numbers that are not"
            f" finite, {broken[0]!r} for example.",
            "Take weights from before they broke: an earlier checkpoint, or the files of the model"
            " as it was released.",
        )


def copy_of_trained(model: Any) -> Any:
    """Copy of a model for sampling while `model` is trained. Frozen weights are shared."""
    fixed = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    return copy.deepcopy(model, fixed).requires_grad_(False)


def _named(asked: ModelString, options: LoadOptions) -> str:
    """Model string of the same weights with other `options`. Its paths are absolute, so that it is
    valid from any folder.
    """
    usual = LoadOptions()
    base = asked.base if asked.scheme else str(Path(asked.name).resolve())
    if asked.scheme == "gguf":
        base = f"gguf:{Path(asked.name).resolve()}"
    template = asked.codec.template
    codec = (
        asked.codec
        if template is None
        else replace(asked.codec, template=str(Path(template).resolve()))
    )
    given = {each.name: getattr(options, each.name) for each in fields(LoadOptions)}
    asked_for = {
        key: value for key, value in given.items() if value != getattr(usual, key)
    } | codec.query()
    shown = [f"{key}={quote(value)}" for key, value in asked_for.items()]
    return f"{base}?{'&'.join(shown)}" if shown else base
