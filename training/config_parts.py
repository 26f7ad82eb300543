"""The tables of a reinforcement learning's configuration. Each key is a flag by its own name: no name stands in two."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from hrm_agent.config import ConfigPart
from hrm_agent.runtime.settings import Durability

__all__ = ["CheckpointSettings", "KeepPart", "LossPart", "OptimPart", "RolloutPart", "SelectPart"]


class RolloutPart(ConfigPart):
    """What is sampled in a step."""

    prompts_per_step: int = Field(default=16, ge=1)
    """Tasks of one optimiser step, each with a group of rollouts (paper: 512)."""
    group_size: int = Field(default=8, ge=2)
    """G, the rollouts of a prompt that are trained on (paper: 16)."""
    oversampling: int = Field(default=2, ge=1)
    """All but grpo sample this many times G (paper: 2); grpo samples G."""
    shuffle_block: int = Field(default=480, ge=1)
    """Tasks are drawn in blocks of this many, each in a random order of its own."""
    processes: int = Field(default=1, ge=1)
    """Processes that run the graphs of a step's rollouts, around one engine; 1: the one that trains."""
    durability: Durability = "calls"
    """What is committed when: calls, each model call as it ends, the steps of its graph with the next commit or some
    milliseconds later; steps, each step before the next one begins."""


class SelectPart(ConfigPart):
    """Which rollouts are trained on."""

    algorithm: Literal["grpo", "grpo-random", "grpo-roc", "grpo-roc-random"] = "grpo-roc"
    """What is trained on: all rollouts (grpo), a random G of them (grpo-random), G resampled on correct (grpo-roc), as
    many correct and wrong ones as that, but at random (grpo-roc-random)."""
    selection: Literal["inverse", "lowest"] = "inverse"
    """How RoC draws positives: inverse, as in the paper; lowest, as in its released code."""
    min_positives: int = Field(default=2, ge=0)
    """Positives that RoC keeps of a group if there are as many; half of G at most."""
    min_negatives: int = Field(default=2, ge=0)
    """Negatives that RoC keeps of a group if there are as many; half of G at most."""
    penalty_eps: float = Field(default=1e-6, gt=0)
    """Added to a positive's penalty before it is inverted; the larger, the less the penalty matters to RoC's draw."""
    min_group: float = Field(default=0.75, gt=0, le=1)
    """Share of a prompt's rollouts that must be able to take part (not lost to a machine), or the group is left out."""


class LossPart(ConfigPart):
    """What is minimised."""

    advantage_eps: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation of a group's rewards, by which advantages are divided."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip of the probability ratio. Only the default is taken: each batch is trained on once, with ratio 1."""
    clip_high: float = Field(default=0.28, gt=0)
    """Upper clip of the probability ratio. Only the default is taken: each batch is trained on once, with ratio 1."""
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Most tokens, padding included, of one forward pass."""


class OptimPart(ConfigPart):
    """How the weights are changed."""

    learning_rate: float = Field(default=5e-4, gt=0)
    """AdamW's learning rate between warm-up and cool-down (paper: 1e-6 for 14B parameters)."""
    warmup_steps: int = Field(default=0, ge=0)
    """First steps, at most all, in which the learning rate rises linearly to its full value; 0: none (paper: 20)."""
    cooldown: float = Field(default=0.67, ge=0, le=1)
    """Share of the steps, the last ones, in which the learning rate falls to almost nothing (paper: none). 0 for a run
    that is to be prolonged later: with another number of steps the fall would have begun elsewhere."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay, times the learning rate in each step; 0: none."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """L2 norm that the gradient of a step is scaled down to where it is larger."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean of gradients."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the mean of squared gradients."""


class CheckpointSettings(BaseModel):
    """Which states of a training are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept, the newest ones: a damaged one is passed over for the one before."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps from one checkpoint to the next; what comes after the last one is taken again when a run is resumed."""


class KeepPart(ConfigPart, CheckpointSettings):
    """Which states of the run are kept."""
