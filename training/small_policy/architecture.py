"""The small policy's network: a Qwen3 causal language model of under a million parameters.

A stock architecture, so that everything that loads a Hugging Face model (transformers, vLLM, an
engine of one's own) loads this one. Two layers, because what the tasks ask for is copying numbers
digit by digit: one layer sees what came before a digit, the next finds the place where that came
before. With a third layer copying set in later, after as many demonstrations, and each cost half as
much again. Embeddings are tied, dropout is nil, weights are float32: a CPU gains nothing from less.

Two things bring copying forward. Rotary positions turn fast (base 100, not 10,000): to tell a
neighbour from the one after it is what the first layer has to learn, and no episode is longer than
a few hundred tokens. And attention begins softer than Qwen3's, so that the first steps look
everywhere.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from hrm_agent.models.own_defaults import OWN_KEY, OwnDefaults, RlDefaults, RunDefaults, SftDefaults

__all__ = ["CONTEXT_TOKENS", "SMALL_DEFAULTS", "new_model", "small_config"]

CONTEXT_TOKENS = 1024
"""Longest episode in tokens; those of the built-in tasks stay under 256."""

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
"""Defaults that suit half a million weights that began from nothing; they would ruin a pretrained
model.
"""
ROTARY_BASE = 100.0
SHARPNESS = 0.7
"""Of attention at first: the weights that scale normalised queries and keys (Qwen3: 1)."""


def small_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """The architecture for a tokenizer's vocabulary."""
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
    """Fresh weights, a function of the seed. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(small_config(tokenizer))
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(weight, SHARPNESS)
    return model
