"""Config models of the commands that collect, evaluate and train. Values are read from a TOML file
and from flags, and saved with the run.

The models are separate from the code that they configure, so that a command's help needs neither
torch nor langgraph. A value that suits one model may ruin another. So a key whose default depends
on the model is None until the model is known (`hrm_agent.training.config.fitted`). Values of the
paper (rStar2-Agent, arXiv 2508.20722) are given beside the defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from hrm_agent.config import BY_MODEL, ON_RECORD, ONE_BY_ONE, in_tables, is_own
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
    TRACK_KEYS,
    AdapterPart,
    CheckpointSettings,
    EnginesPart,
    EvaluationPart,
    FamilyPart,
    KeepPart,
    LossPart,
    OptimPart,
    RolloutPart,
    SelectPart,
    StoreUrl,
    TrackSettings,
    TrainingStage,
    of_sequences,
)
from hrm_agent.training.config.rules import (
    QUOTA_KEYS,
    ratio_moves,
    refuse_families,
    refuse_teacher,
    refuse_uncorrected,
    refuse_with_forks,
    refuse_with_ranks,
    with_acting_keys,
)

__all__ = [
    "FREE_IN_TRAINING",
    "FREE_ON_RESUME",
    "CollectConfig",
    "DemoConfig",
    "FineTuneConfig",
    "GrpoConfig",
    "OptimizeConfig",
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
            "keep_versions",
            "processes",
            "ray",
        ),
        *(
            "keep.checkpoint_every",
            "keep.checkpoints",
            "keep.keep_versions",
            "optim.sharding",
            "rollout.processes",
            "rollout.ray",
        ),
        *(f"engines.{key}" for key in EnginesPart.model_fields if key != "engine"),
        *(*TRACK_KEYS, "otel", "otel_content"),
    }
)
"""Keys that affect how a run is carried out, but not its result. They may change when the run is
resumed.
"""
FREE_IN_TRAINING = FREE_ON_RESUME | {
    "data",
    "steps",
    "engine_difference_limit",
    "loss.engine_difference_limit",
}
"""Keys that may change when a training is resumed. They include `data` and `steps`, since a run may
be prolonged; the training checks these two itself.
"""

TANK = (
    "A tank holds 1200 L. It leaks 2% per hour for 3 hours, then is refilled by 150 L. "
    "Return exactly: 'Answer: <liters>'."
)


class TaskSettings(BaseModel):
    """Tasks, concurrency and store of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tasks: str = "word_problems"
    """Family of tasks: word_problems, reasoning_gym:NAME, arc_agi, a published evaluation (aime:FILE,
    bfcl:FILE, gpqa:FILE, gsm8k:FILE, ifeval:FILE, math500:FILE), a file (.jsonl, .csv, .parquet),
    hf:NAME, your own as package.module:attribute or ./file.py:attribute, environments as
    openenv:URL or verifiers:NAME, or mix:...
    """
    rewards: str | None = None
    """Rubric that scores rollouts instead of their task's verifier: package.module:attribute,
    ./file.py:attribute, or answer:READER[,COMPARISON] such as answer:last_number (none: the
    verifier).
    """
    concurrency: int = Field(default=256, ge=1)
    """Maximum number of rollouts in progress at a time."""
    store: StoreUrl | None = None
    """Store of the record, as a path or URL. Several runs may share one (none: `store.db` in the
    run's folder).
    """


class OptimizeConfig(TaskSettings, RunSettings, GraphSettings):
    """Search for better prompts of a graph."""

    policy: str = "builtin:trained"
    """Model that answers the graph: a built-in policy, a model folder, hf:NAME, or a provider's chat
    model.
    """
    reflection_policy: str = ""
    """Model that reads the feedback and writes new texts."""
    budget: str = ""
    """Limit of everything that is asked: runs as 200rollouts, tokens as 200000tokens, or money as
    2.50. A reflection counts as a run.
    """
    price: Annotated[list[str], ONE_BY_ONE] = Field(default_factory=list[str])
    """Price of a million prompt tokens and completion tokens, for all models or for one, as
    [MODEL=]PROMPT,COMPLETION; repeatable.
    """
    prompts_of: Annotated[list[str], ONE_BY_ONE] = Field(default_factory=list[str])
    """Prompts to improve, by name, or constants of a module as package.module:SYSTEM; joined by
    commas, or repeated (empty: every prompt of the graph that its runs use).
    """
    train: int = Field(default=24, ge=1)
    """Number of tasks whose runs the reflection model sees."""
    validation: int = Field(default=16, ge=1)
    """Number of other tasks by which the best texts are chosen."""
    test: int = Field(default=32, ge=1)
    """Number of held-out tasks, which are run with the first and with the best texts."""
    minibatch: int = Field(default=3, ge=1)
    """Number of tasks that one reflection sees."""
    reflection_temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of the reflection model (none: 1, or the provider's default)."""
    reflection_max_tokens: int = Field(default=2048, ge=1)
    """Maximum completion tokens of a reflection."""
    seed: int = 0
    """Base of all seeds."""

    @field_validator("prompts_of")
    @classmethod
    def _split(cls, given: list[str]) -> list[str]:
        names = [name.strip() for each in given for name in each.split(",")]
        return [*dict.fromkeys(name for name in names if name)]


class CollectConfig(TaskSettings, SelectionSettings, RunSettings, GraphSettings, TrackSettings):
    """One run of collecting or evaluating rollouts: tasks, samples and policy."""

    policy: str = "builtin:trained"
    """Model that answers: a built-in policy, a model folder, hf:NAME, or a provider's chat model.
    """
    split: Literal["train", "eval"] = "eval"
    """Split of the family: tasks to train on, or held-out ones."""
    count: int | None = Field(default=256, ge=1)
    """Number of tasks (none: all of a finite family)."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task."""
    processes: int = Field(default=1, ge=1)
    """Processes that run the graphs, around one engine (1: only the process of the engine)."""
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
    seed: int = 0
    """Seed of the draw of tasks, and base of the seeds of all model calls."""

    def runner_options(self) -> RunnerOptions:
        own: RunnerOptions = {
            "repeats_errors": True,
            "durability": self.durability,
            "share_memory": self.share_memory,
        }
        return {**super().runner_options(), **own}


class SftConfig(CheckpointSettings):
    """Settings of fine-tuning on conversations."""

    steps: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Optimiser steps. By the model: as many as three passes over the conversations take; for the
    small built-in policies 400.
    """
    batch_size: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Conversations per step, over all processes. By the model: 16, or all if there are fewer; for
    the small built-in policies 64.
    """
    micro_batch_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Maximum number of tokens in a forward pass of one process, padding included. A longer
    conversation is alone in a pass. By the model: as many as fit into 4 GiB, at most 8192.
    """
    forward: Literal["padded", "packed"] = "padded"
    """Layout of conversations in a forward pass. padded: side by side. packed: one after the other
    without padding, where tokens see only their own conversation. Loss and gradients are equal up
    to rounding.
    """
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Optimiser. muon: Muon for the matrices of the layers and AdamW for the rest, which takes
    fewer steps to train a model from scratch.
    """
    learning_rate: Annotated[float | None, BY_MODEL] = Field(default=None, gt=0)
    """AdamW's learning rate between warm-up and cool-down. By the model: 2e-5 or 1e-5, depending on
    its size, and 1e-4 for an adapter; for the small built-in policies 3e-3.
    """
    matrix_learning_rate: Annotated[float | None, BY_MODEL] = Field(default=None, gt=0)
    """Muon's learning rate between warm-up and cool-down. By the model: five times AdamW's rate;
    for the small built-in policies 0.02.
    """
    warmup_steps: Annotated[int | None, BY_MODEL] = Field(default=None, ge=0)
    """Number of steps at the beginning in which the learning rate rises linearly to its full value
    (0: none). By the model: a tenth of the steps, at most 30; for the small built-in policies 30.
    """
    cooldown: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, at the end, in which the learning rate falls to almost 0. With 0 the rate
    does not fall, and the run can be prolonged later, unless its warm-up is longer than the run.
    """
    fall: Literal["linear", "cosine"] = "linear"
    """Shape of the learning rate's fall in the cool-down."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of the optimiser, multiplied by the learning rate in each step (0:
    none).
    """
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum L2 norm of a step's gradient. A larger gradient is scaled down to this norm."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running mean of the weights; the mean replaces the weights at the end of the run
    (0: no mean). With 0.98 the mean covers about the last 50 steps.
    """
    checkpoint_every: int = Field(default=50, ge=1)
    """Steps from one checkpoint to the next. Steps after the last checkpoint are taken again when a
    run is resumed.
    """
    seed: int = 0
    """Seed of the order of conversations."""

    @model_validator(mode="after")
    def _every_key_acts(self, info: ValidationInfo) -> Self:
        return with_acting_keys(self, on_record=info.context == ON_RECORD)


class FineTuneConfig(SftConfig, TrackSettings):
    """One run of supervised fine-tuning."""

    policy: str = "builtin:cold-start"
    """Starting policy: a built-in policy, a model folder, or hf:NAME."""
    data: str = ""
    """JSONL file of conversations. It may also be given as the first argument. Each line is
    {"messages": [{"role": ..., "content": ...}, ...]}
    """
    source: StoreUrl = ""
    """Store, run folder or exported file whose completed runs are learned from, instead of data.
    The flag is also called --from.
    """
    reward: float | None = None
    """Minimum reward of the runs in source that are learned from (none: all runs,
    verified or not).
    """
    by: str = ""
    """Scores that replace the rewards of the runs in source: the name of a `hrm-agent rescore`, or
    feedback.
    """
    adapter: AdapterPart = AdapterPart()
    """LoRA adapter, trained instead of all weights."""
    roles: tuple[str, ...] = ()
    """Roles (nodes that asked the model), such as solve, whose answers in source are learned from
    (empty: all roles). The flag is also called --role.
    """

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.source and self.data:
            raise ConfigError("Both a file and --from were named.", "Name only one of the two.")
        if self.adapter.lora_roles:
            raise ConfigError(
                "lora_roles is of `train rl` only: conversations do not say which role gave an"
                " answer.",
                "Leave lora_roles out. To tune the adapter of one role, name it as policy,"
                " FOLDER/ROLE, and learn from the role's answers (--role).",
            )
        return self


class GrpoConfig(TaskSettings, RolloutSettings, GraphSettings, TrackSettings):
    """One run of reinforcement learning. Values of the paper are given beside the defaults."""

    policy: str = "builtin:cold-start"
    """Starting policy: a built-in policy, a model folder, or hf:NAME."""
    source: tuple[StoreUrl, ...] = ()
    """Stores, run folders or exported files whose runs are learned from. Nothing is sampled. The
    flag is also called --from.
    """
    by: str = ""
    """Scores that replace the rewards of the runs in source: the name of a `hrm-agent rescore`, or
    feedback.
    """
    steps: int = Field(default=30, ge=1)
    """Optimiser steps (paper: 510 in three stages). With --from the default is one pass over the
    runs on record.
    """
    max_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Maximum number of completion tokens in one reply (paper: 8K to 12K in a whole rollout). By
    the model: half of its context window, at most 2048; for the small built-in policies 256.
    """
    temperature: float = Field(default=1.0, gt=0)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Sampling temperature of the rollouts, and of the log-probs in the loss. It must be above 0,
    since at 0 all rollouts of a prompt are alike.
    """
    seed: int = 0
    """Seed of the tasks and their order, of the draw of kept rollouts, and of all model calls."""
    rollout: RolloutPart = RolloutPart()
    """Rollouts of a step."""
    engines: EnginesPart = EnginesPart()
    """Engines that sample the rollouts."""
    select: SelectPart = SelectPart()
    """Selection of the rollouts that are trained on."""
    loss: LossPart = LossPart()
    """Training loss."""
    optim: OptimPart = OptimPart()
    """Optimiser, precision and learning rate."""
    adapter: AdapterPart = AdapterPart()
    """LoRA adapter, trained instead of all weights."""
    keep: KeepPart = KeepPart()
    """Checkpoints of the run."""
    evaluation: EvaluationPart = EvaluationPart()
    """Evaluation on held-out problems during the run."""
    stages: tuple[TrainingStage, ...] = ()
    """Stages of the training, in order. `steps` is the sum of their steps. Stages can only be given
    in a file, as [[stages]].
    """
    families: tuple[FamilyPart, ...] = ()
    """Families of tasks with settings of their own. They can only be given in a file, as
    [[families]].
    """

    @classmethod
    def of(cls, **keys: Any) -> Self:
        """Return a configuration of the given keys, without naming their tables: `of(steps=3,
        group_size=4)`.
        """
        return cls.model_validate(in_tables(cls, keys))

    def but(self, *, on_record: bool = False, **keys: Any) -> Self:
        """Return a copy with other values of the given keys, without naming their tables.
        `on_record`: True if the configuration may belong to a run of an earlier version.
        """
        given = in_tables(type(self), {**self.model_dump(), **keys})
        return self.model_validate(given, context=ON_RECORD if on_record else None)

    @model_validator(mode="before")
    @classmethod
    def _in_tables(cls, values: Any, info: ValidationInfo) -> Any:
        """Sort the flat keys of a run on record by an earlier version into their tables."""
        if info.context != ON_RECORD or not isinstance(values, dict):
            return values
        return in_tables(cls, cast("dict[str, Any]", values), {"rollout_processes": "processes"})

    @model_validator(mode="after")
    def _every_key_acts(self, info: ValidationInfo) -> Self:
        config = with_acting_keys(self, on_record=info.context == ON_RECORD)
        half = self.rollout.group_size // 2
        for key in QUOTA_KEYS:
            least = getattr(config.select, key)
            if least > max(half, SelectPart.model_fields[key].default):
                raise ConfigError(
                    f"{key} = {least} is more than half of group_size = {self.rollout.group_size}.",
                    f"At most {half}.",
                )
        return config

    @model_validator(mode="after")
    def _passes_go_together(self, info: ValidationInfo) -> Self:
        """Refuse combinations of settings that are each valid alone."""
        optim = self.optim
        loss = self.loss
        mean = loss.taken("aggregation")
        if loss.credit == "even" and mean == "sequence" and info.context != ON_RECORD:
            raise ConfigError(
                "credit = even does not go with aggregation = sequence: both divide a rollout's"
                " weight by its number of tokens.",
                "Take aggregation = token with credit = even, or aggregation = sequence with"
                " another credit.",
            )
        if optim.gradient_checkpointing and loss.forward != "padded":
            raise ConfigError(
                f"gradient_checkpointing does not go with forward = {loss.forward}: the backward"
                " pass computes layers again, when the attention that this forward needs has been"
                " removed.",
                "Take forward = padded. Or leave gradient_checkpointing out, and take smaller"
                " micro_batch_tokens.",
            )
        if self.adapter.lora_rank and self.engines.weights_by == "collective":
            raise ConfigError(
                "weights_by = collective does not go with lora_rank: an adapter goes to servers as"
                " files.",
                "Leave weights_by out. If servers are on other hosts, name a folder that all hosts"
                " see with weights_folder.",
            )
        several = optim.mini_batches * optim.epochs > 1 or of_sequences(loss.objective)
        compared = loss.old_logprobs == "engine" or loss.correction != "none" or self.source
        if self.adapter.lora_dropout and (several or (compared and info.context != ON_RECORD)):
            raise ConfigError(
                "lora_dropout does not go with several optimiser steps on a batch, with ratios of"
                " whole rollouts, or with log-probs of an engine or a record: the two sides of"
                " the ratio would have different draws of dropout, and the ratio would be noise.",
                "Leave lora_dropout out; or set epochs and mini_batches to 1, objective to clipped"
                " or cispo, old_logprobs to trainer and correction to none.",
            )
        return self

    @model_validator(mode="after")
    def _older_weights_sample(self) -> Self:
        least = min(self.of_family(name).samples for name in ("", *(f.name for f in self.families)))
        refuse_uncorrected(self.rollout, self.loss, least)
        if not self.source:
            refuse_with_forks(self.rollout, self.select, self.loss, self.samples)
        refuse_teacher(
            self.loss, self.families, self.engines, self.temperature, self.optim.sharding
        )
        refuse_families(self.families, self.select, self.loss, on_record=bool(self.source))
        if self.by and self.rewards is not None:
            raise ConfigError(
                "Both by and rewards were named.", "Take scores on record (by) or new (rewards)."
            )
        refuse_with_ranks(self.rollout, self.optim, self.adapter, on_record=bool(self.source))
        return self

    @model_validator(mode="after")
    def _steps_of_stages(self) -> Self:
        total = sum(stage.steps for stage in self.stages)
        if not self.stages or self.steps == total:
            return self
        if self.steps != type(self).model_fields["steps"].default:
            raise ConfigError(
                f"steps = {self.steps}, but the stages have {total} together.", "Leave steps out."
            )
        return self.model_copy(update={"steps": total})

    def of_family(self, family: str) -> Self:
        """Configuration with the settings of one family of tasks."""
        own = next((each for each in self.families if each.name == family), None)
        if own is None:
            return self
        select = {"algorithm": own.algorithm or self.select.algorithm}
        other = own.graph not in (None, self.graph)  # options of one graph mean nothing to another
        return self.model_copy(
            update={
                "graph": own.graph or self.graph,
                "context": own.context if other else {**self.context, **own.context},
                "answer_path": (
                    self.answer_path
                    if own.answer_path is None and not other
                    else own.answer_path or ""
                ),
                "rewards": own.rewards or self.rewards,
                "select": self.select.model_copy(update=select),
            }
        )

    @property
    def graphs(self) -> tuple[str, ...]:
        """Graphs of all families, without repeats, the training's own first."""
        own = [each.graph for each in self.families if each.graph is not None]
        return tuple(dict.fromkeys((self.graph, *own)))

    @property
    def rubrics(self) -> tuple[str, ...]:
        """Rubrics of all families, without repeats, the training's own first if it has one."""
        named = (self.rewards, *(each.rewards for each in self.families))
        return tuple(dict.fromkeys(each for each in named if each is not None))

    @property
    def tasks_of_stages(self) -> tuple[str, ...]:
        """Families of tasks that stages use instead of `tasks`, without repeats."""
        own = [
            stage.tasks
            for stage in self.stages
            if stage.tasks is not None and stage.tasks != self.tasks
        ]
        return tuple(dict.fromkeys(own))

    @property
    def same_as_clipped(self) -> str:
        """Reason, in one line, why the objective makes no difference in this configuration (empty
        if it does).
        """
        loss = self.loss
        optim = self.optim
        keys = {**loss.model_dump(), **optim.model_dump(), "source": self.source}
        if loss.objective == "clipped" or is_own(loss.objective) or ratio_moves(keys):
            return ""
        mean = loss.taken("aggregation")
        return (
            f"Each batch is trained on once, so the ratio is 1 and objective = {loss.objective} has"
            f" the gradient of clipped with aggregation = {mean}. They differ with --mini-batches"
            " or --epochs above 1."
        )

    def runner_options(self) -> RunnerOptions:
        """Runner options of a training. The policy replaces every model of the graph. It samples
        without constraints, since tokens chosen by a schema teach nothing.
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
        """Address of the Ray cluster that runs the graphs' processes (None: this machine)."""
        return self.rollout.ray

    @property
    def samples(self) -> int:
        """Rollouts per prompt."""
        of_each = 1 if self.select.algorithm == "grpo" else self.rollout.oversampling
        return round(self.rollout.group_size * of_each)


class DemoConfig(BaseModel):
    """One run of the demo. The defaults take some minutes on two cores."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    from_scratch: bool = False
    """Train the cold-start model instead of using the one that the package ships."""
    train: GrpoConfig = GrpoConfig.of(cooldown=0.67)
    """Reinforcement learning between the two evaluations. Its learning rate falls in most of the
    steps.
    """
    eval_problems: int = Field(default=256, ge=1)
    """Number of held-out problems of each evaluation, the same before and after training."""
    problem: str = TANK
    """Task that the hierarchical graph solves at the end."""
