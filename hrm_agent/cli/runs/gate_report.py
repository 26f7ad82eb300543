"""Reports of a gate: on the terminal, in Markdown for a pull request, and for the viewer."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.basics.unicode import for_terminal
from hrm_agent.cli.common.output import Output, remark
from hrm_agent.cli.runs.gate_runs import GateConfig, RunsToRepeat
from hrm_agent.training.analysis.gate import Expected, GatedRun, GateResult, failed_runs
from hrm_agent.training.analysis.saved import save_analysis
from hrm_agent.training.evaluation.budget import Meter
from hrm_agent.training.evaluation.prices import Prices
from hrm_agent.training.rollout.eligibility import error_of
from hrm_agent.trajectory import RunStatus

__all__ = [
    "expected_data",
    "expected_lines",
    "expected_money",
    "left_out_lines",
    "markdown",
    "print_report",
    "report_data",
    "save_for_viewer",
]

_NAMED = 10
"""Maximum number of runs that a sentence names. The JSON has all."""
_CHARACTERS = 60
"""Maximum number of characters of a prompt in a table."""
_LISTED = 20
"""Maximum number of runs in a table."""


# the cost beforehand


def expected_money(expected: Expected, prices: Prices, policy: str) -> float:
    """Money for the expected tokens (nan if a model has no price). `policy`: the new policy (empty:
    the recorded models are asked).
    """
    total = 0.0
    for model, (read, sampled) in expected.by_model.items():
        price = prices.find(policy.partition(":")[2] or policy) if policy else prices.find(model)
        total += price.of(read, sampled) if price is not None else math.nan
    return total


def expected_data(found: RunsToRepeat, expected: Expected, cost: float) -> dict[str, Any]:
    return {
        "runs": len(found.runs),
        "left_out": dict(found.left_out),
        "differing_runs": expected.runs,
        "differences": [
            {"role": role, "words": words, "runs": count}
            for (role, words), count in expected.differences.most_common()
        ],
        "requests": expected.requests,
        "read": expected.read,
        "sampled": expected.sampled,
        "cost": cost,
    }


def left_out_lines(found: RunsToRepeat) -> Iterator[str]:
    """Lines about the runs that cannot be repeated."""
    for reason, threads in found.left_out.items():
        yield f"Left out, since it {reason}: {_count(len(threads), 'run')} ({_names(threads)})."


def expected_lines(found: RunsToRepeat, expected: Expected, cost: float) -> Iterator[str]:
    """Lines about what is to be asked."""
    total = len(found.runs)
    if not expected.runs:
        yield f"All {_count(total, 'run')} repeat as recorded. Nothing is to be asked."
        return
    yield f"{expected.runs} of {_count(total, 'run')} differ:"
    for (role, words), count in expected.differences.most_common(_NAMED):
        yield f"  {_count(count, 'run')}{f', role {role}' if role else ''}: {words}"
    if not expected.requests:
        yield "Nothing is to be asked, if no request follows that is not on record."
        return
    money = "" if math.isnan(cost) or not cost else f", cost {cost:.4g}"
    yield (
        f"To be asked, if as many requests follow as on record: {expected.requests:,} requests,"
        f" {expected.read:,} + {expected.sampled:,} tokens (prompt + completion){money}."
    )


# the result


def report_data(
    config: GateConfig,
    out: Path,
    found: RunsToRepeat,
    result: GateResult,
    expected: Expected,
    cost: float,
    meter: Meter,
    before: int,
) -> dict[str, Any]:
    """Whole result, for JSON."""
    total = meter.total
    return {
        "verdict": result.verdict,
        "sentence": _sentence(result),
        "difference": {
            "value": result.look.difference.value,
            "low": result.look.difference.low,
            "high": result.look.difference.high,
        },
        "old": result.old,
        "new": result.new,
        "margin": config.margin,
        "samples": config.samples,
        "runs": len(result.compared),
        "recorded_runs": len(found.runs),
        "tasks": result.look.tasks,
        "planned_tasks": result.planned,
        "unchanged_runs": sum(e.repeats[0].unchanged for e in result.compared),
        "stopped_early": result.look.tasks < result.planned and not result.used_up,
        "budget": config.budget,
        "budget_used_up": result.used_up,
        "better": [_run_data(each) for each in result.better],
        "worse": [_run_data(each) for each in result.worse],
        "failed": dict(failed_runs(result.compared)),
        "not_comparable": {
            reason: [run.trajectory.thread_id for run in runs]
            for reason, runs in result.left_out.items()
        },
        "without_score": {
            reason: [run.trajectory.thread_id for run in runs]
            for reason, runs in result.without_score.items()
        },
        "left_out": dict(found.left_out),
        "expected": expected_data(found, expected, cost),
        "asked": {
            "requests": meter.requests,
            "requests_before": before,
            "read": total.read,
            "sampled": total.sampled,
            "cost": total.cost,
        },
        "recorded": config.recorded,
        "graph": config.graph,
        "policy": config.policy,
        "folder": str(out),
    }


def _run_data(each: GatedRun) -> dict[str, Any]:
    difference = each.repeats[0].difference
    new = each.repeats[0].trajectory
    return {
        "run": each.run.trajectory.id,
        "thread": each.run.trajectory.thread_id,
        "task": each.run.trajectory.task.id,
        "prompt": each.run.trajectory.task.prompt,
        "old": each.old,
        "new": each.new,
        "old_answer": each.run.trajectory.answer,
        "new_answer": None if new is None else new.answer,
        "new_run": None if new is None else new.id,
        "role": "" if difference is None else difference.role,
        "difference": _cause(each),
        "diff": [] if difference is None else list(difference.lines),
    }


def _cause(each: GatedRun) -> str:
    """First difference of a run, in words."""
    first = each.repeats[0]
    if first.difference is not None:
        return first.difference.words
    now = first.trajectory
    if now is None or now.status is each.run.trajectory.status:
        return f"ends with {first.other_end or 'another answer'}"
    if now.status is RunStatus.FAILED:
        return f"fails: {error_of(now)}"
    reason = "" if now.stop_reason is None else f" ({now.stop_reason.value})"
    made = len(now.own_calls)
    return f"ends after {made} of {_count(made + len(first.unused), 'request')}{reason}"


def _sentence(result: GateResult) -> str:
    """Verdict in one sentence."""
    runs = len(result.compared)
    on = f"on {_count(runs + sum(map(len, result.without_score.values())), 'run')}"
    if result.unchanged:
        exactly = all(each.unchanged for one in result.compared for each in one.repeats)
        as_recorded = "repeat as recorded" if exactly else "have the recorded requests and scores"
        return f"equal: all {_count(runs, 'run')} {as_recorded}, and nothing was asked"
    found = result.look.difference
    interval = f"({_points(found.low)} to {_points(found.high)})"
    match result.verdict:
        case "better":
            said = f"better by {_points(found.value)} points {interval} {on}"
        case "worse":
            ends = f"({_points(-found.high)} to {_points(-found.low)})"
            said = f"worse by {_points(-found.value)} points {ends} {on}"
        case "equal":
            said = f"equal within the margin: {_points(found.value)} points {interval} {on}"
        case _:
            said = f"undecided: {_points(found.value)} points {interval} {on}"
    if worse := result.worse:
        names = _names([each.run.trajectory.thread_id for each in worse])
        said += f"; {_count(len(worse), 'run')} got worse: {names}"
    return said


def print_report(output: Output, data: Mapping[str, Any]) -> None:
    """Print the result for people."""
    for line in _notes(data):
        output.say(line)
    shown = [*data["worse"], *data["better"]][:_LISTED]
    if shown:
        rows = [
            (
                each["thread"],
                _short(each["prompt"]),
                each["old"],
                each["new"],
                each["difference"],
            )
            for each in shown
        ]
        output.table(("run", "task", "old", "new", "first difference"), rows)
    output.say(f"{data['sentence']}.", style="bold")


def _notes(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"Score: {data['old']:.3f} on record, {data['new']:.3f} now."
    for reason, threads in data["not_comparable"].items():
        yield f"Not comparable: {_count(len(threads), 'run')} ({_names(threads)}): {reason}."
    for reason, threads in data["without_score"].items():
        yield (
            f"Without a score: {_count(len(threads), 'run')} of the new agent ({_names(threads)}):"
            f" {reason}. The interval holds for every score that they could have."
        )
    for error, count in data["failed"].items():
        yield f"Failed, so that the score is 0: {_count(count, 'run')} of the new agent: {error}."
    if data["stopped_early"]:
        yield f"Stopped when the verdict was clear: {data['tasks']} of {data['planned_tasks']} tasks."
    if data["budget_used_up"]:
        yield (
            f"The budget of {data['budget']} does not suffice for the next request, after"
            f" {data['tasks']} of {data['planned_tasks']} tasks. With a larger --budget the same"
            " command continues."
        )
    yield _asked_line(data)


def _asked_line(data: Mapping[str, Any]) -> str:
    asked = data["asked"]
    cost = asked["cost"]
    money = "" if math.isnan(cost) or not cost else f", cost {cost:.4g}"
    before = (
        f" ({asked['requests_before']:,} by earlier starts)" if asked["requests_before"] else ""
    )
    return (
        f"Asked: {asked['requests']:,} requests{before}, {asked['read']:,} + {asked['sampled']:,}"
        f" tokens (prompt + completion){money}."
    )


def markdown(data: Mapping[str, Any]) -> str:
    """Report for a pull request."""
    mark = {"better": "🟢", "equal": "🟢", "worse": "🔴"}.get(data["verdict"], "🟡")
    difference = data["difference"]
    interval = f"{_points(difference['low'])} to {_points(difference['high'])}"
    lines = [
        f"### {mark} Agent gate: {data['verdict']}",
        "",
        f"{_plain(data['sentence'])}.",
        "",
        "| | old | new | difference in points (95 % interval) |",
        "|---|---|---|---|",
        (
            f"| score | {data['old']:.3f} | {data['new']:.3f} |"
            f" {_points(difference['value'])} ({interval}) |"
        ),
        f"| runs that got better, worse | | | {len(data['better'])}, {len(data['worse'])} |",
        "",
    ]
    if data["worse"]:
        lines += ["| got worse | old | new | first difference |", "|---|---|---|---|"]
        lines += [
            f"| {_cell(each['thread'])} | {each['old']:g} | {each['new']:g} |"
            f" {_cell(each['difference'])} |"
            for each in data["worse"][:_LISTED]
        ]
        if len(data["worse"]) > _LISTED:
            lines.append(f"| and {len(data['worse']) - _LISTED} more | | | |")
        lines.append("")
        lines += _diff_lines(data["worse"])
    lines += [f"* {_plain(line)}" for line in _notes(data)]
    return for_terminal("\n".join([*lines, ""]))


def _diff_lines(worse: Sequence[Mapping[str, Any]]) -> list[str]:
    """Diff of the first run that got worse, folded."""
    diff = next((each["diff"] for each in worse if each["diff"]), [])
    if not diff:
        return []
    text = "\n".join(diff)
    fence = "`" * (max((len(run) for run in _backticks(text)), default=2) + 1)
    return [
        "<details><summary>First difference</summary>",
        "",
        f"{fence}diff",
        text,
        fence,
        "",
        "</details>",
        "",
    ]


def _backticks(text: str) -> list[str]:
    return [run for run in "".join(c if c == "`" else " " for c in text).split() if len(run) > 2]


def save_for_viewer(config: GateConfig, data: Mapping[str, Any], out: Path) -> None:
    """Save the result beside the recorded runs. If that cannot be done, it is reported."""
    if "://" in config.recorded:
        return
    recorded = Path(config.recorded)
    folder = recorded if recorded.is_dir() else recorded.parent
    words = shlex.join(["hrm-agent", "resume", str(out)])
    given = config.model_dump(exclude={"report", "fail_on", "concurrency", "price"})
    try:
        save_analysis(
            folder, "gate", given, title=str(data["sentence"]), command=words, result=data
        )
    except OSError as error:
        remark(f"The result is not saved for the viewer: {error}.")


def _points(share: float) -> str:
    """Percentage points. A number that is not 0 is not rounded to 0."""
    points = 100 * share
    return f"{points:.1f}" if abs(points) >= 0.05 or points == 0 else f"{points:.1g}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]}..."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _plain(text: str) -> str:
    """Text in one line of Markdown without markup: it may come from a model."""
    line = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#!@~" else c for c in line)


def _cell(text: str) -> str:
    return _plain(text)
