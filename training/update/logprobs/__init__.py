"""Log-probs of the trained tokens of a micro-batch under a model, with gradients."""

from hrm_agent.training.update.logprobs.sampled import (
    sampled_and_recorded_logprobs,
    token_logprobs,
    trained_logits,
)

__all__ = ["sampled_and_recorded_logprobs", "token_logprobs", "trained_logits"]
