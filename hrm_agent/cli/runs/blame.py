"""`hrm-agent blame`: the step that lost a run, by forks of its moments."""

from __future__ import annotations

import argparse
import asyncio
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import isnan
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.run_folder import existing_store
from hrm_agent.cli.runs.run import RunConfig, known_config
from hrm_agent.config import CONFIG_FILE
from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.models import DEFAULT_POLICY
from hrm_agent.models.loading.policy_loader import stamp_of_weights
from hrm_agent.rewards import load_rubric, opened_scorer
from hrm_agent.runtime.episode import EpisodeRunner, policy_for
from hrm_agent.runtime.execution.run_context import options_on_record
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.runtime.time_travel.fork import history
from hrm_agent.store import RunStore
from hrm_agent.store.run_store import own_run
from hrm_agent.training.analysis.blame import Blame, BlamedRun, Fall, blame
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.scoring import (
    OF_OWN_CALLS,
    reward_environment,
    rollouts_of,
    scoring_by,
)
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.training.tasks import run_verifier_of, verifier_of
from hrm_agent.trajectory import DropReason, RunStatus, Trajectory
from hrm_agent.trajectory.decisions import blame_run_id, decisions

__all__ = ["BlameConfig", "run"]

_USUAL = ("policy", "temperature", "max-tokens", "environment", "seed")
_OF_THE_RUN = ("graph", "context", "configurable", "answer_path", "mode", "n", "width")
"""Options that a fork inherits from its run."""


class BlameConfig(RunConfig):
    """Options of the forks: those of their runs, unless flags name others."""

    policy: str = DEFAULT_POLICY
    """Policy that samples the forks; by default that of the runs."""
    seed: int | None = 0
    """Base of the seeds of the forks: equal commands read back equal forks."""


def run(words: list[str]) -> int:
    """Return 1 if no step is to blame."""
    parser = Parser(
        "blame",
        "Say which step lost a run: the value of each moment is the mean outcome of forks from it.",
    )
    parser.add_argument("store", help="a run folder, or a store")
    parser.add_argument(
        "thread", nargs="*", help="threads or trajectories [the first runs that are not right]"
    )
    parser.add_argument("--forks", type=int, default=8, help="forks of each moment [8]")
    parser.add_argument(
        "--most", type=int, default=20, help="runs to look at, if no thread is named [20]"
    )
    parser.add_argument(
        "--rewards",
        metavar="RUBRIC",
        help="rubric that scores the runs and their forks [that of the run]",
    )
    parser.add_argument("--concurrency", type=int, default=64, help="forks at a time [64]")
    add_config(parser, BlameConfig, _USUAL)
    arguments = parser.read(words)
    for name in ("forks", "most", "concurrency"):
        if getattr(arguments, name) < 1:
            raise ConfigError(
                f"--{name} {getattr(arguments, name)} is below 1.", f"Write --{name} 8."
            )
    for name in _OF_THE_RUN:
        if vars(arguments)[f"config:{name}"]:
            raise ConfigError(
                f"blame does not take --{name.replace('_', '-')}: forks continue with the graph and"
                " the options of their run.",
                "Leave it out. `hrm-agent fork` makes forks with other options.",
            )
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store) as store:
        chosen = _chosen(store, arguments)
        config = _config(store, chosen, arguments)
    if arguments.dry_run:
        print_config(config, "run", as_json=arguments.json)
        return 0
    with existing_store(arguments.store, config.allowed_types, writes=True) as store:
        found = asyncio.run(_blamed(store, chosen, config, arguments))
    return _report(output, found, arguments.store)


def _chosen(store: RunStore, arguments: argparse.Namespace) -> list[Trajectory]:
    """Runs to look at: those that are named, or the first ones whose recorded score is not right."""
    if arguments.thread:
        anew = arguments.rewards is not None
        return [_named(store, name, anew=anew) for name in arguments.thread]
    run_id = own_run(arguments.store)
    where: tuple[str, tuple[str, ...]] = (
        ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
    )
    wrong = [
        each
        for each in store.journal.headers(*where)
        if each.forked_from is None
        and not is_choice(each.graph)
        and not each.turns
        and fault_of(each) is None
        and not is_positive(outcome_of(each))
    ]
    if not wrong:
        raise RunError(
            f"No run in {arguments.store} was judged and is wrong.",
            f"Name a thread: `hrm-agent history --store {arguments.store}` lists them.",
        )
    return [store.journal.trajectory(each.id) for each in wrong[: arguments.most]]


def _named(store: RunStore, name: str, *, anew: bool) -> Trajectory:
    """Trajectory of a thread that can be blamed. `anew`: it will be scored again."""
    found = store.journal.find_trajectory(name)
    if found is None:
        known = [each.thread_id for each in store.threads()]
        raise RunError(
            f"Thread {name!r} is missing in {store.url}. {nearest(name, known)}".strip(),
            f"`hrm-agent history --store {store.url}` lists what there is.",
        )
    if is_choice(found.graph):
        raise RunError(
            f"Thread {found.thread_id!r} has the result of --mode. The steps of the task are in"
            " its runs.",
            f"Name one of the runs, such as {found.thread_id}/0.",
        )
    if found.turns:
        raise RunError(
            f"Thread {found.thread_id!r} is a conversation of several turns.",
            "Name a run of one task, whose answer is scored.",
        )
    if found.status is RunStatus.RUNNING:
        raise RunError(
            f"Thread {found.thread_id!r} has not ended.",
            f"Continue it: `hrm-agent resume {found.thread_id}`.",
        )
    fault = fault_of(found)
    if fault is not None and not (anew and fault[0] is DropReason.NOT_SCORED):
        raise RunError(
            f"Thread {found.thread_id!r} cannot be judged: {fault[1]}.",
            "Name a rubric that scores it: --rewards ./file.py:rubric."
            if fault[0] is DropReason.NOT_SCORED
            else "Name a run that ended by itself.",
        )
    return found


def _config(
    store: RunStore, chosen: Sequence[Trajectory], arguments: argparse.Namespace
) -> BlameConfig:
    """Options of the forks: those of the runs, which must have the same, with the flags."""
    options = [known_config(store, each) for each in chosen]
    own = ("seed", "context", "configurable")
    shared = {name: value for name, value in options[0].items() if name not in own}
    for each, other in zip(chosen, options, strict=True):
        for name, value in shared.items():
            if other.get(name) != value:
                raise ConfigError(
                    f"{each.thread_id} was run with {name} = {other.get(name)}, and"
                    f" {chosen[0].thread_id} with {value}.",
                    "Name threads that were run alike.",
                )
    config = config_from(arguments, BlameConfig, "run", shared)
    trained = [each for each in chosen if each.policy_version]
    if trained and not vars(arguments)["config:policy"]:
        raise ConfigError(
            f"{trained[0].thread_id} was sampled by weights of a training (version"
            f" {trained[0].policy_version}), and {config.policy} has others.",
            "Name the policy that is to go on from its moments, such as --policy RUN/model.",
        )
    if config.temperature == 0:
        raise ConfigError(
            "At temperature 0 all forks of a moment are equal, and their mean says nothing.",
            "Give another: --temperature 1.",
        )
    return config.model_copy(update={"mode": "single"})


def _rubric(
    store: RunStore, chosen: Sequence[Trajectory], arguments: argparse.Namespace
) -> str | None:
    """Rubric of the run whose folder was named, unless a flag names one. A person's fork of the run
    has no run of its own.
    """
    if arguments.rewards is not None:
        return arguments.rewards
    folder = Path(arguments.store)
    folder = folder if folder.is_dir() else store.folder
    file = folder / CONFIG_FILE
    if not file.exists() or not {each.run_id for each in chosen} <= {"", own_run(str(folder))}:
        return None
    named = tomllib.loads(file.read_text(encoding="utf-8")).get("rewards")
    return None if named == "none" else named


async def _blamed(
    store: RunStore,
    chosen: Sequence[Trajectory],
    config: BlameConfig,
    arguments: argparse.Namespace,
) -> list[Blame]:
    rewards = _rubric(store, chosen, arguments)
    if rewards is not None:
        rubric, _ = load_rubric(rewards)
        outcome = next(part for part in rubric.parts if part.name == rubric.outcome)
        if unfit := sorted(outcome.wants & OF_OWN_CALLS):
            raise ConfigError(
                f"The outcome of {rewards} reads {', '.join(unfit)}, which for a fork are only"
                " those after its moment.",
                "Name a rubric whose outcome reads the text, the task or the state: --rewards.",
            )
    runs = list[BlamedRun]()
    for each in chosen:
        try:
            runs.append(_with_moments(store, each, rewards))
        except RunError as error:
            if arguments.thread:
                raise
            remark(f"left out: {error.message}")
    if not runs:
        raise RunError(f"None of {len(chosen)} runs can be forked.", "The lines above say why.")
    if arguments.rewards is not None:
        runs = await _scored_anew(store, runs, arguments.rewards, config)
    backend = policy_for(config.policy, config.graph, stand_in=config.stand_in)
    total = sum(len(each.decisions) for each in runs) * arguments.forks
    depends = config.model_dump_json(exclude={"seed", "policy", "otel", "otel_content"})
    key = f"{depends} {rewards} {stamp_of_weights(config.policy)}"
    scored_by = CollectConfig(
        rewards=rewards, environment=config.environment, isolation=config.isolation
    )
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    remark(f"{total} forks of {count}, recorded as run {blame_run_id(chosen[0].run_id)}")
    async with (
        EpisodeRunner.open(store, config.policy, config, backend=backend) as runner,
        scoring_by(scored_by, store) as score,
    ):
        with progress("forks", total) as advance:
            return await blame(
                runner,
                runs,
                score,
                forks=arguments.forks,
                seed=config.seed or 0,
                key=key,
                concurrency=arguments.concurrency,
                on_done=lambda _: advance(""),
            )


async def _scored_anew(
    store: RunStore, runs: Sequence[BlamedRun], rewards: str, config: BlameConfig
) -> list[BlamedRun]:
    """Runs with the outcome that the rubric gives them now. Nothing is stored."""
    found = list[BlamedRun]()
    async with opened_scorer(rewards, environment=reward_environment(config)) as scorer:
        for each in runs:
            (scoring,) = await scorer.score(rollouts_of(scorer.rubric, store, [each.trajectory]))
            if scoring.fault:
                raise RunError(
                    f"{rewards} cannot score {each.trajectory.thread_id}: {scoring.fault}",
                    "Mend the rubric, or name another one.",
                )
            scored = each.trajectory.model_copy(update=scoring.as_rewards)
            found.append(replace(each, trajectory=scored))
    return found


def _with_moments(store: RunStore, each: Trajectory, rewards: str | None) -> BlamedRun:
    verify = verify_run = None
    if rewards is None:
        verify = verifier_of(each.task, store.folder)
        verify_run = run_verifier_of(each.task)
        if verify is None and verify_run is None:
            raise RunError(
                f"The task of {each.thread_id} has no verifier, so that its forks cannot be"
                " scored.",
                "Name a rubric: --rewards ./file.py:rubric.",
            )
    decided = decisions(each)
    if not decided:
        raise RunError(
            f"Thread {each.thread_id!r} has no step of its graph on record that asked a model.",
            "Name a run whose graph asks a model.",
        )
    found = history(store, each.thread_id, branches=False, values=False)
    known = {moment.checkpoint_id for moment in found.moments}
    if gone := [decision for decision in decided if decision.checkpoint_id not in known]:
        raise RunError(
            f"The checkpoints before {len(gone)} of the {len(decided)} steps of {each.thread_id!r}"
            " were deleted.",
            "Name a run whose checkpoints are kept.",
        )
    context = options_on_record(store, each.thread_id, each.task).context or {}
    moments = {moment.checkpoint_id: moment.index for moment in found.lineage()}
    return BlamedRun(each, moments, context, verify, verify_run)


def _report(output: Output, found: Sequence[Blame], where: str) -> int:
    output.result({"runs": [_data(each) for each in found]})
    _course(output, found[0])
    if len(found) > 1:
        lost = Counter(fall.moment.nodes.partition(" x")[0] for fall in _falls(found))
        rows = [(nodes, f"{count}") for nodes, count in lost.most_common()]
        output.table(("step", "runs lost"), rows, title=f"{len(found)} runs")
        output.table(
            ("thread", "lost at", "step", "value before", "after", ""),
            [_line(each) for each in found],
            title="Runs",
        )
    reasons = sum((Counter(each.not_judged) for each in found), Counter[str]())
    for reason, count in reasons.most_common(3):
        output.say(f"{count} forks could not be judged: {reason}")
    first = next((each for each in found if each.lost_at), None)
    if first is None or first.lost_at is None:
        output.say("No step lowered the value.")
        return 1
    output.say(
        f"\nNext:\n  hrm-agent fork {first.thread} --at {first.lost_at.moment.index} --run --store"
        f" {where}"
    )
    return 0


def _falls(found: Sequence[Blame]) -> list[Fall]:
    return [fall for each in found if (fall := each.lost_at) is not None]


def _told(each: Blame, fall: Fall) -> str:
    """Words for the largest fall of a run."""
    if is_positive(each.outcome):
        return "largest fall, though the run is right"
    return "lost here" if fall.clear else "perhaps lost here"


def _course(output: Output, each: Blame) -> None:
    lost = each.lost_at
    rows = [
        (
            moment.index,
            moment.nodes,
            _value(moment.value),
            f"{moment.low:.2f} to {moment.high:.2f}" if moment.forks else "-",
            "-" if isnan(difference) else f"{difference:+.2f}",
            _told(each, lost) if lost is not None and moment is lost.moment else "",
        )
        for moment, difference in zip(each.moments, each.differences, strict=True)
    ]
    rows.append(("end", "", _value(each.outcome), "", "", ""))
    output.table(
        ("moment", "next step", "value", "95 %", "difference", ""), rows, title=each.thread
    )


def _line(each: Blame) -> tuple[str, ...]:
    lost = each.lost_at
    if lost is None:
        return each.thread, "-", "-", _value(each.moments[0].value), _value(each.outcome), ""
    words = (_value(lost.moment.value), _value(lost.after), "" if lost.clear else "perhaps")
    return each.thread, lost.moment.index, lost.moment.nodes, *words


def _value(value: float) -> str:
    return "-" if isnan(value) else f"{value:.2f}"


def _data(each: Blame) -> dict[str, Any]:
    moments = [
        {**asdict(moment), "difference": difference}
        for moment, difference in zip(each.moments, each.differences, strict=True)
    ]
    lost = each.lost_at
    return {
        "thread": each.thread,
        "outcome": each.outcome,
        "moments": moments,
        "lost_at": lost.moment.index if lost else None,
        "clear": lost is not None and lost.clear,
        "not_judged": dict(each.not_judged),
    }
