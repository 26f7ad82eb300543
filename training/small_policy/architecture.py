"""Network of the small policy: a Qwen3 causal language model of under a million parameters.

It is a standard architecture, so that everything that loads a Hugging Face model (transformers,
vLLM, a custom engine) loads this one. The tasks require copying numbers digit by digit, for which
two layers are enough: the first layer sees the token before a digit, and the second finds the place
where that token occurred before. With a third layer copying did not emerge after fewer
demonstrations, and each demonstration took 1.5 times as long. Embeddings are tied, dropout is 0,
and weights are float32, since a CPU gains nothing from fewer bits.

Two settings make copying emerge earlier. Rotary positions turn fast (base 100, not 10,000): the
first layer has to distinguish a neighbouring token from the next, and no episode is longer than a
few hundred tokens. Attention begins softer than Qwen3's, so that in the first steps it is spread
over all tokens.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from hrm_agent.models.own_defaults import OWN_KEY, OwnDefaults, RlDefaults, RunDefaults, SftDefaults

__all__ = ["CONTEXT_TOKENS", "SMALL_DEFAULTS", "new_model", "small_config"]

CONTEXT_TOKENS = 1024
"""Maximum length of an episode in tokens. Episodes of the built-in tasks stay under 256."""

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
"""Defaults for a model of half a million weights that is trained from scratch. They would ruin a
pretrained model.
"""
ROTARY_BASE = 100.0
SHARPNESS = 0.7
"""Initial sharpness of attention: the weights that scale normalised queries and keys (Qwen3: 1)."""


def small_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Configuration of the network for a tokenizer's vocabulary."""
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
    """Return a model with fresh weights, which depend only on the seed. The global random state is
    unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(small_config(tokenizer))
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(weight, SHARPNESS)
    return model
