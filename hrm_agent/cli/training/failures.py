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
from typing import TYPE_CHECKING, Any, NamedTuple

from hrm_agent.basics.files import alone_in, json_line, replacing
from hrm_agent.basics.intervals import Estimate
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.cli.common.output import Output, progress, remark
from hrm_agent.cli.common.run_folder import refuse_without_rollouts
from hrm_agent.errors import ConfigError, HrmError, ModelError
from hrm_agent.store.run_store import shown_url
from hrm_agent.training.analysis.failures.classes import UNEXPLAINED
from hrm_agent.training.analysis.failures.report import (
    ClassChange,
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
    from hrm_agent.models.current_policy import Backend
    from hrm_agent.runtime.settings import RunSettings
    from hrm_agent.training.analysis.failures.judge import JudgedFailure, JudgeQuestion
    from hrm_agent.training.evaluation.budget import RequestBudget
    from hrm_agent.training.evaluation.prices import Prices

__all__ = ["failures_run"]

_REPORT = "failures.json"
_PAGE_FAILURES = 5_000
"""Maximum number of failed runs that are saved for the viewer."""
_HOSTED_REPLY = 1024
"""Maximum completion tokens of a hosted judge's reply under a budget."""
_KINDS, _TASKS = 3, 4
"""Maximum numbers of kinds of a class, and of tasks of a move, on the console."""


def failures_run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Classify, compare and report. Returns 0. If the judge does not answer, the rules' report is
    shown and saved before its error is raised.
    """
    names = [arguments.run, *([arguments.against] if arguments.against is not None else [])]
    _check(arguments, names)
    folder = _folder(arguments)
    asking = None if folder is None or arguments.judge is None else _asking(arguments, folder)
    left_out: dict[str, int] = {}
    questions: dict[tuple[int, str], JudgeQuestion] = {}
    found: list[list[ClassifiedRun]] = []
    with opened_runs(names, arguments.allow) as opened:
        for place, runs in enumerate(opened):

            def unexplained(trajectory: Trajectory, explained: Explained, at: int = place) -> None:
                if arguments.judge is not None and explained.primary == UNEXPLAINED:
                    from hrm_agent.training.analysis.failures.judge import question_of

                    questions[at, trajectory.id] = question_of(trajectory)

            with progress("runs", 100) as advance:
                found.append(
                    classified_runs(
                        runs,
                        left_out if place == 0 else {},
                        by=arguments.by,
                        others=[other for other in opened if other is not runs],
                        on_run=lambda done, total: advance("", min(100, 100 * done // total)),
                        on_failed=unexplained,
                    )
                )
    judged: dict[str, Any] | None = None
    error: HrmError | None = None
    if asking is not None:
        try:
            judged, error = _ask(asking, questions, found)
        except HrmError as raised:
            error = raised
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
    saved = _save(arguments, words, folder, result)
    _show_next(output, arguments, report, folder if saved else None)
    if error is not None:
        raise _judge_error(error)
    return 0


def _judge_error(error: HrmError) -> HrmError:
    """Error of the judge, with what to do next for this command."""
    if not isinstance(error, ModelError):
        return error
    return ModelError(
        f"The judge did not answer: {error.message}",
        "The report has the rules' classes. Check the judge's key, its name and the network, and"
        " repeat the command: recorded replies are not asked for again.",
    )


def _check(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise `ConfigError` for options that have no effect, and for missing runs."""
    if arguments.top < 0:
        raise ConfigError(f"--top {arguments.top} is below 0.", "Write --top 3.")
    if (least := arguments.max_tokens) is not None and least < 1:
        raise ConfigError(f"--max-tokens {least} is below 1.", "Write --max-tokens 1024.")
    if arguments.judge is None:
        for name in ("budget", "price", "max_tokens"):
            if getattr(arguments, name):
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} needs a judge.", "Name one: --judge openai:MODEL.")
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


class _Asking(NamedTuple):
    """Judge and its limits."""

    policy: str
    """Name of the judge's policy."""
    backend: Backend
    """Judge, loaded."""
    settings: RunSettings
    """Settings of its requests."""
    given_budget: str | None
    """Budget as the user wrote it (None: no limit)."""
    budget: RequestBudget | None
    """Limit of all requests."""
    prices: Prices
    """Prices of models."""
    place: Path
    """Folder of its replies."""


def _asking(arguments: argparse.Namespace, folder: Path) -> _Asking:
    """Load the judge. This is done before any run is read, so that mistakes are reported at once."""
    from langchain_core.language_models import BaseChatModel

    from hrm_agent.models.loading.policy_loader import load_policy, load_without_retries
    from hrm_agent.runtime.settings import RunSettings
    from hrm_agent.training.evaluation.budget import read_budget
    from hrm_agent.training.evaluation.prices import read_prices

    budget = None if arguments.budget is None else read_budget(arguments.budget)
    prices = read_prices(arguments.price)
    load = load_policy if budget is None else load_without_retries
    backend = load(arguments.judge)
    most = arguments.max_tokens
    if most is None and budget is not None and isinstance(backend, BaseChatModel):
        most = _HOSTED_REPLY
    settings = RunSettings(max_tokens=most)
    place = folder / "judge"
    place.mkdir(parents=True, exist_ok=True)
    return _Asking(arguments.judge, backend, settings, arguments.budget, budget, prices, place)


def _ask(
    asking: _Asking,
    asked: Mapping[tuple[int, str], JudgeQuestion],
    found: list[list[ClassifiedRun]],
) -> tuple[dict[str, Any], HrmError | None]:
    """Ask the judge about unexplained runs, and put its classes into `found`. `asked`: questions by
    place of the record and id of the trajectory. Returns a summary, and the error of the judge
    (None if there was none).
    """
    from hrm_agent.runtime.episode import EpisodeRunner
    from hrm_agent.store import open_store
    from hrm_agent.training.analysis.failures.judge import judge
    from hrm_agent.training.evaluation.budget import Meter

    place = asking.place
    with alone_in(place), open_store(place / "store.db") as store:
        meter = Meter(
            place / "asked.jsonl", asking.prices, asking.budget, store.journal.calls_among
        )
        before = meter.total

        async def ask() -> tuple[dict[JudgeQuestion, JudgedFailure], HrmError | None]:
            async with EpisodeRunner.open(
                store, asking.policy, asking.settings, backend=asking.backend
            ) as runner:
                return await judge(runner, asked.values(), meter)

        replies, error = asyncio.run(ask()) if asked else ({}, None)
        total = meter.total
    judgements = {run: replies[question] for run, question in asked.items() if question in replies}
    for at, runs in enumerate(found):
        for index, each in enumerate(runs):
            judgement = judgements.get((at, each.trajectory))
            if judgement is not None:
                shows = Evidence("judge", "", judgement.reason)
                runs[index] = replace(each, outcome=judgement.name, evidence=shows)
    unread = sum(each.name == UNEXPLAINED for each in judgements.values())
    summary = {
        "policy": asking.policy,
        "runs": len(asked),
        "judged": len(judgements) - unread,
        "unreadable": unread,
        "budget": asking.given_budget,
        "budget_used_up": meter.closed and error is None,
        "error": None if error is None else error.message,
        "asked_now": {
            "read": total.read - before.read,
            "sampled": total.sampled - before.sampled,
            "cost": total.cost - before.cost,
        },
        "asked": {"read": total.read, "sampled": total.sampled, "cost": total.cost},
    }
    return summary, error


def _show(output: Output, report: FailureReport, change: FailureChange | None) -> None:
    share = f" ({report.failed / report.judged:.3f})" if report.judged else ""
    output.say(
        f"{report.failed} of {_counted(report.judged, 'judged run')} of"
        f" {_counted(report.tasks, 'task')} failed{share}"
        + (f", {report.apart} of them by no fault of the policy" if report.apart else "")
        + "."
    )
    for why, count in report.unjudged.items():
        output.say(
            f"Not judged: {_counted(count, 'run')}, since {why}. `hrm-agent rescore` scores runs, and"
            " `--by NAME` takes its scores."
        )
    if report.best is not None:
        output.say(
            f"{_counted(report.by_reward, 'run')} with a reward alone: right with the highest one on"
            f" record, {report.best:g}, and failed with less."
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
            runs = _counted(count, "failed run")
            output.say(f"Not checkable: {each.name} in {runs}, since {why}.")
    for why, count in report.left_out.items():
        output.say(f"Left out: {count} ({why}).")


def _show_change(output: Output, change: FailureChange) -> None:
    based = (
        f"{_counted(change.paired, 'task')} of both"
        if change.paired
        else "no task of both, so that the runs are compared as independent ones"
    )
    output.table(
        ("class", "before", "after", "change (95 % interval)", "p", ""),
        [
            (
                each.name,
                each.before,
                each.after,
                _interval(each.difference, sign=True),
                f"{each.p_value:.2g}",
                _direction(each),
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


def _direction(change: ClassChange) -> str:
    if not change.certain:
        return ""
    return "grew" if change.difference.value > 0 else "shrank"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
        f"{judged['policy']} judged {judged['judged']} of"
        f" {_counted(judged['runs'], 'unexplained run')}:"
        f" {now['read']:,} + {now['sampled']:,} tokens (prompt + completion) were asked now, of"
        f" {total['read']:,} + {total['sampled']:,} in all{cost}."
    )
    if judged["unreadable"]:
        unread = _counted(judged["unreadable"], "run")
        output.say(f"No reply could be read for {unread}, which stay unexplained.")
    if judged["budget_used_up"]:
        output.say(f"The budget of {judged['budget']} does not suffice for more.")


def _save(
    arguments: argparse.Namespace,
    words: Sequence[str],
    folder: Path | None,
    result: Mapping[str, Any],
) -> bool:
    """Write the report, and save it for the viewer. Returns False if the folder cannot be written
    to, which is reported.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(json.loads(json_line(result)), ensure_ascii=False, indent=1)
            with replacing(folder / _REPORT) as part:
                part.write_text(replace_surrogates(text) + "\n", encoding="utf-8")
        if Path(arguments.run).is_dir():
            given = {name: getattr(arguments, name) for name in ("judge", "against", "by")}
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
        return False
    return True


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
