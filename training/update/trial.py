"""Trial of a user's own parts before anything is sampled.

Advantages, objective and aggregation are called with a few made-up numbers, since their faults
would otherwise end a run after its first rollouts. Credit, selection and penalties take whole
rollouts, and are checked when the first step has some, before its optimiser step.
"""

from __future__ import annotations

from pathlib import Path

import torch

from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import LossPart
from hrm_agent.training.own_parts import OwnFunction, keep_own_parts, own_parts
from hrm_agent.training.update.advantages import estimator_by_name
from hrm_agent.training.update.objectives import (
    Counts,
    TrainedTokens,
    loss_options,
    policy_loss,
)

__all__ = ["made_up_tokens", "take_own_parts", "try_own_parts"]

_REWARDS = ((1.0, 0.0, 0.0, 0.25), (0.0, 1.0), (0.5, 0.5))


def take_own_parts(config: GrpoConfig, folder: Path) -> None:
    """Try the user's functions for the run in `folder`, and store the digests of their files.

    Raises `ConfigError` as `try_own_parts` does, and `RunError` if the run was begun with other files.
    """
    try_own_parts(config)
    keep_own_parts(config, folder)


def try_own_parts(config: GrpoConfig) -> None:
    """Import the user's functions in a configuration, and call those that take numbers.

    Raises `ConfigError` if one does not import, raises an exception, or returns an invalid value.
    """
    named = own_parts(config)
    for key, name in named.items():
        OwnFunction.load(key, name)
    if "advantages" in named:
        estimator_by_name(named["advantages"])(_REWARDS, config.loss.advantage_eps)
    if named.keys() & {"objective", "aggregation"}:
        policy_loss(made_up_tokens(config.loss), Counts(5.0, 2.0), loss_options(config.loss))


def made_up_tokens(loss: LossPart) -> TrainedTokens:
    """Five tokens of two rollouts, with the log-probs that this loss has."""
    other_K = torch.tensor([-0.6, -1.8, -0.2, -0.9, -0.4])
    return TrainedTokens(
        logprobs_K=torch.tensor([-0.5, -2.0, -0.1, -1.0, -0.3], requires_grad=True),
        old_logprobs_K=torch.tensor([-0.5, -1.5, -0.2, -1.0, -0.3]),
        weights_K=torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]),
        sequences_K=torch.tensor([0, 0, 0, 1, 1]),
        lengths_K=torch.tensor([3.0, 3.0, 3.0, 2.0, 2.0]),
        reference_logprobs_K=other_K if loss.kl_coef else None,
        teacher_logprobs_K=other_K if loss.teacher else None,
    )
