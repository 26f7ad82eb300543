"""`hrm-agent rescore`: scores stored runs by a rubric, or compares two rubrics on them."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hrm_agent.basics.intervals import Estimate
from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.run_folder import existing_store
from hrm_agent.errors import ConfigError, RunError, StoreError, nearest
from hrm_agent.rewards import opened_scorer
from hrm_agent.store import RunStore
from hrm_agent.store.run_store import own_run
from hrm_agent.training.evaluation.rubrics import (
    RECORDED,
    FaultCount,
    RubricComparison,
    compare_rubrics,
    fault_counts,
    reward_means,
    scorings_named,
)
from hrm_agent.training.records.rescoring import Rescored, rescore
from hrm_agent.training.tasks.own_verifier import RUN_VARIABLE, VERIFIER, verifier_spec
from hrm_agent.trajectory import FEEDBACK, Scoring, Trajectory

__all__ = ["run"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RESERVED = (FEEDBACK, RECORDED, VERIFIER)
Side = tuple[str, Mapping[str, Scoring], Rescored | None]
"""Name of a rubric, its scorings by trajectory, and the report of scoring now (None for recorded
scorings).
"""
_SHOWN = 20
"""Maximum number of trajectories that a comparison lists. The JSON has all."""
_REASON_CHARACTERS = 200


def run(words: list[str]) -> int:
    """Return 1 if no trajectory has a reward."""
    parser = Parser(
        "rescore",
        "Score stored runs by a rubric, beside the scores that they have; compare two rubrics.",
    )
    add = parser.add_argument
    add("store", help="a run folder, or a store")
    help_text = (
        "module:attribute, ./file.py:attribute, answer:READER, verifier (the tasks' own), or scores"
        " on record"
    )
    add("--rewards", required=True, metavar="RUBRIC", help=help_text)
    add(
        "--compare",
        metavar="RUBRIC",
        help="a second one: what differs on the same runs; also feedback, recorded",
    )
    add("--name", help="under which the new scores are stored [the rubric's own]")
    add("--run", help="only the trajectories of this run")
    add(
        "--thread",
        nargs="+",
        default=[],
        help="only these threads or trajectories, with what they are compared to",
    )
    help_text = "score again what the same code has scored: all, or faults only"
    add("--again", nargs="?", const="all", default="", choices=("all", "faults"), help=help_text)
    add(
        "--allow",
        nargs="+",
        default=[],
        metavar="MODULE:CLASS",
        help="your own types in the states",
    )
    add("--workers", type=int, default=2, help="processes that score [2]")
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    if arguments.name is not None and (
        not _NAME.fullmatch(arguments.name) or arguments.name in _RESERVED
    ):
        raise ConfigError(
            f"Scores cannot be called {arguments.name!r}.",
            f"A name has letters, digits and `._-`, and is not one of {', '.join(_RESERVED)}.",
        )
    if arguments.workers < 1:
        raise ConfigError(
            f"--workers {arguments.workers} is not a number of processes of at least 1.",
            "Write --workers 2.",
        )
    with existing_store(arguments.store, arguments.allow, writes=True) as store:
        damaged: dict[str, str] = {}

        def on_damage(id_: str, error: StoreError) -> None:
            damaged[id_] = error.message

        run_id = arguments.run or own_run(arguments.store)
        where: tuple[str, tuple[str, ...]] = (
            ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
        )
        headers = store.journal.headers(*where, on_damage)
        if not headers:
            of_run = f" of run {run_id!r}" if run_id else ""
            hint = f"`hrm-agent history --store {arguments.store}` lists all runs."
            raise RunError(f"There is no trajectory{of_run} to score in {store.url}.", hint)
        wanted = _wanted(headers, arguments)
        found = asyncio.run(_sides(store, headers, wanted, arguments))
    chosen = [header for header in headers if wanted is None or header.id in wanted]
    return _report(output, chosen, found, damaged)


def _wanted(headers: Sequence[Trajectory], arguments: argparse.Namespace) -> set[str] | None:
    threads: list[str] = arguments.thread
    if not threads:
        return None
    by_name = {name: header.id for header in headers for name in (header.id, header.thread_id)}
    for name in threads:
        if name not in by_name:
            hint = f"`hrm-agent history --store {arguments.store}` lists all runs."
            raise RunError(
                f"There is no thread {name!r} to score. {nearest(name, by_name)}".strip(), hint
            )
    return {by_name[name] for name in threads}


async def _sides(
    store: RunStore,
    headers: Sequence[Trajectory],
    wanted: Collection[str] | None,
    arguments: argparse.Namespace,
) -> list[Side]:
    specs = [(arguments.rewards, arguments.name or "")]
    specs += [(arguments.compare, "")] if arguments.compare else []
    return [await _side(store, headers, wanted, arguments, *spec) for spec in specs]


async def _side(
    store: RunStore,
    headers: Sequence[Trajectory],
    wanted: Collection[str] | None,
    arguments: argparse.Namespace,
    spec: str,
    name: str,
) -> Side:
    if ":" not in spec and spec != VERIFIER:
        if name:
            raise ConfigError(
                f"{spec!r} are recorded scores, which have a name already.", "Leave out --name."
            )
        return spec, scorings_named(store, spec, headers), None
    loaded = verifier_spec(header.task for header in headers) if spec == VERIFIER else spec
    variables = _where_tasks_are_from(arguments.store)
    async with opened_scorer(
        loaded, name=name, workers=arguments.workers, environment=variables
    ) as scorer:
        if scorer.rubric.name in _RESERVED and spec != VERIFIER:
            raise ConfigError(
                f"The rubric {spec!r} has the name {scorer.rubric.name!r}, which is reserved for"
                " other scores.",
                "Give the scores another name: --name NAME.",
            )
        total = len(headers) if wanted is None else len(wanted)
        with progress(f"rescore {scorer.rubric.name}", total) as advance:
            count = 0

            def on_scored(more: int) -> None:
                nonlocal count
                count += more
                advance("", count)

            found = await rescore(
                store, scorer, headers, wanted=wanted, again=arguments.again, on_scored=on_scored
            )
    return found.rubric, found.scorings, found


def _where_tasks_are_from(store: str) -> dict[str, str]:
    """Environment variables that name the run folder. Tasks of users are verified by their own
    code, which is found by the folder's configuration.
    """
    folder = Path(store)
    return {RUN_VARIABLE: str(folder.resolve())} if folder.is_dir() else {}


def _report(
    output: Output, headers: Sequence[Trajectory], sides: Sequence[Side], damaged: Mapping[str, str]
) -> int:
    data: list[dict[str, Any]] = []
    rewarded = 0
    for name, scorings, made in sides:
        scored = [header for header in headers if header.id in scorings]
        means = reward_means(scored, scorings)
        faults = fault_counts(scored, scorings)
        rewarded += sum(bool(scorings[header.id].rewards) for header in scored)
        data.append(
            {"rubric": name, "means": {key: asdict(one) for key, one in means.items()}}
            | _made_data(made)
        )
        data[-1]["faults"] = [asdict(fault) for fault in faults]
        for line in _made_lines(name, made, len(scored)):
            output.say(line)
        output.table(("reward", "mean", "from", "to"), mean_rows(means))
        if faults and made is not None and made.skipped and not made.scored:
            output.say(
                "Scores that failed are kept, too: `--again faults` scores those runs again."
            )
        if faults:
            output.table(
                ("reward", "no value", "trajectories", "for example", "reason"), fault_rows(faults)
            )
    result: dict[str, Any] = {"scored": data} | ({"damaged": dict(damaged)} if damaged else {})
    if len(sides) == 2 and rewarded:
        (a, by_a, _), (b, by_b, _) = sides
        compared = compare_rubrics(headers, (a, by_a), (b, by_b))
        result["comparison"] = asdict(compared)
        output.table(("", f"A: {a}", f"B: {b}", "B less A"), rubric_comparison_rows(compared))
        for line in differing_lines(compared):
            output.say(line)
    output.result(result)
    for id_, reason in damaged.items():
        output.say(f"trajectory {id_}: {reason}", style="red")
    if not rewarded:
        remark("No trajectory got a reward.")
    return 0 if rewarded else 1


def _made_data(made: Rescored | None) -> dict[str, Any]:
    if made is None:
        return {}
    return {
        "code": made.code,
        "scored": made.scored,
        "skipped": made.skipped,
        "replaced": dict(made.replaced),
        "left_out": dict(made.left_out),
    }


def _made_lines(name: str, made: Rescored | None, on_record: int) -> list[str]:
    if made is None:
        return [f"{name}: {on_record} trajectories on record."]
    code = f" (code {made.code})" if made.code else ""
    skipped = (
        f", {made.skipped} had been scored by the same code and were skipped"
        if made.skipped
        else ""
    )
    lines = [f"{name}{code}: {made.scored} trajectories scored{skipped}."]
    for digest, count in made.replaced.items():
        other = f"other code ({digest})" if digest else "code without a digest"
        lines.append(
            f"{count} of them had been scored by {other}; those scores were replaced. --name keeps"
            " both."
        )
    return lines + [f"{count} not scored: {reason}." for reason, count in made.left_out.items()]


def mean_rows(means: Mapping[str, Estimate]) -> list[Sequence[object]]:
    """Rows of rewards, each with mean and 95 % interval."""
    return [(name, found.value, found.low, found.high) for name, found in means.items()]


def fault_rows(faults: Iterable[FaultCount]) -> list[Sequence[object]]:
    """Rows of kinds of faults, each with an example."""
    return [
        (one.reward, one.fault, one.count, one.trajectory, _short(one.reason)) for one in faults
    ]


def rubric_comparison_rows(found: RubricComparison) -> list[Sequence[object]]:
    """Rows with the values of both sides and their difference."""
    right_a = found.right["both"] + found.right["a"]
    right_b = found.right["both"] + found.right["b"]
    return [
        ("right", right_a, right_b, f"{right_b - right_a:+d}"),
        (
            "outcome",
            *(_interval(one) for one in (found.a_outcome, found.b_outcome)),
            _interval(found.outcome, "+"),
        ),
        (
            "reward",
            *(_interval(one) for one in (found.a_reward, found.b_reward)),
            _interval(found.reward, "+"),
        ),
    ]


def differing_lines(found: RubricComparison) -> Iterator[str]:
    """Lines with a summary of the comparison, and the runs on which the rubrics differ."""
    right = found.right
    yield (
        f"{found.trajectories} trajectories of {found.problems} problems have rewards by both:"
        f" {right['both']} are right by both, {right['a']} by A only, {right['b']} by B only,"
        f" {right['neither']} by neither (p = {found.p_value:.2g}, sign flips over problems)."
    )
    for name, count in (("A", found.only_a), ("B", found.only_b)):
        if count:
            yield f"{count} have a reward by {name} only, and were left out."
    for one in found.differing[:_SHOWN]:
        yield (
            f"{one.trajectory} ({one.task}): A {one.a:g}{_because(one.a_reason)}; B"
            f" {one.b:g}{_because(one.b_reason)}"
        )
    if len(found.differing) > _SHOWN:
        yield f"and {len(found.differing) - _SHOWN} more; --json lists all."


def _because(reason: str) -> str:
    return f" ({_short(reason)})" if reason else ""


def _short(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[:_REASON_CHARACTERS]} ..."


def _interval(found: Estimate, sign: str = "") -> str:
    form = f"{sign}.3f"
    return f"{found.value:{form}}  ({found.low:{form}} to {found.high:{form}})"
