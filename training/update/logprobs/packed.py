"""Forward pass with all tokens of a micro-batch in one sequence, without padding. In a tree,
prefixes that rows share are stored once.

Apart from its attention, a layer of a transformer treats tokens one by one. So the model runs with
a custom attention function (`path_attention`), in which a token sees only its path, or a window of
it. Positions are counted along the path. This requires a model of transformers whose attention can
be replaced, and in which tokens interact only by attention. Other models are refused. A training
checks its model before it begins (`usable_forward`), and pads the rows of a model that would be
refused.

In the last layer only tokens that predict a trained token are needed. The other tokens are keys of
its attention, but no queries. They also skip the MLP after the attention if it consists of linear
layers only.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hrm_agent.errors import ModelError
from hrm_agent.models.local.attention_survey import (
    register_attention,
    survey,
    unknown_arguments,
    window_of,
)
from hrm_agent.models.local.packed_attention import replica
from hrm_agent.training.update.batch import ForwardName, MicroBatch
from hrm_agent.training.update.logprobs.attention_plan import AttentionPlan, Run, runs_of
from hrm_agent.training.update.logprobs.padded import ModelInputs
from hrm_agent.training.update.logprobs.path_attention import path_attention

__all__ = ["packed", "usable_forward"]

_NAME = "hrm_agent_paths"
_REFUSED = ("softcap", "s_aux")
_LAYERS = {"attention", "full_attention", "sliding_attention"}


@contextmanager
def packed(model: nn.Module, batch: MicroBatch) -> Generator[ModelInputs]:
    """Model inputs of packed rows. Raises `ModelError` for a model that cannot run with packed
    rows.
    """
    inner = _transformers_model(getattr(model, "policy", model))
    _refuse(inner)
    tokens = batch.token_ids_N
    wanted_P = batch.parents_N[batch.loss_indices_K].unique()
    last_layer = int(inner.config.get_text_config().num_hidden_layers) - 1
    paths = _Paths(runs_of(batch.parents_N.cpu().numpy()), wanted_P, last_layer)
    arguments = {
        "input_ids": tokens[None],
        "position_ids": batch.positions_N[None],
        # without a mask, transformers would split the sequence where positions restart
        "attention_mask": torch.ones_like(tokens)[None],
        "use_cache": False,
        "paths": paths,
    }
    with _attention_along_paths(inner), _only_for(wanted_P, _plain_mlp(inner)):
        yield ModelInputs(
            arguments, torch.zeros_like(tokens), torch.arange(len(tokens), device=tokens.device)
        )


def usable_forward(model: Any, asked: ForwardName, *, quiet: bool = False) -> ForwardName:
    """Forward pass to use: `asked`, or `padded` if the model cannot run with packed rows. The
    reason is then written to stderr.

    The check costs about as much as a step of sampling.
    """
    if asked == "padded" or (reason := _why_not_packed(model)) is None:
        return asked
    if not quiet:
        sys.stderr.write(f"hrm-agent: rows are padded, in place of forward = {asked}: {reason}.\n")
    return "padded"


def _why_not_packed(model: Any) -> str | None:
    try:
        _refuse(model)
        found = survey(replica(model))
    except ModelError as error:
        return error.message.rstrip(".")
    name = type(model).__name__
    if found.objection is not None:
        return f"{name}: {found.objection}"
    if any(each.sinks or each.softcap for each in found.layers):
        return f"{name} has attention sinks, or bounds its scores"
    return None


class _Paths:
    """Attention plans for the layers of a model."""

    def __init__(self, runs: tuple[Run, ...], wanted_P: Tensor, last: int) -> None:
        self._runs = runs
        self._device = wanted_P.device
        self._last = last
        self._wanted = wanted_P.cpu().numpy()
        self._plans: dict[tuple[bool, int | None], AttentionPlan] = {}

    def of(self, layer: int | None, window: int | None) -> AttentionPlan:
        """Plan for a layer in which a token sees `window` tokens, itself included (None for its
        whole path).
        """
        key = layer == self._last, window
        if key not in self._plans:
            asking = self._wanted if key[0] else None
            self._plans[key] = AttentionPlan(
                self._runs, asking=asking, window=window, device=self._device
            )
        return self._plans[key]


def _plain_mlp(model: PreTrainedModel) -> nn.Module | None:
    """MLP of the last layer (None if it may not treat tokens one by one, or may not return a single
    tensor).
    """
    layers = getattr(getattr(model, "model", None), "layers", None)
    mlp = getattr(layers[-1], "mlp", None) if isinstance(layers, nn.ModuleList) else None
    if mlp is None or any(isinstance(module, nn.ModuleList) for module in mlp.modules()):
        return None
    with_weights = [
        module
        for module in mlp.modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    return (
        mlp
        if with_weights and all(isinstance(module, nn.Linear) for module in with_weights)
        else None
    )


@contextmanager
def _only_for(wanted_P: Tensor, mlp: nn.Module | None) -> Generator[None]:
    """Pass `mlp` the given tokens only, and return 0 for the others, within the block."""
    if mlp is None:
        yield
        return
    tokens: list[int] = []

    def narrow(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        tokens.append(inputs[0].shape[1])
        return (inputs[0].index_select(1, wanted_P),)

    def widen(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        whole = output.new_zeros(output.shape[0], tokens.pop(), output.shape[2])
        return whole.index_copy(1, wanted_P, output)

    handles = mlp.register_forward_pre_hook(narrow), mlp.register_forward_hook(widen)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _transformers_model(model: nn.Module) -> PreTrainedModel:
    """Outermost transformers model inside any wrapper."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise _refusal(f"{type(model).__name__} is no model of transformers")


def _refuse(model: PreTrainedModel) -> None:
    """Raise `ModelError` if tokens of a model interact other than by an attention that can be
    replaced.
    """
    name = type(model).__name__
    config = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        raise _refusal(f"{name} does not let its attention be replaced")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise _refusal(f"{name} does not take the positions of its tokens")
    others = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if others or getattr(model, "_is_stateful", False):
        raise _refusal(f"{name} has layers in which tokens interact other than by attention")


def _refusal(reason: str) -> ModelError:
    return ModelError(
        f"{reason}, so rows cannot be packed into one sequence.",
        'Train it with forward = "padded".',
    )


@contextmanager
def _attention_along_paths(model: PreTrainedModel) -> Generator[None]:
    """Let the model's layers call `_attention`, within the block."""
    register_attention(_NAME, _attention)
    found = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
    text = model.config.get_text_config()
    configs: list[Any] = list((found | {id(text): text}).values())
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = _NAME
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paths: _Paths | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function of the model's layers. Each argument is [1, heads, tokens, head size]."""
    if paths is None:
        raise _refusal(f"{type(module).__name__} does not pass on the paths")
    _refuse_options(module, dropout, options)
    try:
        window = window_of(attention_mask)
    except ValueError as error:
        raise _refusal(f"{type(module).__name__} has {error}") from error
    plan = paths.of(getattr(module, "layer_idx", None), window)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return path_attention(query, key, value, plan, scale)[None], None


def _refuse_options(module: Any, dropout: float, options: dict[str, Any]) -> None:
    name = type(module).__name__
    refused = [option for option in _REFUSED if options.get(option) is not None]
    if unknown := refused + unknown_arguments(options):
        raise _refusal(f"{name} uses {', '.join(unknown)}")
    if dropout:
        raise _refusal(f"{name} has dropout")
    if not getattr(module, "is_causal", True):
        raise _refusal(f"{name} is not causal")
