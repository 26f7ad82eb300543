"""A random Phi-3 whose two sets of rotary factors differ so much that a token with the wrong
factors is noticed.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Phi3Config, Phi3ForCausalLM

SWITCH = 24
"""Length of a text, in tokens, up to which the short factors apply."""
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def longrope_model(seed: int = 0, **changes: Any) -> Any:
    """A model of two layers, for texts of up to 192 tokens."""
    settings: dict[str, Any] = {
        **SIZES,
        "max_position_embeddings": 192,
        "original_max_position_embeddings": SWITCH,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "original_max_position_embeddings": SWITCH,
            "short_factor": [1.0] * 4,
            "long_factor": [4.0, 3.0, 2.0, 1.5],
        },
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Phi3ForCausalLM(Phi3Config(**{**settings, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.ndim > 1 else None
    return model.eval()


def expected_logprobs(model: Any, tokens: list[int], first: int) -> torch.Tensor:
    """Log-probs of the tokens from `first` on, each by one plain pass over the tokens before it."""
    with torch.no_grad():
        passes = [
            model(torch.tensor([tokens[:end]])).logits[0, -1] for end in range(first, len(tokens))
        ]
    found = torch.stack(passes).float().log_softmax(-1)
    return found[torch.arange(len(passes)), torch.tensor(tokens[first:])]
