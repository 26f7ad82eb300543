"""All tokens of a micro-batch in one sequence, without padding, each prefix that rows share once.

A layer of a transformer treats tokens one by one, but for its attention. So the model runs with an attention function
of ours, in which a token sees its own path only (`path_attention`), and with the positions of the tokens on it. That
takes a model of transformers whose attention can be replaced and whose tokens meet nowhere else; others are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from hrm_agent.errors import ModelError
from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.logprobs.attention_plan import AttentionPlan, runs_of
from hrm_agent.training.logprobs.forward import ModelInputs
from hrm_agent.training.logprobs.path_attention import path_attention

__all__ = ["packed"]

_NAME = "hrm_agent_paths"
_REFUSED = ("softcap", "s_aux", "position_bias")
_LAYERS = {"attention", "full_attention", "sliding_attention"}


@contextmanager
def packed(model: nn.Module, batch: MicroBatch) -> Generator[ModelInputs]:
    """Raises `ModelError` for a model that cannot be run like this."""
    inner = _transformers_model(model)
    _refuse(inner)
    tokens = batch.token_ids_N
    arguments = {
        "input_ids": tokens[None],
        "position_ids": batch.positions_N[None],
        "use_cache": False,
        "paths": AttentionPlan(runs_of(batch.parents_N.cpu().numpy()), device=tokens.device),
    }
    with _attention_along_paths(inner):
        yield ModelInputs(arguments, torch.zeros_like(tokens), torch.arange(len(tokens), device=tokens.device))


def _transformers_model(model: nn.Module) -> PreTrainedModel:
    """The outermost one inside whatever wraps it."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise _refusal(f"{type(model).__name__} is no model of transformers")


def _refuse(model: PreTrainedModel) -> None:
    """A model of which more than the attention function would have to know the paths."""
    name, config = type(model).__name__, model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        raise _refusal(f"{name} does not let its attention be replaced")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise _refusal(f"{name} does not take the positions of its tokens")
    others = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    if others or getattr(model, "_is_stateful", False):
        raise _refusal(f"{name} has layers in which tokens meet otherwise than by attention")


def _refusal(reason: str) -> ModelError:
    return ModelError(f"{reason}, so rows cannot be packed into one sequence.", 'Train it with forward = "padded".')


@contextmanager
def _attention_along_paths(model: PreTrainedModel) -> Generator[None]:
    """Within the block the model's layers call `_attention`."""
    cast("Any", AttentionInterface).register(_NAME, _attention)
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
    paths: AttentionPlan,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """What the model's layers call; [1, heads, tokens, head size] each."""
    del attention_mask
    _refuse_options(module, paths, dropout, options)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return path_attention(*(states[0].transpose(0, 1) for states in (query, key, value)), paths, scale)[None], None


def _refuse_options(module: Any, paths: AttentionPlan, dropout: float, options: dict[str, Any]) -> None:
    name = type(module).__name__
    if unknown := [option for option in _REFUSED if options.get(option) is not None]:
        raise _refusal(f"{name} uses {', '.join(unknown)}")
    if dropout:
        raise _refusal(f"{name} has dropout")
    if not getattr(module, "is_causal", True):
        raise _refusal(f"{name} is not causal")
    window = options.get("sliding_window")
    if window is not None and window < paths.longest:
        raise _refusal(f"{name} sees {window} tokens back, and a sequence has {paths.longest}")
