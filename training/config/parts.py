"""The tables of a reinforcement learning's configuration. Each key is a flag by its own name: no
name stands in two.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    ValidationInfo,
    field_serializer,
    model_validator,
)

from hrm_agent.config import BY_MODEL, ON_RECORD, ONE_BY_ONE, ConfigPart
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.settings import Durability
from hrm_agent.training.config.objective_defaults import OWN, Aggregation, ObjectiveName

__all__ = [
    "AdapterPart",
    "CheckpointSettings",
    "EnginesPart",
    "EvaluationPart",
    "KeepPart",
    "LossPart",
    "OptimPart",
    "RolloutPart",
    "SelectPart",
    "StoreUrl",
    "TrainingStage",
    "Truncated",
]


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
    """What is sampled in a step."""

    prompts_per_step: int = Field(default=16, ge=1)
    """Tasks of one optimiser step, each with a group of rollouts (paper: 512)."""
    group_size: int = Field(default=8, ge=2)
    """G, the rollouts of a prompt that are trained on (paper: 16)."""
    oversampling: float = Field(default=2, ge=1)
    """All but grpo sample this many times G, rounded (paper: 2); grpo samples G."""
    shuffle_block: int = Field(default=480, ge=1)
    """Tasks are drawn in blocks of this many, each in a random order of its own."""
    problems: int | None = Field(default=None, ge=1)
    """Size of the pool that tasks are drawn from, pass after pass; none: all of a finite family,
    ever new ones of another (paper: 42K).
    """
    refill: int = Field(default=0, ge=0)
    """Most further prompts that a step draws in place of groups that teach nothing; 0: none (paper:
    none).
    """
    processes: int = Field(default=1, ge=1)
    """Processes that run the graphs of a step's rollouts, around one engine; 1: the one that
    trains.
    """
    ray: str | None = None
    """Ray cluster that these processes are spread over, as HOST:PORT, auto or local; none: this
    machine.
    """
    durability: Durability = "calls"
    """What is committed when: calls, each model call as it ends, steps and python calls with the
    next commit or some milliseconds later; steps, each step and call before the next one begins.
    """
    share_memory: bool = False
    """Rollouts share the caches and the LangGraph stores that the graph holds; otherwise each has
    its own: empty caches, and a copy of a store in memory.
    """
    versions_behind: int = Field(default=0, ge=0)
    """Most versions between the weights that sample and those that learn: while these change, the
    rollouts of so many coming steps are under way. Above 0 with `correction` (token is usual) or
    old_logprobs engine; 0: none are.
    """
    on_publish: Literal["finish", "abort"] = "finish"
    """What becomes of replies under way when new weights are published: finish, they end with the
    weights that they began with; abort, they are asked for again. Whole rollouts go on either
    way.
    """
    group_quorum: float = Field(default=1, gt=0, le=1)
    """Share of a prompt's rollouts after which the others have group_deadline left; what has not
    ended then is cut off: it stays on record as it stands, and is no part of the step. 1: all are
    waited for.
    """
    group_deadline: float = Field(default=60, ge=0)
    """Seconds that the last rollouts of a prompt are waited for once its quorum has ended."""
    carry_over: bool = False
    """What was cut off goes on in the next step, once, until group_deadline after that step's own
    rollouts. What has ended then is trained on there, judged with its own group. Needs `correction`
    or old_logprobs engine.
    """


class SelectPart(ConfigPart):
    """Which rollouts are trained on."""

    algorithm: Literal["grpo", "grpo-random", "grpo-roc", "grpo-roc-random"] = "grpo-roc"
    """What is trained on: all rollouts (grpo), a random G of them (grpo-random), G resampled on
    correct (grpo-roc), as many correct and wrong ones as that, but at random (grpo-roc-random).
    """
    selection: Literal["inverse", "lowest"] = "inverse"
    """How RoC draws positives: inverse, as in the paper; lowest, as in its released code."""
    min_positives: int = Field(default=2, ge=0)
    """Positives that RoC keeps of a group if there are as many; half of G at most."""
    min_negatives: int = Field(default=2, ge=0)
    """Negatives that RoC keeps of a group if there are as many; half of G at most."""
    penalty_eps: float = Field(default=1e-6, gt=0)
    """Added to a positive's penalty before it is inverted; the larger, the less the penalty matters
    to RoC's draw.
    """
    penalties: Literal["whole", "by_role"] = "whole"
    """What RoC's penalties are counted over: whole, all calls and turns of a rollout (paper);
    by_role, those of each role, the node that asked, and the rollout has the mean over the roles
    that have tools, or that answer.
    """
    min_group: float = Field(default=0.75, gt=0, le=1)
    """Share of a prompt's rollouts that must be able to take part (not lost to a machine), or the
    group is left out.
    """
    truncated: Truncated = "wrong"
    """Rollouts that ended at a limit are: wrong, their outcome is 0 (paper); leave_out, no part of
    their group; keep_reward, not right, but rewarded as if they had ended by themselves.
    """
    mastered_after: int = Field(default=0, ge=0)
    """A problem leaves the pool when all rollouts of its group were right so many times in a row;
    0: none leaves.
    """


class LossPart(ConfigPart):
    """What is minimised."""

    advantages: Literal["grpo", "dr_grpo", "rloo", "reinforce_plus_plus"] = "grpo"
    """What a rollout's reward is compared with: grpo, the mean of its group, over the deviation;
    dr_grpo, the mean alone; rloo, the mean of the others; reinforce_plus_plus, the mean, over the
    deviation of the whole batch.
    """
    advantage_eps: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation of a group's rewards, by which advantages are divided."""
    credit: Literal["whole_trajectory", "per_role", "even"] = "whole_trajectory"
    """How a rollout's advantage goes to its calls: whole_trajectory, the same to all; per_role,
    compared among calls of one role that were put before the same; even, so that a rollout of many
    tokens weighs as one of few.
    """
    frozen_roles: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Role, the node that asked, whose calls are context and never trained on, such as critique;
    repeatable.
    """
    objective: ObjectiveName = "clipped"
    """Loss of a token: clipped, the surrogate of PPO and GRPO; cispo, the log-prob weighed by the
    clipped ratio, which leaves no token without gradient; gspo, the surrogate with one ratio for a
    whole rollout. Where each batch is trained on once, as by default, the ratio is 1, and all three
    have one gradient.
    """
    aggregation: Aggregation | None = None
    """Mean over what: token, all trained tokens (paper); sequence, rollouts, of each the mean of
    its tokens; constant, rollouts, of each the sum of its tokens over `constant`; none: sequence
    for gspo, token for the others.
    """
    constant: float = Field(default=256.0, gt=0)
    """Tokens by which the sum of a rollout is divided; only under the aggregation constant."""
    clip_low: float | None = Field(default=None, gt=0, lt=1)
    """Lower clip of the probability ratio, below 1, which it is where each batch is trained on
    once; none: 0.2, for gspo 3e-4; cispo has none.
    """
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip of the probability ratio, above 1, which it is where each batch is trained on
    once; none: 0.28, for gspo 4e-4, for cispo 4.
    """
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest loss of a token with a negative weight, as a multiple of it; none:
    unbounded (paper).
    """
    kl_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the divergence from the starting policy; 0: none, and no second model is held
    (paper).
    """
    old_logprobs: Literal["trainer", "engine"] = "trainer"
    """Denominator of the ratio: trainer, log-probs that it computes before the first optimiser
    step; engine, those that were recorded when the tokens were sampled. With --from, trainer
    without a correction is for steps whose tokens the very weights sampled that take it, and the
    others go by engine.
    """
    engine_difference_limit: float | None = Field(default=None, gt=0)
    """Nats of engine_difference above which a step on the newest weights' tokens stops the run;
    none: 5e-4 in float32, 0.05 in half precision, 0.15 with weights in 8 bits, 0.5 in 4.
    """
    correction: Literal["none", "token", "sequence"] = "none"
    """Weigh the loss by trainer's over engine's probability, so that tokens of an engine that
    rounds otherwise, or of older weights, count as the trainer's own: by token, or by whole
    rollout.
    """
    correction_mode: Literal["truncate", "mask"] = "truncate"
    """What becomes of a correction above the cap: truncate, the cap; mask, 0."""
    correction_cap: float = Field(default=2.0, gt=0)
    """Largest correction."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Tokens sampled by weights more than this many versions back are not trained on; none: all
    are.
    """
    forward: Literal["padded", "packed", "tree"] = "padded"
    """How rollouts go through the model: padded, side by side; packed, one after the other without
    padding; tree, what siblings share (their prompt, a first turn) once. The same loss and
    gradients, but for rounding.
    """
    micro_batch_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Most tokens, padding included, of one forward pass. By the model: as many as 4 GiB hold, 4096
    at most.
    """

    @model_validator(mode="after")
    def _goes_together(self, info: ValidationInfo) -> Self:
        if self.objective == "cispo" and self.clip_low is not None and info.context == ON_RECORD:
            return self.model_copy(update={"clip_low": None})  # an earlier version wrote it down
        for key, acts in (
            ("dual_clip", self.objective == "clipped"),
            ("clip_low", self.objective != "cispo"),
        ):
            if getattr(self, key) is not None and not acts:
                raise ConfigError(
                    f"{key} has no effect here: the objective is {self.objective}.", "Leave it out."
                )
        if self.correction != "none" and self.old_logprobs == "engine":
            raise ConfigError(
                "correction has no effect here: with old_logprobs engine the ratio is the engine's"
                " already.",
                "Take old_logprobs trainer, or leave correction out.",
            )
        return self

    @field_serializer("aggregation", "clip_high", "clip_low", when_used="json")
    def _as_taken(self, value: Any, info: FieldSerializationInfo) -> Any:
        """Serialise the value in use; a configuration that others are merged with keeps its
        None.
        """
        return self.own(info.field_name or "") if value is None else value

    def taken(self, key: str) -> Any:
        """The value of a key, or what the objective has of its own where none was given."""
        given = getattr(self, key)
        return self.own(key) if given is None else given

    def own(self, key: str) -> Any:
        """The objective's own value of a key that was not given (None: no objective has one)."""
        return getattr(OWN[self.objective], key, None)


class EnginesPart(ConfigPart):
    """What samples the rollouts."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """transformers, this process with the very weights that are trained; vllm, servers that are
    given the weights after each update, and are proved to sample with them.
    """
    servers: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """A vLLM server that takes weights (docs/scale.md), as vllm:http://HOST:PORT/v1; repeatable."""
    server_count: int = Field(default=0, ge=0)
    """vLLM servers to be started on this machine, each on one GPU where there are any; 0, and none
    named: 1.
    """
    server_python: str = ""
    """Interpreter of the environment that has vLLM, for servers started here; empty: this one."""
    server_options: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Further option of `vllm serve` for servers started here, such as
    --server-options=--max-model-len=8192; repeatable.
    """
    assign: Literal[
        "expected_peak", "least_requests", "safe_maximum", "static_prompts", "static_rollouts"
    ] = "expected_peak"
    """Which rollouts are on which server at a time: expected_peak, as many as their caches hold at
    the peak that the last step's lengths foretell; safe_maximum, as many as hold the longest
    (paper); the others all at once, by fewest requests, or split by prompts or by rollouts.
    """
    weights_by: Literal["file", "collective"] = "file"
    """How servers get the weights: file, a file in weights_folder; collective, the trainer sends
    them to each server's workers, over the network by gloo, or from GPU to GPU by NCCL where each
    rank has its own.
    """
    weights_address: str = ""
    """Address of this machine that servers reach, for weights by a collective; empty: the one
    towards each server.
    """
    weights_folder: str = ""
    """Folder that this machine and the servers see, for weights; empty: this machine's memory."""
    publish_tolerance: float | None = Field(default=None, gt=0)
    """How far log-probs of a server may be from the trainer's after a publish; none: 1e-4 at most
    in float32, 0.05 on average in half precision.
    """
    unproved_weights: bool = False
    """Go on where some weights of a server cannot be compared with the trainer's; they are named
    either way.
    """
    server_patience: float = Field(default=600.0, gt=0)
    """Seconds that rollouts wait for a server when none is there, after which the run ends, and can
    be resumed; and for one that says nothing of a request, after which its rollouts go on in
    others.
    """

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        own = ("server_python", "server_options")
        for key in (key for key in type(self).model_fields if key != "engine"):
            if getattr(self, key) == type(self).model_fields[key].default:
                continue
            if self.engine != "vllm":
                raise ConfigError(
                    f"{key} has no effect here: no server samples.", "Set engine to vllm."
                )
            if key in own and self.servers and not self.server_count:
                raise ConfigError(
                    f"{key} has no effect here: no server is started, since some are named.",
                    "Set server_count.",
                )
        sent = self.weights_by == "collective"
        for key, acts in (("weights_folder", not sent), ("weights_address", sent)):
            if getattr(self, key) and not acts:
                raise ConfigError(
                    f"{key} has no effect here: weights_by is {self.weights_by}.", "Leave it out."
                )
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
        """Servers to be started."""
        return self.server_count if self.servers or self.server_count else 1


class AdapterPart(ConfigPart):
    """What is trained in place of all weights, on a model that stays as it is."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank of a LoRA adapter, which is trained and saved alone (the model may be loaded with
    ?load=nf4); 0: none, all weights are trained (paper: none).
    """
    lora_alpha: float | None = Field(default=None, gt=0)
    """What the adapter adds is scaled by this over its rank; none: twice the rank."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of a layer's inputs that the adapter does not see in a forward pass of the training; 0:
    it sees all. Not where log-probs are compared.
    """
    lora_targets: Annotated[tuple[str, ...], ONE_BY_ONE] = ("all-linear",)
    """Layer that the adapter is on, such as q_proj; repeatable. all-linear: all but the output
    layer and the router of a mixture of experts.
    """
    lora_roles: Annotated[tuple[str, ...], ONE_BY_ONE] = ()
    """Role, the node that asked, with an adapter of its own, such as plan; repeatable. All others
    share one; none named: all roles do.
    """

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        for key in ("lora_alpha", "lora_dropout", "lora_targets", "lora_roles"):
            if not self.lora_rank and getattr(self, key) != type(self).model_fields[key].default:
                raise ConfigError(
                    f"{key} has no effect here: there is no adapter.",
                    "Set lora_rank, 8 for example.",
                )
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
        """`lora_alpha`, as it is to be taken."""
        return 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha


class OptimPart(ConfigPart):
    """How the weights are changed."""

    optimizer: Literal["adamw", "adamw8bit"] = "adamw"
    """adamw8bit: AdamW that keeps its means of gradients in 8 bits, a quarter of the memory; by
    bitsandbytes.
    """
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights, in the trainer and its engine; bfloat16: what is trained has masters in
    float32, which the optimiser changes.
    """
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass: the memory of one layer's activations for a third
    more arithmetic.
    """
    sharding: Literal["none", "ddp", "fsdp2"] = "none"
    """How several processes, started by torchrun, train together: none, there is one process; ddp,
    each holds all weights and the whole optimiser; fsdp2, each holds a share of both, and beside it
    the weights it samples with.
    """

    learning_rate: Annotated[float | None, BY_MODEL] = Field(default=None, gt=0)
    """AdamW's learning rate between warm-up and cool-down (paper: 1e-6 for 14B parameters). By the
    model: by its size, 5e-6 to 1e-6, of an adapter ten times as much; the small built-in policies
    bring their own, 5e-4.
    """
    warmup_steps: int = Field(default=0, ge=0)
    """First steps, at most all, in which the learning rate rises linearly to its full value; 0:
    none (paper: 20).
    """
    cooldown: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, the last ones, in which the learning rate falls to almost nothing (demo:
    0.67); 0: it stays (paper), and the run can be prolonged later: with another number of steps a
    fall would have begun elsewhere.
    """
    fall: Literal["linear", "cosine"] = "linear"
    """The line along which the learning rate falls in the cool-down."""
    least_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of the full learning rate that it never falls below in the cool-down."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay, times the learning rate in each step; 0: none."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """L2 norm that the gradient of a step is scaled down to where it is larger."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean of gradients."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the mean of squared gradients."""
    mini_batches: int = Field(default=1, ge=1)
    """Optimiser steps of a batch of rollouts, each on a part of it (paper: 1)."""
    epochs: int = Field(default=1, ge=1)
    """Times that a batch is trained on (paper: 1)."""


class CheckpointSettings(BaseModel):
    """Which states of a training are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    checkpoints: int = Field(default=2, ge=1)
    """Checkpoints that are kept, the newest ones:
    a damaged one is passed over for the one before.
    """
    checkpoint_every: int = Field(default=1, ge=1)
    """Steps from one checkpoint to the next; what comes after the last one is taken again when a
    run is resumed.
    """


class KeepPart(ConfigPart, CheckpointSettings):
    """Which states of the run are kept."""


class EvaluationPart(ConfigPart):
    """Held-out problems while a run goes on."""

    eval_every: int = Field(default=0, ge=0)
    """Steps from one evaluation on held-out problems to the next; 0: none. The best weights go to
    RUN/best.
    """
    eval_problems: int = Field(default=64, ge=1)
    """Held-out problems of an evaluation, the same each time, at the temperature of training."""
    patience: int = Field(default=0, ge=0)
    """The run ends after so many evaluations without a better one; 0: it takes all its steps."""


class TrainingStage(BaseModel):
    """A stretch of a training, with what is other in it than in the whole. What is none is as in
    the whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = ""
    """What the stage is called in reports; empty: its number."""
    steps: int = Field(ge=1)
    """Optimiser steps; a stage that ends on a plateau takes as many at most."""
    tasks: str | None = None
    """Family of tasks."""
    problems: int | None = Field(default=None, ge=1)
    """Size of the pool that tasks are drawn from."""
    rollout_tokens: int | None = Field(default=None, ge=1)
    """Most completion tokens of a whole rollout: `max_tokens` of the graph's context."""
    turns: int | None = Field(default=None, ge=1)
    """Most turns of a rollout: `max_turns` of the graph's context."""
    context: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further options of the graph, over those of the whole."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate between warm-up and cool-down. Each stage has a cool-down; a warm-up, where the
    optimiser begins afresh.
    """
    reset_optimizer: bool = False
    """Begin with a fresh state of the optimiser."""
    leave_out_solved: int = Field(default=0, ge=0)
    """Before the stage, roll out so many times each problem of the pool, and leave out those that
    were right each time (paper: 8 in stage 3); 0: none is left out.
    """
    plateau: int = Field(default=0, ge=0)
    """The stage ends after so many steps in which the share of right rollouts reached no new best;
    0: never early.
    """
