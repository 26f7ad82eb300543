"""`hrm-agent blame`: the step that lost a run, by forks of its moments."""

from __future__ import annotations

import argparse
import asyncio
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.run_folder import existing_store
from hrm_agent.cli.runs.run import RunConfig, known_config
from hrm_agent.config import CONFIG_FILE
from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.runtime.episode import EpisodeRunner, policy_for
from hrm_agent.runtime.execution.run_context import options_on_record
from hrm_agent.runtime.selection.choice import is_choice
from hrm_agent.runtime.time_travel.fork import history
from hrm_agent.store import RunStore
from hrm_agent.store.run_store import own_run
from hrm_agent.training.analysis.blame import Blame, BlamedRun, blame, blame_run_id
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.training.tasks import run_verifier_of, verifier_of
from hrm_agent.trajectory import RunStatus, Trajectory

__all__ = ["run"]

_USUAL = ("policy", "temperature", "max-tokens", "context", "graph", "environment", "seed")


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
        "--rewards", metavar="RUBRIC", help="rubric that scores the forks [that of the run]"
    )
    parser.add_argument("--concurrency", type=int, default=64, help="forks at a time [64]")
    add_config(parser, RunConfig, _USUAL)
    arguments = parser.read(words)
    for name, least in (("forks", 1), ("most", 1), ("concurrency", 1)):
        if getattr(arguments, name) < least:
            raise ConfigError(
                f"--{name} {getattr(arguments, name)} is below {least}.", f"Write --{name} 8."
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
    """Runs to look at: those that are named, or the first ones that are not right."""
    if arguments.thread:
        return [_named(store, name) for name in arguments.thread]
    run_id = own_run(arguments.store)
    headers = store.journal.headers(
        *(("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,)))
    )
    wrong = [
        each
        for each in headers
        if each.forked_from is None
        and not is_choice(each.graph)
        and fault_of(each) is None
        and not is_positive(outcome_of(each))
    ]
    if not wrong:
        raise RunError(
            f"No run in {arguments.store} was judged and is wrong.",
            f"Name a thread: `hrm-agent history --store {arguments.store}` lists them.",
        )
    return [store.journal.trajectory(each.id) for each in wrong[: arguments.most]]


def _named(store: RunStore, name: str) -> Trajectory:
    found = store.journal.find_trajectory(name)
    if found is None:
        known = [each.thread_id for each in store.threads()]
        raise RunError(
            f"There is no thread {name!r} in {store.url}. {nearest(name, known)}".strip(),
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
    return found


def _config(
    store: RunStore, chosen: Sequence[Trajectory], arguments: argparse.Namespace
) -> RunConfig:
    """Options of the forks: those of the runs, which must have the same, with the flags."""
    options = [known_config(store, each) for each in chosen]
    shared = {
        name: value
        for name, value in options[0].items()
        if name not in ("seed", "context", "configurable")
    }
    for each, other in zip(chosen, options, strict=True):
        for name, value in shared.items():
            if other.get(name) != value:
                raise ConfigError(
                    f"{each.thread_id} was run with {name} = {other.get(name)}, and"
                    f" {chosen[0].thread_id} with {value}.",
                    "Name threads that were run alike.",
                )
    config = config_from(arguments, RunConfig, "run", shared)
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


def _rubric(store: RunStore, arguments: argparse.Namespace) -> str | None:
    """Rubric of the run in the store's folder, unless a flag names one."""
    if arguments.rewards is not None:
        return arguments.rewards
    file = store.folder / CONFIG_FILE
    if not file.exists():
        return None
    named = tomllib.loads(file.read_text(encoding="utf-8")).get("rewards")
    return None if named == "none" else named


async def _blamed(
    store: RunStore,
    chosen: Sequence[Trajectory],
    config: RunConfig,
    arguments: argparse.Namespace,
) -> list[Blame]:
    rewards = _rubric(store, arguments)
    runs = [_with_moments(store, each, rewards) for each in chosen]
    backend = policy_for(config.policy, config.graph, stand_in=config.stand_in)
    total = sum(len(each.decisions) for each in runs) * arguments.forks
    key = config.model_dump_json(exclude={"seed", "otel", "otel_content"}) + f"{rewards}"
    scored_by = CollectConfig(
        rewards=rewards, environment=config.environment, isolation=config.isolation
    )
    remark(f"{total} forks of {len(runs)} runs, recorded as run {blame_run_id(chosen[0].run_id)}")
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
    found = history(store, each.thread_id, branches=False, values=False)
    context = options_on_record(store, each.thread_id, each.task).context or {}
    blamed = BlamedRun(each, found, context, verify, verify_run)
    if not blamed.decisions:
        raise RunError(
            f"Thread {each.thread_id!r} asked no model in a step of its graph.",
            "Name a run whose graph asks a model.",
        )
    return blamed


def _report(output: Output, found: Sequence[Blame], where: str) -> int:
    output.result({"runs": [_data(each) for each in found]})
    for each in found[:1] if len(found) > 1 else found:
        _course(output, each)
    if len(found) > 1:
        lost = Counter(each.lost_at.nodes.partition(" x")[0] for each in found if each.lost_at)
        rows = [(nodes, f"{count}") for nodes, count in lost.most_common()]
        output.table(("step", "runs lost"), rows, title=f"{len(found)} runs")
        output.table(
            ("thread", "lost at", "step", "value before", "after"),
            [_line(each) for each in found],
            title="Runs",
        )
    worst = found[0]
    if worst.lost_at is not None:
        output.say(
            "\nNext:\n  hrm-agent fork"
            f" {worst.thread} --at {worst.lost_at.index} --run --store {where}"
        )
    return 0 if any(each.lost_at for each in found) else 1


def _course(output: Output, each: Blame) -> None:
    lost = each.lost_at
    rows = [
        (
            moment.index,
            moment.nodes,
            _value(moment.value),
            f"{moment.low:.2f} to {moment.high:.2f}",
            f"{difference:+.2f}",
            "lost here" if moment is lost else "",
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
        return each.thread, "-", "-", _value(each.moments[0].value), _value(each.outcome)
    number = each.moments.index(lost)
    after = lost.value + each.differences[number]
    return each.thread, lost.index, lost.nodes, _value(lost.value), _value(after)


def _value(value: float) -> str:
    return "-" if isnan(value) else f"{value:.2f}"


def _data(each: Blame) -> dict[str, Any]:
    moments = [
        {**asdict(moment), "difference": difference}
        for moment, difference in zip(each.moments, each.differences, strict=True)
    ]
    return {
        "thread": each.thread,
        "outcome": each.outcome,
        "moments": moments,
        "lost_at": each.lost_at.index if each.lost_at else None,
    }
