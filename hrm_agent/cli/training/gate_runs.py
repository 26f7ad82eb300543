"""Recorded runs that a gate can repeat, with the options that they had."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hrm_agent.cli.runs.replay import recorded_sampling
from hrm_agent.cli.runs.run import RunConfig, as_given, context_given, kept_options, known_config
from hrm_agent.config import COMMAND_KEY, CONFIG_FILE, build_config, read_config_file
from hrm_agent.environment import Environment
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models import Backend, load_policy
from hrm_agent.models.loading.policy_loader import load_without_retries
from hrm_agent.models.model_string import parse_model
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.runtime.execution.conversation import RECORDED
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.execution.run_context import NOT_KEPT
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.runtime.settings import RunnerOptions
from hrm_agent.store import RunStore
from hrm_agent.store.run_store import own_run
from hrm_agent.training.analysis.gate_repeats import RecordedRun
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.rollout.rollout import recorded_seed
from hrm_agent.training.tasks import run_verifier_of, verifier_of
from hrm_agent.training.tasks.own_verifier import verifier_spec
from hrm_agent.trajectory import (
    TASK_INPUTS,
    RunStatus,
    StopReason,
    Trajectory,
    derive_seed,
    step_in_name,
)

__all__ = ["RunsToRepeat", "Wanted", "runs_to_repeat", "scorer_of"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """New agent, and the runs to repeat with it."""

    where: str
    """Store or run folder."""
    run: str
    """Only the trajectories of this run (empty: all)."""
    graph: str
    """Graph of the new agent (empty: the recorded one)."""
    policy: str
    """Policy of the new agent (empty: the recorded one)."""
    stand_in: bool
    """True if the policy answers for models that the graph holds itself."""
    sampling: Mapping[str, Any]
    """Sampling parameters that were given."""
    context: Mapping[str, Any]
    """Options of the graph, over the recorded ones."""
    configurable: Mapping[str, Any]
    """Values of config["configurable"], over the recorded ones."""
    retries: bool
    """True if a provider's client may repeat a failed request."""


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


def runs_to_repeat(
    source: RunStore, wanted: Wanted, store: RunStore, environment: Environment
) -> RunsToRepeat:
    """Select the runs of `source`. `store`: store of their repetitions. Raises `RunError` if there
    are none.
    """
    found = RunsToRepeat()
    _read_folder(found, wanted.where)
    headers = _headers(source, wanted, found.trained)
    graphs = dict.fromkeys(each.graph for each in headers)
    if wanted.graph:
        if len(graphs) > 1:
            raise ConfigError(
                f"The runs are of several graphs, {', '.join(graphs)}: --graph would compare them"
                " with one agent.",
                "Name the runs of one of them: --run NAME.",
            )
        load_graph(wanted.graph, wanted.configurable)
    sampled = {each.thread for each in samples_of(headers)}
    if wanted.policy:  # reports a wrong name before anything is repeated
        _load(wanted.policy, wanted)
    runners = dict[str, EpisodeRunner]()
    for header in headers:
        if reason := _cannot(header, sampled):
            found.left_out[reason].append(header.thread_id)
            continue
        whole = source.journal.with_calls(header, requests=False)
        values = known_config(source, whole)
        config = build_config(RunConfig, values, f"of thread {header.thread_id!r}")
        graph = wanted.graph or header.graph
        recorded = config.policy if found.trained is None else str(found.folder or "") + "/model"
        policy = wanted.policy or recorded
        found.policies[recorded] = None
        options = _options(found, source, whole, config, wanted)
        key = f"{policy} {options}"
        if key not in runners:
            runners[key] = EpisodeRunner(store, policy, policy, environment, **options)
        runner = runners[key]
        configurable = {**config.configurable, **wanted.configurable}
        config = config.model_copy(update={"configurable": configurable})
        seed = recorded_seed(
            whole, found.trained.seed if found.trained else values.get("seed") or 0
        )
        found.runs.append(
            RecordedRun(
                header,
                as_given(header.task, config),
                graph,
                {**context_given(header.task, config), **wanted.context},
                seed if seed is not None else derive_seed(0, "gate", header.thread_id),
                runner,
                partial(_live, runner, wanted),
            )
        )
    if not found.runs:
        why = "; ".join(f"{len(each)}: {reason}" for reason, each in found.left_out.items())
        raise RunError(
            f"No run in {wanted.where} can be repeated{f' ({why})' if why else ''}.",
            f"`hrm-agent history --store {wanted.where}` lists them.",
        )
    return found


def _read_folder(found: RunsToRepeat, where: str) -> None:
    """Note the configuration of a run folder."""
    path = Path(where)
    file = path / CONFIG_FILE
    if "://" in where or not file.is_file():
        return
    try:
        command = str(tomllib.loads(file.read_text(encoding="utf-8")).get(COMMAND_KEY))
    except ValueError as error:
        raise RunError(f"{file} cannot be read: {error}.", "Name another run.") from error
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
    else:
        found.rewards = str(values.get("rewards") or "")


def _headers(source: RunStore, wanted: Wanted, trained: GrpoConfig | None) -> list[Trajectory]:
    run_id = wanted.run or own_run(wanted.where)
    where: tuple[str, tuple[str, ...]] = (
        ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
    )
    headers = source.journal.headers(*where)
    if not headers:
        of_run = f" of run {run_id!r}" if run_id else ""
        raise RunError(
            f"There is no run{of_run} in {source.url}.",
            f"`hrm-agent history --store {wanted.where}` lists all runs.",
        )
    if any(is_choice(each.graph) for each in headers):
        raise ConfigError(
            f"{wanted.where} chose each answer among several runs (--mode).",
            "Name a run of --mode single.",
        )
    steps = [step_in_name(each.thread_id, each.run_id) for each in headers]
    last = max((step for step in steps if step is not None), default=None)
    if trained is not None and last is not None:
        return [each for each, step in zip(headers, steps, strict=True) if step == last]
    return headers


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
    found: RunsToRepeat, source: RunStore, whole: Trajectory, config: RunConfig, wanted: Wanted
) -> RunnerOptions:
    """Options of the runner of a run."""
    options = (config if found.trained is None else found.trained).runner_options()
    options["durability"] = "steps"  # places are read from checkpoints
    sampling = options.get("sampling", config.sampling())
    kept = kept_options(source, whole.thread_id) is not None
    if not kept and found.folder is None and whole.task.family != RECORDED:
        sampling = recorded_sampling(whole)
    given = {**sampling.model_dump(exclude_unset=True), **wanted.sampling}
    options["sampling"] = type(sampling).model_validate(given)
    if wanted.stand_in:
        options["stand_in"] = True
    return options


def _live(runner: EpisodeRunner, wanted: Wanted) -> EpisodeRunner:
    """Runner that may ask. A policy that the graphs may never ask is loaded at its first call, so
    that it needs neither weights nor a key.
    """
    asked = parse_model(runner.policy)
    local = asked.local or asked.scheme in ("scripted", "vllm")
    return runner if local else replace(runner, backend=_load(runner.policy, wanted))


def _load(policy: str, wanted: Wanted) -> Backend:
    return load_policy(policy) if wanted.retries else load_without_retries(policy)


def scorer_of(runs: RunsToRepeat, source: RunStore, rewards: str) -> str:
    """Import path of the rubric that scores both sides. Raises `ConfigError` without one."""
    spec = rewards or runs.rewards
    if spec:
        return spec
    tasks = [each.trajectory.task for each in runs.runs]
    folder = runs.folder or source.folder
    if any(run_verifier_of(task) or verifier_of(task, folder) for task in tasks):
        return verifier_spec(tasks)
    raise ConfigError(
        "The runs cannot be scored: their tasks have no verifier, and their run has no rubric.",
        "Name one: --rewards answer:last_number, ./file.py:rubric or package.module:rubric.",
    )
