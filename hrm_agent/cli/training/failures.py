"""`hrm-agent analyze --failures`: failed runs of a record in classes."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm_agent.basics.files import alone_in, json_line, replacing
from hrm_agent.basics.intervals import Estimate
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.run_folder import refuse_without_rollouts
from hrm_agent.errors import ConfigError
from hrm_agent.store.run_store import shown_url
from hrm_agent.training.analysis.failures.classes import UNEXPLAINED
from hrm_agent.training.analysis.failures.report import (
    ClassifiedRun,
    FailureChange,
    FailureReport,
    change_between,
    classified_runs,
    failure_report,
)
from hrm_agent.training.analysis.failures.rules import Evidence, Explained
from hrm_agent.training.analysis.saved import save_analysis
from hrm_agent.training.records.runs import opened_runs
from hrm_agent.trajectory import Trajectory

if TYPE_CHECKING:
    from hrm_agent.training.analysis.failures.judge import JudgeQuestion

__all__ = ["failures_run"]

_REPORT = "failures.json"
_PAGE_FAILURES = 5_000
"""Maximum number of failed runs that are saved for the viewer."""
_KINDS, _TASKS = 3, 4
"""Maximum numbers of kinds of a class, and of tasks of a move, on the console."""


def failures_run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Classify, compare and report. Returns 0."""
    names = [arguments.run, *([arguments.against] if arguments.against is not None else [])]
    _check(arguments, names)
    folder = _folder(arguments)
    left_out: dict[str, int] = {}
    questions: dict[tuple[int, str], JudgeQuestion] = {}
    found: list[list[ClassifiedRun]] = []
    with opened_runs(names, arguments.allow) as opened:
        for place, runs in enumerate(opened):

            def unexplained(trajectory: Trajectory, explained: Explained, at: int = place) -> None:
                if arguments.judge is not None and explained.primary == UNEXPLAINED:
                    from hrm_agent.training.analysis.failures.judge import question_of

                    questions[at, trajectory.thread_id] = question_of(trajectory)

            with progress("runs", 100) as advance:
                found.append(
                    classified_runs(
                        runs,
                        left_out if place == 0 else {},
                        on_run=lambda done, total: advance("", min(100, 100 * done // total)),
                        on_failed=unexplained,
                    )
                )
    judged = None
    if folder is not None and arguments.judge is not None:
        judged = _ask(arguments, folder, questions, found)
    shown = [*map(shown_url, names)]
    report = failure_report(shown[0], found[0], left_out, examples=arguments.top)
    change = change_between(shown[1], found[1], found[0]) if len(shown) > 1 else None
    result = {
        **asdict(report),
        "change": None if change is None else asdict(change),
        "judge": judged,
    }
    output = Output(as_json=arguments.json)
    output.result(result)
    _show(output, report, change)
    if judged is not None:
        _show_judge(output, judged)
    _save(arguments, words, folder, result)
    _show_next(output, arguments, report, folder)
    return 0


def _check(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise `ConfigError` for options that have no effect, and for missing runs."""
    if arguments.top < 0:
        raise ConfigError(f"--top {arguments.top} is below 0.", "Write --top 3.")
    if arguments.judge is None:
        for name in ("budget", "price"):
            if getattr(arguments, name):
                raise ConfigError(f"--{name} needs a judge.", "Name one: --judge openai:MODEL.")
    elif not arguments.judge:
        raise ConfigError("The name of the judge is empty.", "Name one: --judge openai:MODEL.")
    for name in names:
        if "://" not in name and not Path(name).exists():
            raise ConfigError(
                f"There is no run at {name}.", "Name its folder, its store, or an exported file."
            )
        refuse_without_rollouts(name)


def _folder(arguments: argparse.Namespace) -> Path | None:
    """Folder of the report and of the judge's replies (None: the report is only shown)."""
    out: Path | None = arguments.out
    if out is None and Path(arguments.run).is_dir():
        out = Path(arguments.run) / "failures"
    if out is None:
        if arguments.judge is not None:
            raise ConfigError(
                f"{arguments.run} is not a folder, so that the judge's replies cannot be recorded in"
                " it.",
                "Name a folder: --out runs/failures.",
            )
        return None
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file.", "Name a folder by --out.")
    known = {_REPORT, "judge"}
    if out.is_dir() and (names := {each.name for each in out.iterdir()}) and not names & known:
        raise ConfigError(
            f"{out} is not empty, and has no report of failures that could be replaced.",
            "Name another folder by --out.",
        )
    return out


def _ask(
    arguments: argparse.Namespace,
    folder: Path,
    asked: Mapping[tuple[int, str], JudgeQuestion],
    found: list[list[ClassifiedRun]],
) -> dict[str, Any]:
    """Ask the judge about unexplained runs, and put its classes into `found`."""
    from hrm_agent.models.loading.policy_loader import load_policy, load_without_retries
    from hrm_agent.runtime.episode import EpisodeRunner
    from hrm_agent.runtime.settings import RunSettings
    from hrm_agent.store import open_store
    from hrm_agent.training.analysis.failures.judge import judge
    from hrm_agent.training.evaluation.budget import Meter, read_budget
    from hrm_agent.training.evaluation.prices import read_prices

    budget = None if arguments.budget is None else read_budget(arguments.budget)
    prices = read_prices(arguments.price)
    load = load_policy if budget is None else load_without_retries
    backend = load(arguments.judge)
    place = folder / "judge"
    place.mkdir(parents=True, exist_ok=True)
    with alone_in(place), open_store(place / "store.db") as store:
        meter = Meter(place / "asked.jsonl", prices, budget, store.journal.calls_among)
        before = meter.total

        async def ask() -> dict[str, Any]:
            settings = RunSettings()
            async with EpisodeRunner.open(
                store, arguments.judge, settings, backend=backend
            ) as runner:
                return await judge(runner, [*asked.values()], meter)

        judgements = asyncio.run(ask()) if asked else {}
        total = meter.total
    for at, runs in enumerate(found):
        for index, each in enumerate(runs):
            judgement = judgements.get(each.thread) if (at, each.thread) in asked else None
            if judgement is not None:
                shows = Evidence("judge", "", judgement.reason)
                runs[index] = replace(each, outcome=judgement.name, evidence=shows)
    unread = sum(each.name == UNEXPLAINED for each in judgements.values())
    return {
        "policy": arguments.judge,
        "runs": len(asked),
        "judged": len(judgements) - unread,
        "unreadable": unread,
        "budget": arguments.budget,
        "budget_used_up": meter.closed,
        "asked_now": {
            "read": total.read - before.read,
            "sampled": total.sampled - before.sampled,
            "cost": total.cost - before.cost,
        },
        "asked": {"read": total.read, "sampled": total.sampled, "cost": total.cost},
    }


def _show(output: Output, report: FailureReport, change: FailureChange | None) -> None:
    share = report.failed / report.judged if report.judged else math.nan
    tasks = "1 task" if report.tasks == 1 else f"{report.tasks} tasks"
    output.say(
        f"{report.failed} of {report.judged} judged runs of {tasks} failed ({share:.3f})"
        + (f", {report.apart} of them by no fault of the policy" if report.apart else "")
        + "."
    )
    if unjudged := report.runs - report.judged:
        output.say(
            f"{unjudged} runs are not judged: they have no reward. `hrm-agent rescore` scores runs."
        )
    output.table(
        ("class", "runs", "share (95 % interval)", "tasks", "also", "kinds"),
        [
            (
                each.name + (" (not the policy's)" if each.apart else ""),
                each.runs,
                _interval(each.share),
                each.tasks,
                each.secondary or "",
                ", ".join(f"{name} {n}" for name, n in [*each.details.items()][:_KINDS]),
            )
            for each in report.classes
            if each.runs or each.secondary
        ],
        title="Failures by class",
    )
    examples = [(each.name, one) for each in report.classes for one in each.examples]
    if examples:
        output.table(
            ("class", "thread", "role", "evidence"),
            [
                (name, one.thread, one.role, one.evidence.excerpt if one.evidence else "")
                for name, one in examples
            ],
            title="\nExamples",
        )
    for title, groups in (("role", report.roles), ("family", report.families)):
        if len(groups) > 1:
            output.table(
                (title, "failed runs", "classes"),
                [
                    (
                        name,
                        sum(n for each, n in counts.items() if each != "right"),
                        ", ".join(f"{each} {n}" for each, n in counts.items()),
                    )
                    for name, counts in groups.items()
                ],
                title=f"\nBy {title}",
            )
    if change is not None:
        _show_change(output, change)
    output.say("")
    for each in report.classes:
        for why, count in each.unchecked.items():
            output.say(f"Not checkable: {each.name} in {count} failed runs, since {why}.")
    for why, count in report.left_out.items():
        output.say(f"Left out: {count} ({why}).")


def _show_change(output: Output, change: FailureChange) -> None:
    based = (
        f"{change.paired} tasks of both"
        if change.paired
        else "no task of both, so that the runs are compared as independent ones"
    )
    output.table(
        ("class", "before", "after", "change (95 % interval)", ""),
        [
            (
                each.name,
                each.before,
                each.after,
                _interval(each.difference, sign=True),
                _direction(each.difference),
            )
            for each in change.changes
        ],
        title=f"\nChange from {change.against}, {based}",
    )
    if change.moved:
        output.table(
            ("before", "after", "runs", "tasks"),
            [(each.before, each.after, each.runs, _listed(each.tasks)) for each in change.moved],
            title="\nRuns that moved",
        )


def _direction(found: Estimate) -> str:
    return "grew" if found.low > 0 else "shrank" if found.high < 0 else ""


def _listed(tasks: Sequence[str]) -> str:
    more = ", ..." if len(tasks) > _TASKS else ""
    return ", ".join(tasks[:_TASKS]) + more


def _interval(found: Estimate, *, sign: bool = False) -> str:
    form = "+.3f" if sign else ".3f"
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"


def _show_judge(output: Output, judged: Mapping[str, Any]) -> None:
    now, total = judged["asked_now"], judged["asked"]
    cost = "" if math.isnan(total["cost"]) else f", cost {now['cost']:.4g} ({total['cost']:.4g})"
    output.say(
        f"{judged['policy']} judged {judged['judged']} of {judged['runs']} unexplained runs:"
        f" {now['read']:,} + {now['sampled']:,} tokens (prompt + completion) were asked now, of"
        f" {total['read']:,} + {total['sampled']:,} in all{cost}."
    )
    if judged["unreadable"]:
        output.say(f"{judged['unreadable']} runs stay unexplained: no reply could be read.")
    if judged["budget_used_up"]:
        output.say(f"The budget of {judged['budget']} does not suffice for more.")


def _save(
    arguments: argparse.Namespace,
    words: Sequence[str],
    folder: Path | None,
    result: Mapping[str, Any],
) -> None:
    """Write the report, and save it for the viewer. If the run's folder cannot be written to, that
    is reported.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(json.loads(json_line(result)), ensure_ascii=False, indent=1)
            with replacing(folder / _REPORT) as part:
                part.write_text(replace_surrogates(text) + "\n", encoding="utf-8")
        if Path(arguments.run).is_dir():
            given = {name: getattr(arguments, name) for name in ("judge", "against")}
            against = f" against {shown_url(arguments.against)}" if arguments.against else ""
            command = [shown_url(word) for word in words if word not in ("--json", "--debug")]
            save_analysis(
                Path(arguments.run),
                "failures",
                given,
                title=f"Why runs failed{against}",
                command=shlex.join(["hrm-agent", "analyze", *command]),
                result={**result, "failures": result["failures"][:_PAGE_FAILURES]},
            )
    except OSError as error:
        remark(f"The report is not saved: {error}.")


def _show_next(
    output: Output, arguments: argparse.Namespace, report: FailureReport, folder: Path | None
) -> None:
    commands: list[str] = []
    if report.failures and not arguments.run.endswith((".jsonl", ".parquet")):
        thread = shlex.quote(report.failures[0].thread)
        commands.append(f"hrm-agent show {thread} --store {shlex.quote(report.run)}")
    if Path(arguments.run).is_dir():
        commands.append(f"hrm-agent view {shlex.quote(arguments.run)}")
    if folder is not None:
        output.say(f"In {folder}: {_REPORT}.")
    if commands:
        output.next(*commands)
