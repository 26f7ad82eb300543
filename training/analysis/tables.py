"""Tables of an analysis for the console."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hrm_agent.training.analysis.forking import TokenExample
from hrm_agent.training.analysis.report import AnalysisReport, TokenReport

__all__ = [
    "Columns",
    "error_class_table",
    "length_table",
    "reflection_table",
    "selection_table",
    "token_tables",
    "weights_table",
]

_SHOWN = 12
"""Maximum number of tokens on the console."""


class Columns(NamedTuple):
    """One table."""

    title: str
    """Title of the table."""
    columns: tuple[str, ...]
    """Column names."""
    rows: list[Sequence[object]]
    """Rows of cells."""


def weights_table(tokens: TokenReport, run: str) -> Columns:
    """Weights that computed entropies, by sampler of the tokens."""
    columns = (
        "sampled by",
        "version",
        "computed by",
        "the same",
        "calls",
        "tokens",
        "temperature",
        "mean nats",
    )
    rows: list[Sequence[object]] = [
        (
            use.model,
            use.version,
            use.weights.removeprefix(f"{run.rstrip('/')}/"),
            "yes" if use.exact else "NO",
            use.calls,
            use.tokens,
            ", ".join(f"{each:g}" for each in use.temperatures),
            use.mean_entropy,
            f"{use.mean_difference:.2g}",
        )
        for use in tokens.weights
    ]
    return Columns(
        "weights, and how far their log-probs are from those recorded",
        (*columns, "|log-prob - recorded|"),
        rows,
    )


def token_tables(tokens: TokenReport) -> list[Columns]:
    """Forking and reflection tokens by text, for a console."""
    titled = [(f"forking tokens, above {tokens.threshold:.4g} nats", tokens.forking)]
    titled += [
        (f"reflection tokens after tool responses: {each.after}", each.rows)
        for each in tokens.reflection
        if each.after != "none"
    ]
    columns = ("token", "count", "share", "mean nats", "of so many", "for example")
    return [
        Columns(
            title,
            columns,
            [
                (
                    repr(row.text),
                    row.count,
                    row.share,
                    row.mean_entropy,
                    row.occurrences,
                    _in_context(row.examples),
                )
                for row in rows[:_SHOWN]
            ],
        )
        for title, rows in titled
        if rows
    ]


def reflection_table(tokens: TokenReport) -> Columns:
    """First completion tokens of calls, by the tool responses before them."""
    rows: list[Sequence[object]] = [
        (each.after, each.calls, each.tokens, each.mean_entropy, each.marked_share)
        for each in tokens.reflection
    ]
    columns = ("tool response before", "calls", "tokens", "mean nats", "share above the threshold")
    return Columns(f"the first {tokens.window} completion tokens of a call", columns, rows)


def error_class_table(report: AnalysisReport) -> Columns:
    """Tool calls by status, and raised errors by class."""
    statuses: dict[str, int] = {}
    for row in report.tool_errors:
        for name, count in row.statuses.items():
            statuses[name] = statuses.get(name, 0) + count
    rows: list[Sequence[object]] = [(name, "", count, "", "") for name, count in statuses.items()]
    rows += [
        ("error", each.name, each.calls, each.correct_rollouts, each.example)
        for each in report.error_classes
    ]
    columns = ("status", "class", "calls", "correct rollouts with it", "commonest last line")
    return Columns("tool calls by how they ended", columns, rows)


def length_table(report: AnalysisReport) -> Columns:
    """Accuracy by length."""
    rows: list[Sequence[object]] = [
        (f"{each.least} to {each.most}", each.rollouts, each.accuracy, *each.interval)
        for each in report.length_bins
    ]
    return Columns(
        "accuracy by completion tokens", ("tokens", "rollouts", "right", "from", "to"), rows
    )


def selection_table(report: AnalysisReport) -> list[Columns]:
    """Comparison of kept and sampled rollouts, and reasons for the rest."""
    rows: list[Sequence[object]] = [
        (each.measure, *(_count(value) for value in (each.all, each.in_groups, each.kept)))
        for each in report.selection
    ]
    columns = ("measure", "all rollouts", "in groups with a signal", "trained on")
    drops: list[Sequence[object]] = [
        (d.verdict, d.reason, d.rollouts, d.correct) for d in report.drops
    ]
    return [
        Columns("all rollouts against those trained on", columns, rows),
        Columns("left out", ("verdict", "reason", "rollouts", "correct"), drops),
    ]


def _count(value: float) -> object:
    """Number of rollouts as a whole number. Other values are unchanged."""
    return int(value) if math.isfinite(value) and value.is_integer() and value > 1 else value


def _in_context(examples: Sequence[TokenExample]) -> str:
    lines = [f"{each.before[-24:]}[{each.text}]{each.after[:24]}" for each in examples[:1]]
    return "".join(lines).replace("\n", "⏎")
