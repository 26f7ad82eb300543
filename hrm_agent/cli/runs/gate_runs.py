"""Recorded runs that a gate can repeat, with the options that they had."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from hrm_agent.cli.runs.replay import recorded_sampling
from hrm_agent.cli.runs.run import RunConfig, as_given, context_given, kept_options, known_config
from hrm_agent.config import COMMAND_KEY, CONFIG_FILE, build_config, read_config_file
from hrm_agent.environment import Environment
from hrm_agent.environment.isolation import DEFAULT_ISOLATION
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.langgraph_format import INTERRUPT
from hrm_agent.models import Backend, load_policy
from hrm_agent.models.loading.policy_loader import load_without_retries, time_of_weights
from hrm_agent.models.model_string import parse_model
from hrm_agent.prompts import PromptTexts
from hrm_agent.prompts_file import PromptsByName
from hrm_agent.runtime.episode import CONFIGURABLE, EpisodeRunner
from hrm_agent.runtime.execution.conversation import RECORDED
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.execution.run_context import NOT_KEPT
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.runtime.settings import RunnerOptions
from hrm_agent.store import RunStore
from hrm_agent.store.run_store import own_run
from hrm_agent.training.analysis.gate_repeats import RecordedRun, ToolRule
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.config.parts import StoreUrl
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.rollout.eligibility import unanswered_calls
from hrm_agent.training.rollout.rollout import recorded_seed
from hrm_agent.training.tasks import run_verifier_of, verifier_of
from hrm_agent.training.tasks.own_verifier import VERIFIER, verifier_spec
from hrm_agent.trajectory import (
    TASK_INPUTS,
    RunStatus,
    StopReason,
    Trajectory,
    derive_seed,
    step_in_name,
)

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["GateConfig", "RunsToRepeat", "runs_to_repeat", "scorer_of"]


class GateConfig(BaseModel):
    """Options of the command."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    recorded: StoreUrl = ""
    """Store or run folder of the recorded runs."""
    run: str = ""
    """Run whose trajectories are repeated (empty: all of the store, or of the folder's run)."""
    graph: str = ""
    """Graph of the new agent (empty: the recorded one, with its current code)."""
    policy: str = ""
    """Policy of the new agent (empty: the recorded one)."""
    weights: str = ""
    """Sizes and times of the policy's files."""
    stand_in: bool = False
    """Let the policy answer for models that the graph holds itself."""
    rewards: str = ""
    """Rubric of both sides (empty: that of the recorded run, or the tasks' verifiers)."""
    samples: int = 1
    """Samples of the new agent for each run."""
    tools: ToolRule = "recorded"
    """Rule for tool calls."""
    temperature: float | None = None
    """Sampling temperature of the policy (None: that of the run)."""
    max_tokens: int | None = None
    """Maximum completion tokens of one of its replies (None: that of the run)."""
    context: dict[str, Any] = {}
    """Options of the graph, over the recorded ones."""
    configurable: dict[str, Any] = {}
    """Values of config["configurable"], over the recorded ones."""
    prompts: PromptsByName = {}
    """Texts of prompts, over the recorded ones."""
    allow: list[str] = []
    """Types that states may hold."""
    isolation: str = DEFAULT_ISOLATION
    """Minimum isolation of model-written code."""
    environment: str | None = None
    """Environment of model-written code (None: this machine)."""
    margin: float = 0.05
    """Largest difference that is regarded as none."""
    budget: str | None = None
    """Limit of all requests, as text (None: no limit)."""
    price: list[str] = []
    """Prices, as texts."""
    concurrency: int | None = None
    """Maximum number of repetitions in progress at a time (None: 8, or 1 under a budget)."""
    report: str = ""
    """File of the report in Markdown (empty: none)."""
    fail_on: Literal["worse", "undecided"] = "worse"
    """Verdict from which on the exit code is 1."""


@dataclass(slots=True)
class RunsToRepeat:
    """Runs of a store."""

    runs: list[RecordedRun] = field(default_factory=list[RecordedRun])
    """Runs that can be repeated, in the order in which they began."""
    left_out: dict[str, list[str]] = field(
        default_factory=lambda: defaultdict[str, list[str]](list)
    )
    """Reason -> threads that cannot be repeated."""
    policies: dict[str, None] = field(default_factory=dict[str, None])
    """Recorded policies."""
    trained: GrpoConfig | None = None
    """Configuration of a training, if the runs are its rollouts."""
    folder: Path | None = None
    """Folder of the run (None: the runs are not those of a run folder)."""
    rewards: str = ""
    """Rubric of the run folder (empty: none)."""


def runs_to_repeat(source: RunStore, given: GateConfig, environment: Environment) -> RunsToRepeat:
    """Select the runs of `source`. Raises `RunError` for a source without such runs."""
    found = RunsToRepeat()
    _read_folder(found, given.recorded)
    headers = _headers(source, given, found.trained)
    graphs = dict.fromkeys(each.graph for each in headers)
    if given.graph:
        if len(graphs) > 1:
            raise ConfigError(
                f"The runs are of several graphs, {', '.join(graphs)}: --graph would compare them"
                " with one agent.",
                "Name the runs of one of them: --run NAME.",
            )
        load_graph(given.graph, given.configurable)
    if given.prompts:
        for graph in [given.graph] if given.graph else graphs:
            load_graph(graph, given.configurable)  # a graph's modules define its prompts
        PromptTexts(given.prompts)
    if given.policy:  # reports a wrong name before anything is repeated
        _load(given.policy, given)
    runners = dict[str, EpisodeRunner]()
    for header, whole in _repeatable(found, source, headers, given):
        values = known_config(source, whole)
        config = build_config(RunConfig, values, f"of thread {header.thread_id!r}")
        graph = given.graph or header.graph
        recorded = config.policy if found.trained is None else str(found.folder or "") + "/model"
        policy = given.policy or recorded
        found.policies[recorded] = None
        options = _options(found, source, whole, config, given)
        key = f"{policy} {options}"
        if key not in runners:
            runners[key] = EpisodeRunner(source, policy, policy, environment, **options)
        runner = runners[key]
        own = {
            "configurable": {**config.configurable, **given.configurable},
            "prompts": {**config.prompts, **given.prompts},
        }
        config = config.model_copy(update=own)
        seed = recorded_seed(
            whole, found.trained.seed if found.trained else values.get("seed") or 0
        )
        found.runs.append(
            RecordedRun(
                header,
                as_given(header.task, config),
                graph,
                {**context_given(header.task, config), **given.context},
                seed if seed is not None else derive_seed(0, "gate", header.thread_id),
                time_of_weights(policy),
                runner,
                partial(_live, runner, given),
            )
        )
    if not found.runs:
        why = "; ".join(f"{len(each)}: {reason}" for reason, each in found.left_out.items())
        raise RunError(
            f"No run in {given.recorded} can be repeated{f' ({why})' if why else ''}.",
            f"`hrm-agent history --store {given.recorded}` lists them.",
        )
    return found


def _read_folder(found: RunsToRepeat, where: str) -> None:
    """Note the configuration of a run folder, which may be named by its store."""
    path = Path(where)
    if path.name == "store.db" and path.is_file():
        path = path.parent
    file = path / CONFIG_FILE
    if "://" in where or not file.is_file():
        return
    try:
        command = str(tomllib.loads(file.read_text(encoding="utf-8")).get(COMMAND_KEY))
    except ValueError as error:
        raise RunError(f"{file} cannot be read: {error}.", "Name another run.") from error
    if command == "gate":
        raise ConfigError(
            f"{where} is the folder of a gate, and has no recorded runs.",
            "Name the store or the run folder that it repeats.",
        )
    values = read_config_file(file, command)
    found.folder = path
    if command == "train rl":
        found.trained = build_config(GrpoConfig, values, CONFIG_FILE, on_record=True)
        if not (path / "model").is_dir():
            raise RunError(
                f"The training in {path} has not saved its policy yet.",
                f"Continue it: `hrm-agent resume {path}`.",
            )
        rubrics = dict.fromkeys(found.trained.rubrics)
        found.rewards = next(iter(rubrics), None) or "" if len(rubrics) == 1 else ""
    elif command in ("collect", "eval"):
        made = build_config(CollectConfig, values, CONFIG_FILE, on_record=True)
        found.rewards = made.rewards or ""


def _headers(source: RunStore, given: GateConfig, trained: GrpoConfig | None) -> list[Trajectory]:
    run_id = given.run or own_run(given.recorded)
    where: tuple[str, tuple[str, ...]] = (
        ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
    )
    headers = source.journal.headers(*where)
    if not headers:
        of_run = f" of run {run_id!r}" if run_id else ""
        raise RunError(
            f"There is no run{of_run} in {source.url}.",
            f"`hrm-agent history --store {given.recorded}` lists all runs.",
        )
    if any(is_choice(each.graph) for each in headers):
        raise ConfigError(
            f"{given.recorded} chose each answer among several runs (--mode).",
            "Name a run of --mode single.",
        )
    steps = [step_in_name(each.thread_id, each.run_id) for each in headers]
    last = max((step for step in steps if step is not None), default=None)
    if trained is not None and last is not None:
        return [each for each, step in zip(headers, steps, strict=True) if step == last]
    return headers


def _repeatable(
    found: RunsToRepeat, source: RunStore, headers: Sequence[Trajectory], given: GateConfig
) -> Iterator[tuple[Trajectory, Trajectory]]:
    """Runs that can be repeated, as headers and with their calls. Notes the others in `found`."""
    sampled = {each.thread for each in samples_of(headers)}
    for header in headers:
        if reason := _cannot(header, sampled):
            found.left_out[reason].append(header.thread_id)
            continue
        whole = source.journal.with_calls(header, requests=False)
        if unanswered_calls(whole):
            found.left_out["has a request that a model failed to answer"].append(header.thread_id)
            continue
        if _has_asked_a_person(source, header, given):
            found.left_out["asked a person, who is not asked again"].append(header.thread_id)
            continue
        yield header, whole


def _has_asked_a_person(source: RunStore, header: Trajectory, given: GateConfig) -> bool:
    recorded = header.task.metadata.get(CONFIGURABLE) or {}
    graph = load_graph(given.graph or header.graph, {**recorded, **given.configurable})
    where: RunnableConfig = {"configurable": {"thread_id": header.thread_id}}
    return any(
        channel == INTERRUPT
        for checkpoint in source.checkpointer.allowing(graph).list(where)
        for _, channel, _ in checkpoint.pending_writes or ()
    )


def _cannot(header: Trajectory, sampled: set[str]) -> str:
    """Reason why a run cannot be repeated (empty if it can)."""
    metadata = header.task.metadata
    if header.status is RunStatus.RUNNING:
        return "has not ended"
    if header.status is RunStatus.ABORTED:
        return "was stopped from outside"
    if header.stop_reason is StopReason.INTERRUPT:
        return "waits for an answer of a person"
    if header.forked_from is not None:
        return "is a fork of another run"
    if header.thread_id not in sampled:
        return "was run once more after a machine had failed"
    if header.turns:
        return "has later turns, which are not repeated"
    if not header.graph:
        return "names no graph"
    if header.task.family == RECORDED and TASK_INPUTS not in metadata:
        return "has an input that is not recorded"
    if NOT_KEPT in metadata:
        return "has options that are not recorded"
    return ""


def _options(
    found: RunsToRepeat, source: RunStore, whole: Trajectory, config: RunConfig, given: GateConfig
) -> RunnerOptions:
    """Options of the runner of a run."""
    options = (config if found.trained is None else found.trained).runner_options()
    options["durability"] = "steps"  # places are read from checkpoints
    sampling = options.get("sampling", config.sampling())
    kept = kept_options(source, whole.thread_id) is not None
    if not kept and found.folder is None and whole.task.family != RECORDED:
        sampling = recorded_sampling(whole)
    parameters = {**sampling.model_dump(exclude_unset=True), **_sampling(given)}
    options["sampling"] = type(sampling).model_validate(parameters)
    if given.stand_in:
        options["stand_in"] = True
    return options


def _sampling(given: GateConfig) -> dict[str, Any]:
    """Sampling parameters that were given."""
    named = {"temperature": given.temperature, "max_tokens": given.max_tokens}
    return {name: value for name, value in named.items() if value is not None}


def _live(runner: EpisodeRunner, given: GateConfig) -> EpisodeRunner:
    """Runner that may ask. A policy that the graphs may never ask is loaded at its first call, so
    that it needs neither weights nor a key.
    """
    asked = parse_model(runner.policy)
    local = asked.local or asked.scheme in ("scripted", "vllm")
    return runner if local else replace(runner, backend=_load(runner.policy, given))


def _load(policy: str, given: GateConfig) -> Backend:
    return load_policy(policy) if given.budget is None else load_without_retries(policy)


def scorer_of(runs: RunsToRepeat, source: RunStore, rewards: str) -> str:
    """Import path of the rubric that scores both sides. Raises `ConfigError` without one."""
    spec = rewards or runs.rewards
    if spec and spec != VERIFIER:
        return spec
    tasks = [each.trajectory.task for each in runs.runs]
    folder = runs.folder or source.folder
    if any(run_verifier_of(task) or verifier_of(task, folder) for task in tasks):
        return verifier_spec(tasks)
    raise ConfigError(
        "The runs cannot be scored: their tasks have no verifier, and their run has no rubric.",
        "Name one: --rewards answer:last_number, ./file.py:rubric or package.module:rubric.",
    )
