"""Network of the small policy: a Qwen3 causal language model of under a million parameters.

It is a stock architecture, so that everything that loads a Hugging Face model (transformers, vLLM,
a custom engine) loads this one. It has two layers, because the tasks require copying numbers digit
by digit: one layer sees the token before a digit, the next finds the place where that token
occurred before. With a third layer copying emerged later, after as many demonstrations, and each
cost half as much again. Embeddings are tied, dropout is 0, weights are float32: a CPU gains nothing
from less.

Two settings make copying emerge earlier. Rotary positions turn fast (base 100, not 10,000): the
first layer has to learn to distinguish a neighbour from the token after it, and no episode is
longer than a few hundred tokens. Attention begins softer than Qwen3's, so that the first steps look
everywhere.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from hrm_agent.models.own_defaults import OWN_KEY, OwnDefaults, RlDefaults, RunDefaults, SftDefaults

__all__ = ["CONTEXT_TOKENS", "SMALL_DEFAULTS", "new_model", "small_config"]

CONTEXT_TOKENS = 1024
"""Longest episode in tokens. Those of the built-in tasks stay under 256."""

SMALL_DEFAULTS = OwnDefaults(
    run=RunDefaults(max_tokens=512),
    train_rl=RlDefaults(learning_rate=5e-4, max_tokens=256, micro_batch_tokens=4096),
    train_sft=SftDefaults(
        steps=400,
        batch_size=64,
        micro_batch_tokens=8192,
        learning_rate=3e-3,
        matrix_learning_rate=0.02,
        warmup_steps=30,
    ),
)
"""Defaults for half a million weights trained from scratch. They would ruin a pretrained model."""
ROTARY_BASE = 100.0
SHARPNESS = 0.7
"""Initial sharpness of attention: the weights that scale normalised queries and keys (Qwen3: 1)."""


def small_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Architecture for a tokenizer's vocabulary."""
    vocabulary = tokenizer.get_vocab()
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary["<|im_end|>"],
        pad_token_id=vocabulary["<|endoftext|>"],
        dtype="float32",
    )
    config.update({OWN_KEY: SMALL_DEFAULTS.model_dump()})
    return config


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return a model with fresh weights, a function of the seed. The global random state is
    unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(small_config(tokenizer))
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(weight, SHARPNESS)
    return model
