"""Config models of the commands that collect, evaluate and train: read from a TOML file and flags,
saved with the run.

They stand apart from what they configure so that a command's help needs neither torch nor
langgraph. What suits one model ruins another: a key whose default depends on the model is None
until the model is known (`hrm_agent.training.config.fitted`). The paper's values (rStar2-Agent,
arXiv 2508.20722) stand beside the others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from hrm_agent.config import BY_MODEL, ON_RECORD, in_tables
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.settings import (
    Durability,
    GraphSettings,
    RolloutSettings,
    RunnerOptions,
    RunSettings,
    SelectionSettings,
)
from hrm_agent.training.config.parts import (
    AdapterPart,
    CheckpointSettings,
    EnginesPart,
    EvaluationPart,
    KeepPart,
    LossPart,
    OptimPart,
    RolloutPart,
    SelectPart,
    StoreUrl,
    TrainingStage,
)
from hrm_agent.training.config.rules import (
    QUOTA_KEYS,
    conditions,
    ratio_moves,
    refuse_uncorrected,
    refuse_with_ranks,
)
from hrm_agent.training.config.trackers import TRACK_KEYS, TrackSettings

__all__ = [
    "FREE_IN_TRAINING",
    "FREE_ON_RESUME",
    "CollectConfig",
    "DemoConfig",
    "FineTuneConfig",
    "GrpoConfig",
    "SftConfig",
]

FREE_ON_RESUME = frozenset(
    {
        *(
            "allow",
            "checkpoint_every",
            "checkpoints",
            "concurrency",
            "environment",
            "isolation",
            "processes",
            "ray",
        ),
        *(
            "keep.checkpoint_every",
            "keep.checkpoints",
            "optim.sharding",
            "rollout.processes",
            "rollout.ray",
        ),
        *(f"engines.{key}" for key in EnginesPart.model_fields if key != "engine"),
        *(*TRACK_KEYS, "otel", "otel_content"),
    }
)
"""Keys that decide how a run is carried out and not its result:
they may change when it is resumed.
"""
FREE_IN_TRAINING = FREE_ON_RESUME | {
    "data",
    "steps",
    "engine_difference_limit",
    "loss.engine_difference_limit",
}
"""Keys that may change when a training is resumed. It looks at data and steps itself: a run may be
prolonged.
"""

TANK = (
    "A tank holds 1200 L. It leaks 2% per hour for 3 hours, then is refilled by 150 L. "
    "Return exactly: 'Answer: <liters>'."
)


class TaskSettings(BaseModel):
    """Which tasks are run, how many at a time, and where they are recorded."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tasks: str = "word_problems"
    """Family of tasks: word_problems, reasoning_gym:NAME, arc_agi, aime:FILE, a file (.jsonl, .csv,
    .parquet), hf:NAME, your own as package.module:attribute or ./file.py:attribute, or mix:...
    """
    rewards: str | None = None
    """Rubric that rollouts are scored by, in place of their task's own verifier:
    package.module:attribute, ./file.py:attribute, or answer:READER[,COMPARISON] such as
    answer:last_number. none: the verifier.
    """
    concurrency: int = Field(default=256, ge=1)
    """Rollouts open at a time."""
    store: StoreUrl | None = None
    """Where to record, as a path or URL; several runs may share one. none: `store.db` in the run's
    folder.
    """


class CollectConfig(TaskSettings, SelectionSettings, RunSettings, GraphSettings, TrackSettings):
    """Which tasks are run, how often, and with which policy."""

    policy: str = "builtin:trained"
    """Model that answers: a built-in policy, a model folder, hf:NAME,
    or a provider's chat model.
    """
    split: Literal["train", "eval"] = "eval"
    """Which tasks of the family: those to train on, or the held-out ones."""
    count: int | None = Field(default=256, ge=1)
    """Number of tasks; none takes all of a finite family."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task."""
    processes: int = Field(default=1, ge=1)
    """Processes that run the graphs, around one engine; 1: the one that has the engine."""
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
    seed: int = 0
    """Decides which tasks are drawn, and is the base of the seeds of all model calls."""

    def runner_options(self) -> RunnerOptions:
        own: RunnerOptions = {
            "repeats_errors": True,
            "durability": self.durability,
            "share_memory": self.share_memory,
        }
        return {**super().runner_options(), **own}


class SftConfig(CheckpointSettings):
    """How a policy is fine-tuned on conversations."""

    steps: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Optimiser steps. By the model: those of three passes over the conversations; the small
    built-in policies bring their own, 400.
    """
    batch_size: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Conversations of one step, over all processes. By the model: 16, or all where there are
    fewer; the small built-in policies bring their own, 64.
    """
    micro_batch_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Most tokens, padding included, that one process holds at a time; a longer conversation goes
    alone. By the model: as many as 4 GiB hold, 8192 at most.
    """
    forward: Literal["padded", "packed"] = "padded"
    """How conversations go through the model: padded, side by side; packed, one after the other
    without padding, each seeing itself alone. The same loss and gradients, but for rounding.
    """
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Muon for the matrices of the layers and AdamW for the rest: fewer steps where a model is
    trained from nothing.
    """
    learning_rate: Annotated[float | None, BY_MODEL] = Field(default=None, gt=0)
    """AdamW's learning rate between warm-up and cool-down. By the model: by its size, 2e-5 or 1e-5,
    of an adapter 1e-4; the small built-in policies bring their own, 3e-3.
    """
    matrix_learning_rate: Annotated[float | None, BY_MODEL] = Field(default=None, gt=0)
    """Muon's learning rate between warm-up and cool-down. By the model: five times AdamW's; the
    small built-in policies bring their own, 0.02.
    """
    warmup_steps: Annotated[int | None, BY_MODEL] = Field(default=None, ge=0)
    """First steps, at most all, in which the learning rate rises linearly to its full value; 0:
    none. By the model: a tenth of the steps, 30 at most; the small built-in policies bring their
    own, 30.
    """
    cooldown: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, the last ones, in which the learning rate falls to almost nothing; 0: it
    stays, and the run can be prolonged later, where it has no fewer steps than its warm-up.
    """
    fall: Literal["linear", "cosine"] = "linear"
    """The line along which the learning rate falls in the cool-down."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of either optimiser, times the learning rate in each step; 0: none."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """L2 norm that the gradient of a step is scaled down to where it is larger."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running mean of the weights, with which the run ends (0.98: of the last 50 steps,
    say); 0: none.
    """
    checkpoint_every: int = Field(default=50, ge=1)
    """Steps from one checkpoint to the next; what comes after the last one is taken again when a
    run is resumed.
    """
    seed: int = 0
    """Decides the order of the conversations."""

    @model_validator(mode="after")
    def _every_key_acts(self, info: ValidationInfo) -> Self:
        """A value that changes nothing is refused; of a run on record, which an earlier version
        took, it stays.
        """
        for key, acts, why in (
            ("matrix_learning_rate", self.optimizer == "muon", "the optimizer is adamw"),
            ("fall", self.cooldown > 0, "without cooldown the learning rate does not fall"),
        ):
            default = type(self).model_fields[key].default
            if not acts and getattr(self, key) != default and info.context != ON_RECORD:
                hint = "Leave it out." if default is None else f"Leave it out, or at {default}."
                raise ConfigError(f"{key} has no effect here: {why}.", hint)
        return self


class FineTuneConfig(SftConfig, TrackSettings):
    """One run of supervised fine-tuning."""

    policy: str = "builtin:cold-start"
    """Where to start: a built-in policy, a model folder, or hf:NAME."""
    data: str = ""
    """JSONL file of conversations, as the first argument; a line: {"messages": [{"role": ...,
    "content": ...}, ...]}
    """
    source: StoreUrl = ""
    """Store, run folder or exported file whose completed runs are learned from in place of data;
    also --from.
    """
    reward: float | None = None
    """With source: only runs with at least this reward; none: all, verified or not."""
    by: str = ""
    """With source: scores that stand for each run's own rewards, by the name of
    `hrm-agent rescore`, or feedback.
    """
    adapter: AdapterPart = AdapterPart()
    """What is trained in place of all weights."""
    roles: tuple[str, ...] = ()
    """With source: only answers of these roles, the nodes that asked, such as solve; also --role.
    Empty: all.
    """

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.source and self.data:
            raise ConfigError(
                "Both a file and --from were named.", "Learn from the one or from the other."
            )
        if self.adapter.lora_roles:
            raise ConfigError(
                "lora_roles is of `train rl`: conversations do not say which role each answer"
                " is of.",
                "Leave it out; the adapter of one role is tuned as FOLDER/ROLE, on its answers"
                " (--role).",
            )
        if not self.source and (self.roles or self.by or self.reward is not None):
            raise ConfigError(
                "reward, by and roles choose among runs on record.",
                "Name the record: --from STORE.",
            )
        return self


class GrpoConfig(TaskSettings, RolloutSettings, GraphSettings, TrackSettings):
    """One run of reinforcement learning. The paper's values stand beside the defaults."""

    policy: str = "builtin:cold-start"
    """Where to start: a built-in policy, a model folder, or hf:NAME."""
    source: tuple[StoreUrl, ...] = ()
    """Stores, run folders or exported files whose runs are learned from, and nothing is sampled;
    also --from.
    """
    by: str = ""
    """With source: scores that stand for each run's own rewards, by the name of
    `hrm-agent rescore`, or feedback.
    """
    steps: int = Field(default=30, ge=1)
    """Optimiser steps (paper: 510 in three stages); with --from, unless given, one pass over what
    is on record.
    """
    max_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Most completion tokens of one reply (paper: 8K to 12K of a whole rollout). By the model: half
    of its context, 2048 at most; the small built-in policies bring their own, 256.
    """
    temperature: float = Field(default=1.0, gt=0)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Sampling temperature of the rollouts, and of the log-probs in the loss; 0 would make all
    rollouts alike.
    """
    seed: int = 0
    """Decides the tasks and their order, the draw of kept rollouts, and the seeds of all model
    calls.
    """
    rollout: RolloutPart = RolloutPart()
    """What is sampled in a step."""
    engines: EnginesPart = EnginesPart()
    """What samples them."""
    select: SelectPart = SelectPart()
    """Which rollouts are trained on."""
    loss: LossPart = LossPart()
    """What is minimised."""
    optim: OptimPart = OptimPart()
    """How the weights are changed."""
    adapter: AdapterPart = AdapterPart()
    """What is trained in place of all weights."""
    keep: KeepPart = KeepPart()
    """Which states of the run are kept."""
    evaluation: EvaluationPart = EvaluationPart()
    """Held-out problems while the run goes on."""
    stages: tuple[TrainingStage, ...] = ()
    """Stretches of the training, one after the other; `steps` is the sum of theirs. Only in a file,
    as [[stages]].
    """

    @classmethod
    def of(cls, **keys: Any) -> Self:
        """A configuration of keys by their own names, whichever table they stand in:
        `of(steps=3, group_size=4)`.
        """
        return cls.model_validate(in_tables(cls, keys))

    def but(self, *, on_record: bool = False, **keys: Any) -> Self:
        """This one with other values, by the keys' own names. `on_record`: it may be of an earlier
        version's run.
        """
        given = in_tables(type(self), {**self.model_dump(), **keys})
        return self.model_validate(given, context=ON_RECORD if on_record else None)

    @model_validator(mode="before")
    @classmethod
    def _in_tables(cls, values: Any, info: ValidationInfo) -> Any:
        """Runs of earlier versions have all keys side by side: on record each goes to its table."""
        if info.context != ON_RECORD or not isinstance(values, dict):
            return values
        return in_tables(cls, cast("dict[str, Any]", values), {"rollout_processes": "processes"})

    @model_validator(mode="after")
    def _every_key_acts(self, info: ValidationInfo) -> Self:
        """A value that changes nothing is refused: who sets it expects something of it.

        An earlier version took it, so that of a run on record is the default.
        """
        unused: dict[str, dict[str, Any]] = {}
        for table, keys, acts, why in conditions(
            self.rollout,
            self.select,
            self.loss,
            self.optim,
            self.evaluation,
            on_record=bool(self.source),
        ):
            part: BaseModel = getattr(self, table)
            for key in keys:
                default = type(part).model_fields[key].default
                own = part.own(key) if isinstance(part, LossPart) else None
                if not acts and getattr(part, key) not in (default, own):
                    unused.setdefault(table, {})[key] = default
                    if info.context == ON_RECORD:
                        continue
                    usual = default if own is None else own
                    hint = "Leave it out." if usual is None else f"Leave it out, or at {usual}."
                    raise ConfigError(f"{key} has no effect here: {why}.", hint)
        for key in QUOTA_KEYS:
            least, half = (
                unused.get("select", {}).get(key, getattr(self.select, key)),
                self.rollout.group_size // 2,
            )
            if least > max(half, SelectPart.model_fields[key].default):
                raise ConfigError(
                    f"{key} = {least} is more than half of group_size = {self.rollout.group_size}.",
                    f"At most {half}.",
                )
        update = {
            table: getattr(self, table).model_copy(update=keys) for table, keys in unused.items()
        }
        return self.model_copy(update=update) if update else self

    @model_validator(mode="after")
    def _passes_go_together(self, info: ValidationInfo) -> Self:
        """Ways to compute that are right alone and wrong together."""
        optim, loss = self.optim, self.loss
        mean = loss.taken("aggregation")
        if loss.credit == "even" and mean == "sequence" and info.context != ON_RECORD:
            raise ConfigError(
                "credit = even does not go with aggregation = sequence: both divide a rollout by"
                " its tokens.",
                "Take one of the two: aggregation = token with even, or sequence with another"
                " credit.",
            )
        if optim.gradient_checkpointing and loss.forward != "padded":
            raise ConfigError(
                f"gradient_checkpointing does not go with forward = {loss.forward}: layers are"
                " computed again when the attention along paths is gone.",
                "Take forward = padded, or smaller micro_batch_tokens without"
                " gradient_checkpointing.",
            )
        if self.adapter.lora_rank and self.engines.weights_by == "collective":
            raise ConfigError(
                "weights_by = collective does not go with lora_rank: an adapter goes to servers as"
                " files.",
                "Leave weights_by out; across hosts name a folder that all see with"
                " weights_folder.",
            )
        several = optim.mini_batches * optim.epochs > 1 or loss.objective == "gspo"
        compared = loss.old_logprobs == "engine" or loss.correction != "none" or self.source
        if self.adapter.lora_dropout and (several or (compared and info.context != ON_RECORD)):
            raise ConfigError(
                "lora_dropout does not go with several optimiser steps a batch, nor with ratios of"
                " whole rollouts or to log-probs of an engine or a record: those are of another"
                " draw of dropout, and the ratio is noise.",
                "Leave it out; or epochs and mini_batches at 1, loss by token, old_logprobs ="
                " trainer, no correction.",
            )
        return self

    @model_validator(mode="after")
    def _older_weights_sample(self) -> Self:
        refuse_uncorrected(self.rollout, self.loss, self.samples)
        refuse_with_ranks(self.rollout, self.optim, self.adapter, on_record=bool(self.source))
        return self

    @model_validator(mode="after")
    def _nothing_is_sampled(self) -> Self:
        """Keys of sampling say nothing here, and are taken: a run's own configuration is, with
        other rewards.
        """
        if not self.source:
            if self.by:
                raise ConfigError(
                    "by chooses scores of runs on record.", "Name the record: --from STORE."
                )
            return self
        if self.by and self.rewards is not None:
            raise ConfigError(
                "Both by and rewards were named.", "Learn from scores on record, or from new ones."
            )
        draws = {
            "engine": self.engines.engine != "transformers",
            "stages": bool(self.stages),
            "refill": bool(self.rollout.refill),
            "engine_difference_limit": self.loss.engine_difference_limit is not None,
            "mastered_after": bool(self.select.mastered_after),
            "eval_every": bool(self.evaluation.eval_every),
        }
        for key in (key for key, given in draws.items() if given):
            raise ConfigError(
                f"{key} has no effect with --from: no problem is drawn, and none is put.",
                "Leave it out.",
            )
        return self

    @model_validator(mode="after")
    def _steps_of_stages(self) -> Self:
        total = sum(stage.steps for stage in self.stages)
        if not self.stages or self.steps == total:
            return self
        if self.steps != type(self).model_fields["steps"].default:
            raise ConfigError(
                f"steps = {self.steps}, and the stages have {total} together.", "Leave steps out."
            )
        return self.model_copy(update={"steps": total})

    @property
    def tasks_of_stages(self) -> tuple[str, ...]:
        """Families of tasks that a stage has in place of `tasks`, each once."""
        own = [
            stage.tasks
            for stage in self.stages
            if stage.tasks is not None and stage.tasks != self.tasks
        ]
        return tuple(dict.fromkeys(own))

    @property
    def same_as_clipped(self) -> str:
        """Why the objective makes no difference here, in one line; empty where it does."""
        loss, optim = self.loss, self.optim
        if loss.objective == "clipped" or ratio_moves(loss, optim, on_record=bool(self.source)):
            return ""
        mean = loss.taken("aggregation")
        return (
            f"Each batch is trained on once, so the ratio is 1 and objective = {loss.objective} has"
            f" the gradient of clipped with aggregation = {mean}. They differ with --mini-batches"
            " or --epochs above 1."
        )

    def runner_options(self) -> RunnerOptions:
        """The policy stands in for every model of the graph, unconstrained: tokens chosen by a
        schema teach nothing.
        """
        own: RunnerOptions = {
            "stand_in": True,
            "constrain": False,
            "own_sampling": True,
            "repeats_errors": True,
        }
        own |= {"durability": self.rollout.durability, "share_memory": self.rollout.share_memory}
        return {**super().runner_options(), **own}

    @property
    def processes(self) -> int:
        """Processes that run the graphs."""
        return self.rollout.processes

    @property
    def ray(self) -> str | None:
        """Address of the Ray cluster that they are on."""
        return self.rollout.ray

    @property
    def samples(self) -> int:
        """Rollouts of a prompt."""
        of_each = 1 if self.select.algorithm == "grpo" else self.rollout.oversampling
        return round(self.rollout.group_size * of_each)


class DemoConfig(BaseModel):
    """One run of the demo. The defaults take some minutes on two cores."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    from_scratch: bool = False
    """Train the cold-start model instead of using the one that the package ships."""
    train: GrpoConfig = GrpoConfig.of(cooldown=0.67)
    """The reinforcement learning between the two evaluations; it cools down for most of the way."""
    eval_problems: int = Field(default=256, ge=1)
    """Held-out problems that the policy is evaluated on, the same before and after training."""
    problem: str = TANK
    """The task that the hierarchical graph solves at the end."""
