"""Difference between two rewards before anything is trained: what each would teach from recorded
rollouts.
"""

from hrm_agent.training.analysis.reward_diff.difference import (
    Flips,
    PushedToken,
    RewardDifference,
    RolloutDifference,
    Side,
    TokenDifference,
    newest_steps,
    reward_difference,
)
from hrm_agent.training.analysis.reward_diff.measures import PredictedChange
from hrm_agent.training.analysis.reward_diff.warnings import Warned

__all__ = [
    "Flips",
    "PredictedChange",
    "PushedToken",
    "RewardDifference",
    "RolloutDifference",
    "Side",
    "TokenDifference",
    "Warned",
    "newest_steps",
    "reward_difference",
]
