"""Config models of the commands that collect, evaluate and train: read from a TOML file and flags, saved with the run.

They stand apart from what they configure so that a command's help needs neither torch nor langgraph. The defaults of
reinforcement learning are the demo's; the paper's values (rStar2-Agent, arXiv 2508.20722) stand beside them.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hrm_agent.errors import ConfigError
from hrm_agent.runtime.settings import GraphSettings, RolloutSettings, RunnerOptions, RunSettings, SelectionSettings

__all__ = ["FREE_ON_RESUME", "CollectConfig", "DemoConfig", "GrpoConfig", "SftConfig"]

FREE_ON_RESUME = frozenset({"concurrency", "isolation", "environment"})
"""Keys that decide how a run is carried out and not its result: they may change when it is resumed."""

TANK = (
    "A tank holds 1200 L. It leaks 2% per hour for 3 hours, then is refilled by 150 L. "
    "Return exactly: 'Answer: <liters>'."
)


def _without_password(url: str) -> str:
    if re.match(r"\w+://[^/@]*:[^/@]*@", url):
        raise ConfigError(
            "The URL of the store has a password in it, which would be saved beside the run.",
            "Put it into PGPASSWORD or ~/.pgpass.",
        )
    return url


StoreUrl = Annotated[str, AfterValidator(_without_password)]


class TaskSettings(BaseModel):
    """Which tasks are run, how many at a time, and where they are recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tasks: str = "word_problems"
    """Family of tasks: word_problems, reasoning_gym:NAME, arc_agi, aime:FILE, jsonl:FILE, or mix:..."""
    concurrency: int = Field(default=256, ge=1)
    """Rollouts open at a time."""
    store: StoreUrl | None = None
    """Where to record, as a path or URL; several runs may share one. none: `store.db` in the run's folder."""


class CollectConfig(TaskSettings, SelectionSettings, RunSettings, GraphSettings):
    """Which tasks are run, how often, and with which policy."""

    policy: str = "builtin:trained"
    """Model that answers: a built-in policy, a model folder, hf:NAME, or a provider's chat model."""
    split: Literal["train", "eval"] = "eval"
    """Which tasks of the family: those to train on, or the held-out ones."""
    count: int | None = Field(default=256, ge=1)
    """Number of tasks; none takes all of a finite family."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task."""
    seed: int = 0
    """Decides which tasks are drawn, and is the base of the seeds of all model calls."""


class SftConfig(BaseModel):
    """One run of supervised fine-tuning."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    steps: int = Field(default=400, ge=1)
    """Optimiser steps."""
    batch_size: int = Field(default=64, ge=1)
    """Conversations of one step, over all processes."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Most tokens, padding included, that one process holds at a time; a longer conversation goes alone."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon for the matrices of the layers and AdamW for the rest: fewer steps where a model is trained from nothing."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """AdamW's learning rate between warm-up and cool-down."""
    matrix_learning_rate: float = Field(default=0.02, gt=0)
    """Muon's learning rate between warm-up and cool-down; of no effect without Muon."""
    warmup_steps: int = Field(default=30, ge=0)
    """First steps, in which the learning rate rises linearly to its full value; 0: none."""
    cooldown: float = Field(default=0.5, ge=0, le=1)
    """Share of the steps, the last ones, in which the learning rate falls to almost nothing."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of either optimiser, times the learning rate in each step; 0: none."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """L2 norm that the gradient of a step is scaled down to where it is larger."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running mean of the weights, with which the run ends (0.98: of the last 50 steps, say); 0: none."""
    seed: int = 0
    """Decides the order of the conversations."""


class GrpoConfig(TaskSettings, RolloutSettings, GraphSettings):
    """One run of reinforcement learning. The defaults are the demo's; the paper's values stand beside them."""

    policy: str = "builtin:cold-start"
    """Where to start: a built-in policy, a model folder, or hf:NAME."""
    max_tokens: int = Field(default=256, ge=1)
    """Most completion tokens of one reply (paper: 8K to 12K of a whole rollout)."""
    algorithm: Literal["grpo", "grpo-random", "grpo-roc"] = "grpo-roc"
    """What is trained on: all rollouts (grpo), a random G of them (grpo-random), G resampled on correct (grpo-roc)."""
    selection: Literal["inverse", "lowest"] = "inverse"
    """How RoC draws positives: inverse, as in the paper; lowest, as in its released code."""
    steps: int = Field(default=30, ge=1)
    """Optimiser steps (paper: 510 in three stages)."""
    prompts_per_step: int = Field(default=16, ge=1)
    """Tasks of one optimiser step, each with a group of rollouts (paper: 512)."""
    group_size: int = Field(default=8, ge=2)
    """G, the rollouts of a prompt that are trained on (paper: 16)."""
    oversampling: int = Field(default=2, ge=1)
    """grpo-random and grpo-roc sample this many times G (paper: 2); grpo samples G."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """AdamW's learning rate between warm-up and cool-down (paper: 1e-6 for 14B parameters)."""
    warmup_steps: int = Field(default=0, ge=0)
    """First steps, in which the learning rate rises linearly to its full value; 0: none (paper: 20)."""
    cooldown: float = Field(default=0.67, ge=0, le=1)
    """Share of the steps, the last ones, in which the learning rate falls to almost nothing (paper: none)."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay, times the learning rate in each step; 0: none."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """L2 norm that the gradient of a step is scaled down to where it is larger."""
    clip_low: float = Field(default=0.2, gt=0)
    """The ratio of new to old probability of a token is clipped below at 1 less this."""
    clip_high: float = Field(default=0.28, gt=0)
    """The ratio of new to old probability of a token is clipped above at 1 plus this; wider than below, as in DAPO."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the rollouts; above 0, since greedy rollouts of one prompt are all alike."""
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Most tokens, padding included, of one forward pass."""
    seed: int = 0
    """Decides the tasks and their order, the draw of kept rollouts, and the seeds of all model calls."""

    def runner_options(self) -> RunnerOptions:
        """The policy stands in for every model of the graph, unconstrained: tokens chosen by a schema teach nothing."""
        return {**super().runner_options(), "stand_in": True, "constrain": False}

    @property
    def samples(self) -> int:
        """Rollouts of a prompt."""
        return self.group_size * (1 if self.algorithm == "grpo" else self.oversampling)


class DemoConfig(BaseModel):
    """One run of the demo. The defaults take some minutes on two cores."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    from_scratch: bool = False
    """Train the cold-start model instead of using the one that the package ships."""
    train: GrpoConfig = GrpoConfig()
    """The reinforcement learning between the two evaluations."""
    eval_problems: int = Field(default=256, ge=1)
    """Held-out problems that the policy is evaluated on, the same before and after training."""
    problem: str = TANK
    """The task that the hierarchical graph solves at the end."""
