"""Tables of the `train rl` configuration. Each key is also a flag, so the name of a key is unique
across tables.

The tables are separate from the code that they configure, so that a command's help does not need
torch.
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

from hrm_agent.config import BY_MODEL, ONE_BY_ONE, Choice, ConfigPart, is_own
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.settings import Durability, GraphContext
from hrm_agent.store.run_store import shown_url

__all__ = [
    "OWN",
    "TRACK_KEYS",
    "AdapterPart",
    "CheckpointSettings",
    "EnginesPart",
    "EvaluationPart",
    "FamilyPart",
    "KeepPart",
    "LossPart",
    "ObjectiveDefaults",
    "OptimPart",
    "RolloutPart",
    "SelectPart",
    "StoreUrl",
    "TrackSettings",
    "TrackerName",
    "TrainingStage",
    "Truncated",
    "of_sequences",
    "own_defaults",
]


class ObjectiveDefaults(NamedTuple):
    """Defaults of one objective."""

    clip_low: float | None
    """Lower clip of the probability ratio, as a distance below 1 (None: no lower bound)."""
    clip_high: float
    """Upper clip of the probability ratio, as a distance above 1."""
    aggregation: str
    """Default aggregation of the losses."""


OWN: dict[str, ObjectiveDefaults] = {
    "clipped": ObjectiveDefaults(0.2, 0.28, "token"),
    "cispo": ObjectiveDefaults(None, 4.0, "token"),
    "gspo": ObjectiveDefaults(3e-4, 4e-4, "sequence"),
}
"""Defaults by objective name, from the objective's paper. A user's objective has those of clipped.

clipped: the upper clip of DAPO (arXiv 2503.14476) and rStar2-Agent. gspo: arXiv 2507.18071, section
5.1. cispo: MiniMax-M1 (arXiv 2506.13585) has no lower bound and gives no number for the upper;
ScaleRL (arXiv 2510.13786) cuts the ratio at 5.
"""


def own_defaults(objective: str) -> ObjectiveDefaults:
    """Defaults of the objective with this name."""
    return OWN.get(objective, OWN["clipped"])


def of_sequences(objective: str) -> bool:
    """True if the loss of a token may depend on the other tokens of its rollout."""
    return objective == "gspo" or is_own(objective)


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
    """Folder that trackers write to (none: TensorBoard and wandb write into the run's folder, and
    trackio where it keeps all its runs).
    """


TRACK_KEYS = frozenset(TrackSettings.model_fields)
"""Keys of trackers, which do not affect a run."""


def _without_password(url: str) -> str:
    if shown_url(url) != url:
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
    """Oversampling factor. grpo samples G rollouts of a prompt. All other algorithms sample this
    factor times G, rounded (paper: 2).
    """
    shuffle_block: int = Field(default=480, ge=1)
    """Block size of the task order. Tasks are drawn in blocks of this many, and each block is
    shuffled.
    """
    problems: int | None = Field(default=None, ge=1)
    """Size of the pool from which tasks are drawn, pass after pass (none: all tasks of a finite
    family, or new tasks without end of an infinite one; paper: 42K).
    """
    draw: Literal["order", "learnability"] = "order"
    """Draw of tasks. order: each of the pool once, then again in another order. learnability: at
    random from the pool (`problems`, else the first shuffle_block tasks), in proportion to
    p(1 - p), where p is a problem's share of right rollouts as far as it is known.
    """
    draw_decay: float = Field(default=0.5, ge=0, le=1)
    """Weight of a problem's earlier rollouts in p after each further group (1: all count alike)."""
    refill: int = Field(default=0, ge=0)
    """Maximum number of further prompts that a step may draw to replace groups that teach nothing
    (0: none; paper: none).
    """
    processes: int = Field(default=1, ge=1)
    """Processes that run the graphs of a step's rollouts, around one engine (1: only the training
    process).
    """
    ray: str | None = None
    """Ray cluster on which these processes run, as HOST:PORT, auto or local (none: this
    machine).
    """
    durability: Durability = "calls"
    """Commit policy. calls: each model call is committed as it ends, steps and python calls with
    the next commit or some milliseconds later. steps: each step and call is committed before the
    next one begins.
    """
    share_memory: bool = False
    """Rollouts share the caches and the LangGraph stores that the graph holds. If false, each
    rollout begins with empty caches and a copy of each store in memory.
    """
    versions_behind: int = Field(default=0, ge=0)
    """Maximum number of versions between the sampling weights and the trained weights: rollouts of
    so many coming steps run while the weights change (0: no rollouts run ahead). A value above 0
    needs `correction` (token is usual) or old_logprobs engine.
    """
    on_publish: Literal["finish", "abort"] = "finish"
    """Handling of replies in progress when new weights are published. finish: they end with the
    weights with which they began. abort: they are requested again. With either, rollouts go on.
    """
    group_quorum: float = Field(default=1, gt=0, le=1)
    """Share of a prompt's rollouts after whose end the others have group_deadline seconds left (1:
    a step waits for all rollouts). Rollouts that have not ended by then are cut off: they stay on
    record as they are, and are left out of the step.
    """
    group_deadline: float = Field(default=60, ge=0)
    """Seconds to wait for the other rollouts of a prompt after its quorum has ended."""
    carry_over: bool = False
    """Rollouts that were cut off go on in the next step, until group_deadline after that step's
    rollouts. If they have ended by then, they are trained on in that step, and are judged with the
    group in which they began. A rollout goes on only once. Needs `correction` or old_logprobs
    engine.
    """


class SelectPart(ConfigPart):
    """Selection of the rollouts that are trained on."""

    algorithm: Annotated[str, Choice(("grpo", "grpo-random", "grpo-roc", "grpo-roc-random"))] = (
        "grpo-roc"
    )
    """Selection algorithm. grpo: all rollouts. grpo-random: G random ones. grpo-roc: G resampled on
    correct. grpo-roc-random: as many correct and wrong ones as grpo-roc takes, but at random.
    """
    selection: Annotated[str, Choice(("inverse", "lowest"))] = "inverse"
    """Draw of positives by RoC. inverse: as in the paper. lowest: as in its released code."""
    min_positives: int = Field(default=2, ge=0)
    """Minimum number of positives that RoC keeps of a group, if the group has as many. At most half
    of G.
    """
    min_negatives: int = Field(default=2, ge=0)
    """Minimum number of negatives that RoC keeps of a group, if the group has as many. At most half
    of G.
    """
    penalty_eps: float = Field(default=1e-6, gt=0)
    """Constant added to a positive's penalty before it is inverted. The larger it is, the less the
    penalty matters to RoC's draw.
    """
    penalties: Annotated[str, Choice(("whole", "by_role"))] = "whole"
    """Scope of RoC's penalties. whole: all calls and turns of a rollout (paper). by_role: the calls
    and turns of each role (node that asked the model), then the mean over the roles that have
    tools, or that answer.
    """
    min_group: float = Field(default=0.75, gt=0, le=1)
    """Minimum share of a prompt's rollouts that must be usable (not lost to a failed machine or
    service). A group with fewer is left out.
    """
    truncated: Truncated = "wrong"
    """Handling of rollouts that ended at a limit. wrong: their outcome is 0 (paper). leave_out:
    they are left out of their group. keep_reward: they count as wrong, but keep the reward that
    they would have without the limit.
    """
    mastered_after: int = Field(default=0, ge=0)
    """Number of consecutive groups of a problem that must be all right before the problem leaves
    the pool (0: no problem leaves).
    """


class LossPart(ConfigPart):
    """Training loss."""

    advantages: Annotated[str, Choice(("grpo", "dr_grpo", "rloo", "reinforce_plus_plus"))] = "grpo"
    """Advantage of a rollout: its reward less a baseline. grpo: the mean of its group, and divided
    by the group's deviation. dr_grpo: the mean alone. rloo: the mean of the other rollouts.
    reinforce_plus_plus: the mean, and divided by the deviation of the whole batch.
    """
    advantage_eps: float = Field(default=1e-6, gt=0)
    """Constant added to the standard deviation of rewards that advantages are divided by."""
    credit: Annotated[
        str, Choice(("whole_trajectory", "per_role", "per_turn", "forks", "even"))
    ] = "whole_trajectory"
    """Distribution of a rollout's advantage over its calls. whole_trajectory: all calls get the
    same. per_role: calls of one role that had the same prompt are compared with each other.
    per_turn: rewards of single calls are added. forks: a call gets the difference that it made to
    the mean outcome, by rollouts that begin in the middle of others. even: a rollout of many tokens
    weighs as much as a rollout of few.
    """
    fork_share: float = Field(default=0.5, gt=0, lt=1)
    """Share of a prompt's rollouts that begin in the middle of its other rollouts."""
    forks_of_moment: int = Field(default=2, ge=1)
    """Number of rollouts that begin at one moment."""
    fork_at: Literal["any", "failed_call", "uncertain"] = "any"
    """Moments at which rollouts begin, each before a step that asks the model. any: drawn at
    random. failed_call: first those before a tool call that failed by the policy's fault.
    uncertain: first those whose step sampled tokens of the lowest mean log-probability.
    """
    turn_weight: float = Field(default=1.0, gt=0)
    """Weight of the advantages of single calls, beside 1 for that of the rollout."""
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of a later call's reward for each call in between: a call is worth its own reward
    and the discounted rewards of the calls after it.
    """
    turn_baseline: Literal["position", "anchor"] = "position"
    """Calls of a group that a call is compared with. position: those of the same role at the same
    place in their rollouts. anchor: those of the same role that saw the same tokens.
    """
    frozen_roles: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Role (node that asked the model), such as critique, whose calls are context and never trained
    on. Repeatable.
    """
    objective: Annotated[str, Choice(tuple(OWN))] = "clipped"
    """Loss of a token. clipped: the surrogate of PPO and GRPO. cispo: the log-prob times the
    clipped ratio, so that every token keeps its gradient. gspo: the surrogate with one ratio for a
    whole rollout. If each batch is trained on once, as by default, the ratio is 1, and all three
    have the same gradient.
    """
    aggregation: Annotated[str | None, Choice(("token", "sequence", "constant"))] = None
    """Aggregation of the losses. token: mean over all trained tokens (paper). sequence: mean over
    rollouts of the mean of their tokens. constant: mean over rollouts of the sum of their tokens,
    divided by `constant` (none: sequence for gspo, token for the others).
    """
    constant: float = Field(default=256.0, gt=0)
    """Tokens that the sum of a rollout is divided by. Used only with aggregation constant."""
    clip_low: float | None = Field(default=None, gt=0, lt=1)
    """Lower clip of the probability ratio, as a distance below 1. The ratio is 1 if each batch is
    trained on once (none: 0.2, for gspo 3e-4; cispo has no lower clip).
    """
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip of the probability ratio, as a distance above 1. The ratio is 1 if each batch is
    trained on once (none: 0.28, for gspo 4e-4, for cispo 4).
    """
    dual_clip: float | None = Field(default=None, gt=1)
    """Maximum loss of a token with a negative weight, as a multiple of the weight's size (none:
    unbounded, as in the paper).
    """
    kl_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the divergence from the starting policy (0: no such term, as in the paper, and
    no reference model in memory).
    """
    teacher: str | None = None
    """Policy that teaches: a model with the same vocabulary, an earlier checkpoint, or vllm:URL for
    a server (at temperature 1). The log of its probability over the policy's is added to the weight
    of each sampled token (none: no teacher).
    """
    teacher_prompt: str | None = None
    """Text that teachers read after the first message of the user, with {answer} in the place of
    the task's reference answer (none: they read what the policy read).
    """
    teacher_coef: float = Field(default=1.0, gt=0)
    """Coefficient of the teacher's part in a token's weight."""
    outcome_coef: float = Field(default=1.0, ge=0)
    """Coefficient of the outcome's part in a token's weight, beside a teacher (0: the teacher alone
    teaches).
    """
    old_logprobs: Literal["trainer", "engine"] = "trainer"
    """Denominator of the ratio. trainer: log-probs that the trainer computes before the first
    optimiser step. engine: log-probs recorded when the tokens were sampled. With --from and without
    a correction, trainer is used only in steps whose tokens were sampled by exactly the weights
    that are trained; other steps use engine.
    """
    engine_difference_limit: float | None = Field(default=None, gt=0)
    """Limit in nats of engine_difference. If a step on tokens of the newest weights exceeds it, the
    run stops (none: 5e-4 in float32, 0.05 in half precision, 0.15 with weights in 8 bits, 0.5 in 4
    bits).
    """
    correction: Literal["none", "token", "sequence"] = "none"
    """Importance correction: the loss of each token or each whole rollout is weighted by the
    trainer's probability over the engine's. It corrects for an engine that rounds differently, or
    sampled with older weights.
    """
    correction_mode: Literal["truncate", "mask"] = "truncate"
    """Handling of a correction above the cap. truncate: it is set to the cap. mask: it
    is set to 0.
    """
    correction_cap: float = Field(default=2.0, gt=0)
    """Cap of the correction."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Maximum age of trained tokens, in versions of the weights that sampled them (none: all tokens
    are trained on).
    """
    forward: Literal["padded", "packed", "tree"] = "padded"
    """Layout of rollouts in a forward pass. padded: side by side. packed: one after the other
    without padding. tree: packed, and beginnings that rollouts share (a prompt, a first turn) are
    computed once. Loss and gradients are equal up to rounding.
    """
    micro_batch_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Maximum number of tokens in a forward pass, padding included. By the model: as many as fit
    into 4 GiB, at most 4096.
    """

    @field_serializer("aggregation", "clip_high", "clip_low", when_used="json")
    def _as_taken(self, value: Any, info: FieldSerializationInfo) -> Any:
        """Serialise the value in use to JSON. In other dumps, with which configurations are merged,
        None stays None.
        """
        return self.own(info.field_name or "") if value is None else value

    def taken(self, key: str) -> Any:
        """Value of a key: the given value, or the objective's default if none was given."""
        given = getattr(self, key)
        return self.own(key) if given is None else given

    def own(self, key: str) -> Any:
        """Default of the objective for a key (None if it has no default for the key)."""
        return getattr(own_defaults(self.objective), key, None)


class EnginesPart(ConfigPart):
    """Engines that sample the rollouts."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """Sampling engine. transformers: this process samples with the weights that are trained. vllm:
    servers sample; they receive the weights after each update, and are verified to use them.
    """
    servers: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """vLLM server that takes weights (docs/scale.md), as vllm:http://HOST:PORT/v1. Repeatable."""
    server_count: int = Field(default=0, ge=0)
    """Number of vLLM servers to start on this machine, each on a different GPU if there are GPUs
    (0: one server if no server is named, else none).
    """
    server_python: str = ""
    """Python interpreter of the environment that has vLLM, for servers started here (empty: the
    running interpreter).
    """
    server_options: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Further option of `vllm serve` for servers started here, such as
    --server-options=--max-model-len=8192. Repeatable.
    """
    assign: Literal[
        "expected_peak", "least_requests", "safe_maximum", "static_prompts", "static_rollouts"
    ] = "expected_peak"
    """Assignment of rollouts to servers. expected_peak: as many as the caches hold at the peak
    predicted from the last step's lengths. safe_maximum: as many as fit if all get the maximum
    length (paper). The others admit all rollouts at once: least_requests to the server with the
    fewest rollouts, static_prompts divided by prompt, static_rollouts divided by rollout.
    """
    weights_by: Literal["file", "collective"] = "file"
    """Transport of weights to servers. file: by a file in weights_folder. collective: the trainer
    sends them to each server's workers, from GPU to GPU by NCCL if trainer and workers are on
    different GPUs, else over the network by gloo.
    """
    weights_address: str = ""
    """Address of this machine that servers reach, for weights_by collective (empty: the address
    that faces each server).
    """
    weights_folder: str = ""
    """Folder for weights, visible to this machine and the servers (empty: a folder in this
    machine's memory).
    """
    publish_tolerance: float | None = Field(default=None, gt=0)
    """Maximum difference between a server's log-probs and the trainer's after a publish (none: 1e-4
    at most in float32, 0.05 on average in half precision).
    """
    unproved_weights: bool = False
    """Go on if some weights of a server cannot be compared with the trainer's. The run names such
    weights in any case.
    """
    server_patience: float = Field(default=600.0, gt=0)
    """Seconds that rollouts wait while no server is available; after that the run ends, and can be
    resumed. If a server reports nothing on a request for as long, its rollouts go on in other
    servers.
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
    """LoRA adapter, which is trained on an unchanged model, instead of all weights."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank of a LoRA adapter. Only the adapter is trained and saved, and the model may be loaded
    with ?load=nf4 (0: no adapter, all weights are trained; paper: 0).
    """
    lora_alpha: float | None = Field(default=None, gt=0)
    """Strength of the adapter: its output is scaled by lora_alpha / lora_rank (none: twice the
    rank).
    """
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of a layer's inputs that are dropped before the adapter in a training forward pass (0:
    none). It is not applied when log-probs are compared.
    """
    lora_targets: Annotated[tuple[str, ...], ONE_BY_ONE] = ("all-linear",)
    """Layer that has the adapter, such as q_proj. Repeatable. all-linear: all but the output layer
    and the router of a mixture of experts.
    """
    lora_roles: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Role (node that asked the model), such as plan, that gets a separate adapter. Repeatable. All
    other roles share an adapter (empty: all roles share it).
    """

    @model_validator(mode="after")
    def _names_are_sound(self) -> Self:
        if not self.lora_targets:
            raise ConfigError("lora_targets names no layer.", "Leave it out for all linear layers.")
        for role in self.lora_roles:
            if not re.fullmatch(r"\w[\w -]*", role) or self.lora_roles.count(role) > 1:
                raise ConfigError(
                    f"lora_roles cannot have {role!r}: a role's adapter is saved in a folder with"
                    " the role's name.",
                    "Name each role once. Only a node whose name has letters, digits, _, - and"
                    " spaces can have a separate adapter.",
                )
        return self

    @property
    def alpha(self) -> float:
        """Value of `lora_alpha` in use."""
        return 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha


class OptimPart(ConfigPart):
    """Optimiser, precision and learning rate."""

    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """Optimiser. adamw8bit is AdamW that keeps its means of gradients in 8 bits by bitsandbytes,
    which takes a quarter of their memory.
    """
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights, in the trainer and its engine. bfloat16: trained weights have copies in
    float32 (masters), which the optimiser changes.
    """
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass. Only one layer's activations are then in memory,
    for a third more arithmetic.
    """
    sharding: Literal["none", "ddp", "fsdp2"] = "none"
    """Joint training by several processes, started by torchrun. none: one process trains. ddp: each
    process holds all weights and the whole optimiser. fsdp2: each holds a share of the trained
    weights and of the optimiser, and in addition all weights for sampling.
    """

    learning_rate: Annotated[float | None, BY_MODEL] = Field(default=None, gt=0)
    """AdamW's learning rate between warm-up and cool-down (paper: 1e-6 for 14B parameters). By the
    model: 5e-6 to 1e-6, depending on its size, and ten times as much for an adapter; for the small
    built-in policies 5e-4.
    """
    warmup_steps: int = Field(default=0, ge=0)
    """Number of steps at the beginning in which the learning rate rises linearly to its full value
    (0: none; paper: 20).
    """
    cooldown: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, at the end, in which the learning rate falls to almost 0 (demo: 0.67).
    With 0 the rate does not fall (paper), and the run can be prolonged later. A run whose rate has
    begun to fall cannot be prolonged, since another number of steps would move the beginning of the
    fall.
    """
    fall: Literal["linear", "cosine"] = "linear"
    """Shape of the learning rate's fall in the cool-down."""
    least_rate: float = Field(default=0.0, ge=0, le=1)
    """Minimum learning rate in the cool-down, as a share of the full rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay, multiplied by the learning rate in each step (0: none)."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum L2 norm of a step's gradient. A larger gradient is scaled down to this norm."""
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
    """Number of newest checkpoints that are kept. If the newest is damaged, the previous one is
    used.
    """
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps from one checkpoint to the next. Steps after the last checkpoint are taken again when a
    run is resumed.
    """


class KeepPart(ConfigPart, CheckpointSettings):
    """Checkpoints of the run."""

    stage_models: bool = False
    """Keep the weights at the end of each stage but the last as RUN/stages/1 and so on. Those of
    the last stage are in RUN/model.
    """
    keep_versions: int = Field(default=0, ge=0)
    """Steps from one archived version of weights and optimiser to the next (0: none). The archive,
    RUN/versions, is what `hrm-agent why` reads.
    """


class EvaluationPart(ConfigPart):
    """Evaluation on held-out problems during a run."""

    eval_every: int = Field(default=0, ge=0)
    """Steps from one evaluation on held-out problems to the next (0: none). The best weights go to
    RUN/best.
    """
    eval_problems: int = Field(default=64, ge=1)
    """Number of held-out problems in an evaluation. All evaluations have the same problems, and
    sample at the temperature of training.
    """
    patience: int = Field(default=0, ge=0)
    """Number of consecutive evaluations without a new best after which the run ends (0: the run
    takes all its steps).
    """


class FamilyPart(BaseModel):
    """Settings of one family of tasks, in place of those of the whole training. A value of None is
    that of the whole training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Family of the tasks, as it stands on record and in the metrics by family."""
    graph: str | None = None
    """Graph that runs the tasks."""
    context: GraphContext = Field(default_factory=dict[str, Any])
    """Options of the graph. If it is the training's own graph, they override those of the whole
    training and of its stages; another graph gets only these.
    """
    answer_path: str | None = None
    """Path of the answer in the state of the graph."""
    rewards: str | None = None
    """Rubric that scores the rollouts."""
    algorithm: Literal["grpo", "grpo-random", "grpo-roc", "grpo-roc-random"] | None = None
    """Selection algorithm."""
    teacher: str | None = None
    """Policy that teaches. The training needs a teacher for its other families, too."""


class TrainingStage(BaseModel):
    """Stage of a training. For a setting that is none, the value of the whole training is used."""

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
    context: GraphContext = Field(default_factory=dict[str, Any])
    """Further options of the graph, which override those of the whole training."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate between warm-up and cool-down. Each stage ends with a cool-down. Only the first
    stage and stages with reset_optimizer begin with a warm-up.
    """
    reset_optimizer: bool = False
    """True if the stage begins with a fresh state of the optimiser."""
    leave_out_solved: int = Field(default=0, ge=0)
    """Number of rollouts that are made of each problem in the pool before the stage. Problems that
    were right each time are left out of the stage (0: none is left out; paper: 8 in stage 3).
    """
    plateau: int = Field(default=0, ge=0)
    """Number of consecutive steps without a new best share of right rollouts after which the stage
    ends early (0: never).
    """
