"""Options of the loss. The defaults are those of GRPO-RoC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hrm_agent.errors import ConfigError

__all__ = ["LossOptions"]


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Options of the loss. Raises `ConfigError` for values that are invalid or have no effect."""

    objective: Literal["clipped", "cispo", "gspo"] = "clipped"
    """Loss of a token. clipped: PPO's surrogate as in GRPO and DAPO. cispo: the log-prob weighted
    by the clipped ratio, so that no token loses its gradient. gspo: the surrogate with one ratio
    for a whole rollout.
    """
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Aggregation of the losses. token: mean over all trained tokens (DAPO). sequence: mean over
    rollouts of the mean of their tokens (GRPO, GSPO). constant: mean over rollouts of the sum of
    their tokens over `constant` (Dr. GRPO).
    """
    constant: float = 256.0
    """Number of tokens by which the sum of a rollout is divided. Only for the aggregation constant.
    """
    clip_low: float = 0.2
    """Lower clip bound of the probability ratio, as a distance from 1. No effect in cispo. GSPO's
    paper: 3e-4.
    """
    clip_high: float = 0.28
    """Upper clip bound of the probability ratio, as a distance from 1. GSPO's paper: 4e-4."""
    dual_clip: float | None = None
    """Maximum loss of a token with a negative weight, as a multiple of the weight (None:
    unbounded). Only for clipped.
    """
    kl_coef: float = 0.0
    """Coefficient of the divergence from the starting policy (k3, per token). 0: none, and no
    second model is held.
    """
    old_logprobs: Literal["trainer", "engine"] = "trainer"
    """Denominator of the ratio. trainer: log-probs that it computes before the first optimiser
    step. engine: those recorded when the tokens were sampled.
    """
    correction: Literal["none", "token", "sequence"] = "none"
    """Importance correction: weigh the loss by the trainer's over the engine's probability before
    the first optimiser step, by token or by whole rollout. Tokens of an engine that rounds
    differently, or of older weights, then count as the trainer's own.
    """
    correction_mode: Literal["truncate", "mask"] = "truncate"
    """Treatment of a correction above the cap. truncate: the cap. mask: 0."""
    correction_cap: float = 2.0
    """Maximum correction."""
    max_staleness: int | None = None
    """Maximum number of versions between the weights that sampled a token and the current ones
    (None: unbounded). Older tokens are not trained on.
    """

    def __post_init__(self) -> None:
        for name in ("constant", "clip_high", "correction_cap"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Take a number above 0.")
        if not 0 < self.clip_low < 1:
            raise ConfigError(f"clip_low is {self.clip_low}.", "Take a number between 0 and 1.")
        if self.kl_coef < 0:
            raise ConfigError(f"kl_coef is {self.kl_coef}.", "Take 0, for none, or more.")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigError(
                f"max_staleness is {self.max_staleness}.",
                "Take 0 or more; none trains on all tokens.",
            )
        if self.dual_clip is not None and (self.objective != "clipped" or self.dual_clip <= 1):
            raise ConfigError(
                f"dual_clip is {self.dual_clip} and the objective {self.objective}.",
                "Take a number above 1, with the objective clipped.",
            )
        if self.correction != "none" and self.old_logprobs == "engine":
            raise ConfigError(
                "A correction has no effect with old_logprobs = engine: the ratio is the engine's"
                " already.",
                "Take old_logprobs = trainer, or correction = none.",
            )
