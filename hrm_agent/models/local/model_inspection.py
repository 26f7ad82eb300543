"""Facts from a causal LM's configuration that an engine needs, and loading of weights into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from hrm_agent.errors import ModelError
from hrm_agent.models.capabilities import Capabilities, Lack, Speech
from hrm_agent.models.local.attention_survey import AttentionSurvey
from hrm_agent.models.local.kv_cache import KVShape
from hrm_agent.trajectory import LogprobKind

__all__ = ["capabilities_of", "kv_shape", "load_weights", "longest_conversation", "quantization"]


def longest_conversation(model: Any) -> int:
    """Maximum number of tokens that the model takes."""
    return int(model.config.get_text_config().max_position_embeddings)


def kv_shape(model: Any, found: AttentionSurvey) -> KVShape:
    """Shape of the keys and values of a model, from the survey of its attention."""
    embedding = cast("torch.Tensor", model.get_input_embeddings().weight)
    return KVShape(tuple(each.keys for each in found.layers), found.dtype, embedding.device)


def capabilities_of(
    model: Any, max_length: int, no_schema: Lack | None, speech: Speech | None
) -> Capabilities:
    """Capabilities of the model in this process.

    `no_schema`: what is missing to constrain answers to a schema (None if nothing is). `speech`:
    result of the test of the chat template.
    """
    quantized = quantization(model)
    adapted = any(".lora_" in name for name, _ in model.named_parameters())
    return Capabilities(
        kind="transformers",
        tools=speech is None or not any(fault.about_tools for fault in speech.faults),
        token_ids=True,
        logprobs=LogprobKind.TEMPERED,
        streaming=True,
        structured=no_schema is None,
        trainable=quantized is None and not adapted,
        quantized=quantized,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.get_input_embeddings().weight.device),
        max_length=max_length,
        parameters=int(model.num_parameters()),
        memory_bytes=int(model.get_memory_footprint()),
        speech=speech,
        lacks=(no_schema,) if no_schema else (),
    )


def quantization(model: Any) -> str | None:
    """Quantization: `nf4`, `int8` or another kind of the library (None if the weights are not
    quantized).
    """
    how = getattr(model.config, "quantization_config", None)
    if how is None:
        return None
    if getattr(how, "load_in_8bit", False):
        return "int8"
    return str(getattr(how, "bnb_4bit_quant_type", None) or how.quant_method)


def load_weights(model: Any, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into a model in place. Tied weights may be missing, as in files. Raises
    `ModelError`.

    Names are compared before anything is copied, so that a wrong state dict leaves the model
    unchanged.
    """
    own: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    given = {id(own[key]) for key in own.keys() & state_dict.keys()}
    wrong = [key for key in own if id(own[key]) not in given] + sorted(
        state_dict.keys() - own.keys()
    )
    wrong += [
        key for key in own.keys() & state_dict.keys() if own[key].shape != state_dict[key].shape
    ]
    if wrong:
        raise ModelError(
            f"The weights do not fit the model: {len(wrong)} are missing, unknown or of another"
            f" shape, {wrong[0]!r} for example.",
            "Publish the state dict of the same architecture.",
        )
    with torch.no_grad():
        for key, weight in state_dict.items():
            if own[key].data_ptr() != weight.data_ptr():  # a shared weight needs no copy
                own[key].copy_(weight)
