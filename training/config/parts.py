"""Tables of the `train rl` configuration. Each key is also a flag, so every key name is unique
across tables.

They are separate from the code that they configure, so that a command's help does not need torch.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    field_serializer,
    model_validator,
)

from hrm_agent.config import BY_MODEL, ONE_BY_ONE, ConfigPart
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.settings import Durability

__all__ = [
    "OWN",
    "TRACK_KEYS",
    "AdapterPart",
    "Aggregation",
    "CheckpointSettings",
    "EnginesPart",
    "EvaluationPart",
    "KeepPart",
    "LossPart",
    "ObjectiveDefaults",
    "ObjectiveName",
    "OptimPart",
    "RolloutPart",
    "SelectPart",
    "StoreUrl",
    "TrackSettings",
    "TrackerName",
    "TrainingStage",
    "Truncated",
]

ObjectiveName = Literal["clipped", "cispo", "gspo"]
Aggregation = Literal["token", "sequence", "constant"]


class ObjectiveDefaults(NamedTuple):
    """Defaults of one objective."""

    clip_low: float | None
    """Lower clip of the probability ratio, as a distance below 1 (None: no lower bound)."""
    clip_high: float
    """Upper clip of the probability ratio, as a distance above 1."""
    aggregation: Aggregation
    """Unit of the mean."""


OWN: dict[ObjectiveName, ObjectiveDefaults] = {
    "clipped": ObjectiveDefaults(0.2, 0.28, "token"),
    "cispo": ObjectiveDefaults(None, 4.0, "token"),
    "gspo": ObjectiveDefaults(3e-4, 4e-4, "sequence"),
}
"""Defaults by objective name, from each one's own paper.

clipped: DAPO's upper clip (arXiv 2503.14476), and rStar2-Agent's. gspo: arXiv 2507.18071, section
5.1. cispo has no lower bound; MiniMax-M1 (arXiv 2506.13585) gives no upper one, ScaleRL (arXiv
2510.13786) cuts the ratio at 5.
"""


TrackerName = Literal["tensorboard", "trackio", "wandb"]


def _split(value: Any) -> Any:
    """Split `tensorboard,wandb`, alone or in a list, into unique names."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)):
        return value
    names = [part.strip() for each in cast("list[Any]", listed) for part in str(each).split(",")]
    return tuple(dict.fromkeys(name for name in names if name and name != "none"))


class TrackSettings(BaseModel):
    """Trackers of metrics, in addition to metrics.jsonl."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    track: Annotated[tuple[TrackerName, ...], BeforeValidator(_split), ONE_BY_ONE] = ()
    """Trackers that receive each row of metrics: tensorboard, trackio, wandb, joined by commas
    (empty: none).
    """
    track_project: str = "hrm-agent"
    """Project name of the run in trackio and wandb."""
    track_folder: str | None = None
    """Folder that trackers write to (none: TensorBoard and wandb into the run's folder, trackio
    where it keeps all its runs).
    """


TRACK_KEYS = frozenset(TrackSettings.model_fields)
"""Keys of trackers, which do not affect a run."""


def _without_password(url: str) -> str:
    if re.match(r"\w+://[^/@]*:[^/@]*@", url):
        raise ConfigError(
            "The URL of the store has a password in it, which would be saved beside the run.",
            "Put it into PGPASSWORD or ~/.pgpass.",
        )
    return url


StoreUrl = Annotated[str, AfterValidator(_without_password)]
Truncated = Literal["wrong", "leave_out", "keep_reward"]


class RolloutPart(ConfigPart):
    """Rollouts of a step."""

    prompts_per_step: int = Field(default=16, ge=1)
    """Tasks of one optimiser step, each with a group of rollouts (paper: 512)."""
    group_size: int = Field(default=8, ge=2)
    """G, the rollouts of a prompt that are trained on (paper: 16)."""
    oversampling: float = Field(default=2, ge=1)
    """Oversampling factor: all algorithms except grpo sample this many times G rollouts, rounded
    (paper: 2). grpo samples G.
    """
    shuffle_block: int = Field(default=480, ge=1)
    """Block size for task order. Tasks are drawn in blocks of this many, each in its own random
    order.
    """
    problems: int | None = Field(default=None, ge=1)
    """Size of the pool that tasks are drawn from, pass after pass (none: all of a finite family,
    new ones without end of another; paper: 42K).
    """
    refill: int = Field(default=0, ge=0)
    """Maximum number of further prompts that a step draws to replace groups that teach nothing (0:
    none; paper: none).
    """
    processes: int = Field(default=1, ge=1)
    """Processes that run the graphs of a step's rollouts, around one engine (1: only the training
    process).
    """
    ray: str | None = None
    """Ray cluster that these processes are spread over, as HOST:PORT, auto or local (none: this
    machine).
    """
    durability: Durability = "calls"
    """Commit policy. calls: each model call is committed as it ends, steps and python calls with
    the next commit or some milliseconds later. steps: each step and call is committed before the
    next one begins.
    """
    share_memory: bool = False
    """Rollouts share the caches and the LangGraph stores that the graph holds. Otherwise each
    rollout has empty caches and its own copy of a store in memory.
    """
    versions_behind: int = Field(default=0, ge=0)
    """Maximum number of versions between the sampling weights and the trained weights. Rollouts of
    this many coming steps run while the weights change. Above 0 it needs `correction` (token is
    usual) or old_logprobs engine (0: no rollouts run ahead).
    """
    on_publish: Literal["finish", "abort"] = "finish"
    """Handling of replies in progress when new weights are published. finish: they end with the
    weights that they began with. abort: they are requested again. Whole rollouts go on either way.
    """
    group_quorum: float = Field(default=1, gt=0, le=1)
    """Share of a prompt's rollouts after which the others have group_deadline seconds left.
    Rollouts that have not ended by then are cut off: they stay on record as they are, and are left
    out of the step (1: all are waited for).
    """
    group_deadline: float = Field(default=60, ge=0)
    """Seconds to wait for the last rollouts of a prompt once its quorum has ended."""
    carry_over: bool = False
    """Rollouts that were cut off go on in the next step, once, until group_deadline after that
    step's own rollouts. Those that have ended by then are trained on there, judged with their own
    group. Needs `correction` or old_logprobs engine.
    """


class SelectPart(ConfigPart):
    """Selection of the rollouts that are trained on."""

    algorithm: Literal["grpo", "grpo-random", "grpo-roc", "grpo-roc-random"] = "grpo-roc"
    """Selection algorithm. grpo: all rollouts. grpo-random: G random ones. grpo-roc: G resampled on
    correct. grpo-roc-random: as many correct and wrong ones as grpo-roc takes, but at random.
    """
    selection: Literal["inverse", "lowest"] = "inverse"
    """Draw of positives by RoC. inverse: as in the paper. lowest: as in its released code."""
    min_positives: int = Field(default=2, ge=0)
    """Minimum number of positives that RoC keeps of a group, if there are as many. At most half of
    G.
    """
    min_negatives: int = Field(default=2, ge=0)
    """Minimum number of negatives that RoC keeps of a group, if there are as many. At most half of
    G.
    """
    penalty_eps: float = Field(default=1e-6, gt=0)
    """Constant added to a positive's penalty before it is inverted. The larger it is, the less the
    penalty matters to RoC's draw.
    """
    penalties: Literal["whole", "by_role"] = "whole"
    """Scope of RoC's penalties. whole: all calls and turns of a rollout (paper). by_role: those of
    each role, the node that asked; the rollout has the mean over the roles that have tools, or that
    answer.
    """
    min_group: float = Field(default=0.75, gt=0, le=1)
    """Minimum share of a prompt's rollouts that are usable (not lost to a machine). A group below
    it is left out.
    """
    truncated: Truncated = "wrong"
    """Handling of rollouts that ended at a limit. wrong: their outcome is 0 (paper). leave_out:
    they are no part of their group. keep_reward: they are not right, but are rewarded as if they
    had ended by themselves.
    """
    mastered_after: int = Field(default=0, ge=0)
    """Number of times in a row that all rollouts of a problem's group must be right before the
    problem leaves the pool (0: no problem leaves).
    """


class LossPart(ConfigPart):
    """Training loss."""

    advantages: Literal["grpo", "dr_grpo", "rloo", "reinforce_plus_plus"] = "grpo"
    """Baseline of a rollout's reward. grpo: the mean of its group, over the deviation. dr_grpo: the
    mean alone. rloo: the mean of the others. reinforce_plus_plus: the mean, over the deviation of
    the whole batch.
    """
    advantage_eps: float = Field(default=1e-6, gt=0)
    """Constant added to the standard deviation of rewards that advantages are divided by."""
    credit: Literal["whole_trajectory", "per_role", "even"] = "whole_trajectory"
    """Distribution of a rollout's advantage over its calls. whole_trajectory: the same to all.
    per_role: compared among calls of one role that had the same prompt. even: a rollout of many
    tokens weighs as much as one of few.
    """
    frozen_roles: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Role, the node that asked, whose calls are context and never trained on, such as critique.
    Repeatable.
    """
    objective: ObjectiveName = "clipped"
    """Loss of a token. clipped: the surrogate of PPO and GRPO. cispo: the log-prob weighed by the
    clipped ratio, which leaves no token without gradient. gspo: the surrogate with one ratio for a
    whole rollout. If each batch is trained on once, as by default, the ratio is 1, and all three
    have the same gradient.
    """
    aggregation: Aggregation | None = None
    """Unit of the mean. token: all trained tokens (paper). sequence: rollouts, each with the mean
    of its tokens. constant: rollouts, each with the sum of its tokens over `constant` (none:
    sequence for gspo, token for the others).
    """
    constant: float = Field(default=256.0, gt=0)
    """Tokens that the sum of a rollout is divided by. Used only with aggregation constant."""
    clip_low: float | None = Field(default=None, gt=0, lt=1)
    """Lower clip of the probability ratio, below 1. The ratio is 1 if each batch is trained on once
    (none: 0.2, for gspo 3e-4; cispo has none).
    """
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip of the probability ratio, above 1. The ratio is 1 if each batch is trained on once
    (none: 0.28, for gspo 4e-4, for cispo 4).
    """
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest loss of a token with a negative weight, as a multiple of it (none: unbounded, as in
    the paper).
    """
    kl_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the divergence from the starting policy (0: none, and no second model is held,
    as in the paper).
    """
    old_logprobs: Literal["trainer", "engine"] = "trainer"
    """Denominator of the ratio. trainer: log-probs that the trainer computes before the first
    optimiser step. engine: log-probs recorded when the tokens were sampled. With --from and without
    a correction, trainer applies to steps whose tokens were sampled by the very weights that take
    them; other steps use engine.
    """
    engine_difference_limit: float | None = Field(default=None, gt=0)
    """Limit in nats of engine_difference. A step on tokens of the newest weights that exceeds it
    stops the run (none: 5e-4 in float32, 0.05 in half precision, 0.15 with weights in 8 bits, 0.5
    in 4).
    """
    correction: Literal["none", "token", "sequence"] = "none"
    """Weight of the loss by the trainer's over the engine's probability, so that tokens of an
    engine that rounds differently, or of older weights, count as the trainer's own. Applied by
    token, or by whole rollout.
    """
    correction_mode: Literal["truncate", "mask"] = "truncate"
    """Handling of a correction above the cap. truncate: the cap. mask: 0."""
    correction_cap: float = Field(default=2.0, gt=0)
    """Cap of the correction."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Maximum age of trained tokens, in versions of the weights that sampled them (none: all tokens
    are trained on).
    """
    forward: Literal["padded", "packed", "tree"] = "padded"
    """Layout of rollouts in a forward pass. padded: side by side. packed: one after the other
    without padding. tree: parts that siblings share (their prompt, a first turn) once. Loss and
    gradients are equal up to rounding.
    """
    micro_batch_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Maximum number of tokens, padding included, of one forward pass. By the model: as many as 4
    GiB hold, 4096 at most.
    """

    @field_serializer("aggregation", "clip_high", "clip_low", when_used="json")
    def _as_taken(self, value: Any, info: FieldSerializationInfo) -> Any:
        """Serialise the value in use. A configuration that others are merged with keeps its
        None.
        """
        return self.own(info.field_name or "") if value is None else value

    def taken(self, key: str) -> Any:
        """Value of a key, or the objective's default if none was given."""
        given = getattr(self, key)
        return self.own(key) if given is None else given

    def own(self, key: str) -> Any:
        """Default of the objective for a key (None if no objective has one)."""
        return getattr(OWN[self.objective], key, None)


class EnginesPart(ConfigPart):
    """Engines that sample the rollouts."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """Sampling engine. transformers: this process, with the very weights that are trained. vllm:
    servers that receive the weights after each update, and are verified to sample with them.
    """
    servers: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """vLLM server that takes weights (docs/scale.md), as vllm:http://HOST:PORT/v1. Repeatable."""
    server_count: int = Field(default=0, ge=0)
    """Number of vLLM servers to start on this machine, each on its own GPU if there are any (0: 1
    if no server is named).
    """
    server_python: str = ""
    """Interpreter of the environment that has vLLM, for servers started here (empty: this one)."""
    server_options: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Further option of `vllm serve` for servers started here, such as
    --server-options=--max-model-len=8192. Repeatable.
    """
    assign: Literal[
        "expected_peak", "least_requests", "safe_maximum", "static_prompts", "static_rollouts"
    ] = "expected_peak"
    """Assignment of rollouts to servers. expected_peak: as many as their caches hold at the peak
    predicted from the last step's lengths. safe_maximum: as many as fit at the longest length
    (paper). The others admit all at once, by fewest requests, or split by prompts or by rollouts.
    """
    weights_by: Literal["file", "collective"] = "file"
    """Transport of weights to servers. file: a file in weights_folder. collective: the trainer
    sends them to each server's workers, over the network by gloo, or from GPU to GPU by NCCL if
    each rank has its own.
    """
    weights_address: str = ""
    """Address of this machine that servers reach, for weights by a collective (empty: the one
    towards each server).
    """
    weights_folder: str = ""
    """Folder visible to this machine and the servers, for weights (empty: this machine's memory).
    """
    publish_tolerance: float | None = Field(default=None, gt=0)
    """Maximum difference between a server's log-probs and the trainer's after a publish (none: 1e-4
    at most in float32, 0.05 on average in half precision).
    """
    unproved_weights: bool = False
    """Go on if some weights of a server cannot be compared with the trainer's. They are named
    either way.
    """
    server_patience: float = Field(default=600.0, gt=0)
    """Seconds that rollouts wait while no server is available; after that the run ends, and can be
    resumed. Also the seconds without a report on a request after which a server's rollouts go on in
    others.
    """

    @model_validator(mode="after")
    def _servers_are_named(self) -> Self:
        for url in self.servers:
            if not url.startswith("vllm:"):
                raise ConfigError(
                    f"{url!r} names no vLLM server.", "Write vllm:http://HOST:PORT/v1."
                )
            if self.servers.count(url) > 1:
                raise ConfigError(f"The server {url} is named twice.", "Name each once.")
        return self

    @property
    def own(self) -> int:
        """Number of servers to start."""
        return self.server_count if self.servers or self.server_count else 1


class AdapterPart(ConfigPart):
    """LoRA adapter, trained instead of all weights on a model that stays unchanged."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank of a LoRA adapter, which is trained and saved alone (the model may be loaded with
    ?load=nf4). 0: none, all weights are trained (paper: none).
    """
    lora_alpha: float | None = Field(default=None, gt=0)
    """Scale of the adapter's output, divided by its rank (none: twice the rank)."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of a layer's inputs that are dropped before the adapter in a training forward pass (0:
    none). Not applied when log-probs are compared.
    """
    lora_targets: Annotated[tuple[str, ...], ONE_BY_ONE] = ("all-linear",)
    """Layer that has the adapter, such as q_proj. Repeatable. all-linear: all but the output layer
    and the router of a mixture of experts.
    """
    lora_roles: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Role, the node that asked, with a separate adapter, such as plan. Repeatable. All other roles
    share one (none named: all roles do).
    """

    @model_validator(mode="after")
    def _names_are_sound(self) -> Self:
        if not self.lora_targets:
            raise ConfigError("lora_targets names no layer.", "Leave it out for all linear ones.")
        for role in self.lora_roles:
            if not re.fullmatch(r"\w[\w -]*", role) or self.lora_roles.count(role) > 1:
                raise ConfigError(
                    f"lora_roles cannot have {role!r}: its adapter is kept in a folder of that"
                    " name, once.",
                    "Name each role once; a node has letters, digits, _ and - in its name, or its"
                    " adapter is shared.",
                )
        return self

    @property
    def alpha(self) -> float:
        """Value of `lora_alpha` in use."""
        return 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha


class OptimPart(ConfigPart):
    """Optimiser, precision and learning rate."""

    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """Optimiser. adamw8bit is AdamW that keeps its means of gradients in 8 bits, a quarter of the
    memory, by bitsandbytes.
    """
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights, in the trainer and its engine. bfloat16: trained weights have float32
    masters, which the optimiser changes.
    """
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass. This takes the memory of one layer's activations
    for a third more arithmetic.
    """
    sharding: Literal["none", "ddp", "fsdp2"] = "none"
    """Joint training of several processes, started by torchrun. none: there is one process. ddp:
    each holds all weights and the whole optimiser. fsdp2: each holds a share of both, and in
    addition the weights it samples with.
    """

    learning_rate: Annotated[float | None, BY_MODEL] = Field(default=None, gt=0)
    """AdamW's learning rate between warm-up and cool-down (paper: 1e-6 for 14B parameters). By the
    model: by its size, 5e-6 to 1e-6, of an adapter ten times as much; the small built-in policies
    bring their own, 5e-4.
    """
    warmup_steps: int = Field(default=0, ge=0)
    """Number of first steps, at most all, in which the learning rate rises linearly to its full
    value (0: none; paper: 20).
    """
    cooldown: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, at the end, in which the learning rate falls to almost nothing (demo:
    0.67). With 0 it stays (paper), and the run can be prolonged later. A fall cannot be prolonged,
    since another number of steps would move its beginning.
    """
    fall: Literal["linear", "cosine"] = "linear"
    """Shape of the learning rate's fall in the cool-down."""
    least_rate: float = Field(default=0.0, ge=0, le=1)
    """Minimum learning rate in the cool-down, as a share of the full one."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay, times the learning rate in each step (0: none)."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum L2 norm of a step's gradient. A larger gradient is scaled down to it."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean of gradients."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the mean of squared gradients."""
    mini_batches: int = Field(default=1, ge=1)
    """Optimiser steps per batch of rollouts, each on a part of it (paper: 1)."""
    epochs: int = Field(default=1, ge=1)
    """Number of times that a batch is trained on (paper: 1)."""


class CheckpointSettings(BaseModel):
    """Checkpoints of a training."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    checkpoints: int = Field(default=2, ge=1)
    """Number of checkpoints kept, the newest ones. A damaged one is skipped for the previous one.
    """
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps from one checkpoint to the next. Steps after the last checkpoint are taken again when a
    run is resumed.
    """


class KeepPart(ConfigPart, CheckpointSettings):
    """Checkpoints of the run."""


class EvaluationPart(ConfigPart):
    """Evaluation on held-out problems during a run."""

    eval_every: int = Field(default=0, ge=0)
    """Steps from one evaluation on held-out problems to the next (0: none). The best weights go to
    RUN/best.
    """
    eval_problems: int = Field(default=64, ge=1)
    """Number of held-out problems of an evaluation, the same each time, at the temperature of
    training.
    """
    patience: int = Field(default=0, ge=0)
    """Number of evaluations without a better one after which the run ends (0: it takes all its
    steps).
    """


class TrainingStage(BaseModel):
    """Stage of a training. Settings that are none are those of the whole training."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = ""
    """Name of the stage in reports (empty: its number)."""
    steps: int = Field(ge=1)
    """Optimiser steps. A stage that ends on a plateau takes at most this many."""
    tasks: str | None = None
    """Family of tasks."""
    problems: int | None = Field(default=None, ge=1)
    """Size of the pool that tasks are drawn from."""
    rollout_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of completion tokens of a whole rollout: `max_tokens` of the graph's context.
    """
    turns: int | None = Field(default=None, ge=1)
    """Maximum number of turns of a rollout: `max_turns` of the graph's context."""
    context: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further options of the graph, which override those of the whole."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate between warm-up and cool-down. Each stage has a cool-down. Only the first stage
    and stages with reset_optimizer have a warm-up.
    """
    reset_optimizer: bool = False
    """Begin with a fresh state of the optimiser."""
    leave_out_solved: int = Field(default=0, ge=0)
    """Number of rollouts of each problem of the pool before the stage. Problems that were right
    each time are left out (paper: 8 in stage 3; 0: none is left out).
    """
    plateau: int = Field(default=0, ge=0)
    """Number of steps without a new best share of right rollouts after which the stage ends (0:
    never early).
    """
