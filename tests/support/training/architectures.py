"""Tiny random models of other architectures than the small policy's, in memory or in a folder with
the small policy's tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hrm_agent.models.loading.policy_loader import model_folder

__all__ = [
    "ARCHITECTURES",
    "DROPPING",
    "EXPERTS",
    "PACKED",
    "WINDOW",
    "folder_of",
    "of_architecture",
    "random_model",
    "saved",
]

_LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_OLD: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}

DROPPING: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "opt": {**_OLD, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.2, "layerdrop": 0.3},
    "granite": {**_LLAMA, "attention_dropout": 0.1},
    "mixtral": {**_LLAMA, "num_local_experts": 4, "router_jitter_noise": 0.3},
    "phi": {**_LLAMA, "resid_pdrop": 0.2, "embd_pdrop": 0.2},
    "gpt_neox": {**_OLD, "intermediate_size": 48, "hidden_dropout": 0.2, "attention_dropout": 0.2},
}
"""Kind -> settings with which a model drops or shifts something while it is in training."""
_EXPERTS = {**_LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**_EXPERTS, "head_dim": 8},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 32},
    "mixtral": {**_LLAMA, "num_local_experts": 4},
    "phimoe": {**_LLAMA, "num_local_experts": 4},
}
"""Kind -> settings of mixtures of experts."""

WINDOW = 8
"""Tokens that a layer with a sliding window sees in `ARCHITECTURES`."""
_HEADS = {**_LLAMA, "head_dim": 8}
_WINDOWS = {**_HEADS, "sliding_window": WINDOW}
_GEMMA = {**_WINDOWS, "query_pre_attn_scalar": 8, "num_hidden_layers": 3}
_LATENT = {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
_LATENT |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "head_dim": 8}
_GROUPS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_ALTERNATING = ["sliding_attention", "sliding_attention", "full_attention"]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _HEADS,
    "qwen3_moe": EXPERTS["qwen3_moe"],
    "mistral": {**_LLAMA, "sliding_window": WINDOW},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 1.0},
    "gemma3_text": {**_GEMMA, "layer_types": _ALTERNATING},
    "gemma4_text": {
        **_WINDOWS,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": 2 * _ALTERNATING,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 64,
    },
    "phi3": _LLAMA,
    "gpt_oss": {**_WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4": _HEADS,
    "smollm3": _LLAMA,
    "granite": {
        **_LLAMA,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
    },
    "deepseek_v3": {**EXPERTS["qwen3_moe"], **_LATENT, **_GROUPS},
    "lfm2": {**_LLAMA, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
}
"""Kind -> settings of architectures that users bring."""
PACKED = tuple(kind for kind in ARCHITECTURES if kind not in ("gemma2", "gpt_oss", "lfm2"))
"""Kinds whose rows a trainer can pack into one sequence."""


def of_architecture(kind: str, **changes: Any) -> Any:
    """A model of one of `ARCHITECTURES`, whose output changes noticeably if any part of its
    attention is left out.
    """
    settings = {**ARCHITECTURES[kind], **changes}
    if kind == "gemma4_text":
        settings["vocab_size_per_layer_input"] = settings.get("vocab_size", 64)
    model = random_model(kind, **settings)
    if kind == "gemma2":
        # as a user's model is loaded: transformers' other kinds of attention leave out the soft cap
        model.set_attn_implementation("eager")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(2.0)
            elif name.endswith(("sinks", "bias")):
                torch.nn.init.normal_(weight, std=0.5)
    return model


def random_model(kind: str, vocab_size: int = 64, **settings: Any) -> Any:
    """A model whose probabilities are far from uniform."""
    positions = {} if kind == "gpt2" else {"max_position_embeddings": 1024}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(
        kind, **{"vocab_size": vocab_size, **positions, **ends, **settings}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.1) if weight.ndim > 1 else None
    return model.eval()


def folder_of(folder: Path, kind: str, **settings: Any) -> Path:
    """Write a random model with the small policy's tokenizer to `folder`, and return the folder."""
    tokenizer = _tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return saved(folder, random_model(kind, len(tokenizer), **ends, **settings))


def saved(folder: Path, model: Any) -> Path:
    """Write a model with the small policy's tokenizer to `folder`, and return the folder."""
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_folder("builtin:cold-start"))
