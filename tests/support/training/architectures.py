"""Tiny random models of other architectures than the small policy's, in memory or in a folder with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hrm_agent.models.policy_loader import model_folder

__all__ = ["DROPPING", "EXPERTS", "folder_of", "random_model"]

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


def random_model(kind: str, vocab_size: int = 64, **settings: Any) -> Any:
    """A model whose probabilities are far from uniform ones."""
    positions = {} if kind == "gpt2" else {"max_position_embeddings": 1024}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **{"vocab_size": vocab_size, **positions, **ends, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.1) if weight.ndim > 1 else None
    return model.eval()


def folder_of(folder: Path, kind: str, **settings: Any) -> Path:
    """Such a model with the small policy's tokenizer; the folder."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder("builtin:cold-start"))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    random_model(kind, len(tokenizer), **ends, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
