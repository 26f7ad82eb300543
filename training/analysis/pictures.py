"""Pictures of the analysis, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hrm_agent.basics.plotting import new_figure, save_figure
from hrm_agent.training.analysis.facts import ToolErrorRow
from hrm_agent.training.analysis.report import AnalysisReport, TokenReport
from hrm_agent.training.analysis.selection import SelectionRow

__all__ = ["PICTURES", "Picture", "draw"]

_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#2f7ebc", "#d1630b", "#2a8f62", "#8a63c9", "#80868b"
"""Colours distinguishable with any colour vision, each with a contrast of 3:1 against white and
against the dark page.
"""
_KINDS = {
    "error": (_ORANGE, "o", "after a tool error"),
    "ok": (_BLUE, "s", "after a tool response without error"),
    "none": (_GREY, "^", "after no tool response"),
}
_CLASSES = 5
"""Number of error classes with a separate colour."""
_DARK = "#e2e8ee"


class Picture(NamedTuple):
    """One picture of the analysis."""

    name: str
    """File name without suffix."""
    alt: str
    """Alternative text."""
    draw: Callable[[AnalysisReport], Any]
    """Function that draws the figure (returns None if the report has no data for it)."""


def draw(report: AnalysisReport, folder: Path, *, dark: bool = False) -> dict[str, Path]:
    """Draw the pictures that the report has data for, as PNG files in `folder`. Return paths by
    name.

    Raises `ConfigError` if matplotlib is not installed.
    """
    new_figure(1, 1)  # raises if matplotlib is missing, before its parts are imported
    written: dict[str, Path] = {}
    with _colours(dark=dark):
        for picture in PICTURES:
            figure = picture.draw(report)
            if figure is not None:
                written[picture.name] = folder / f"{picture.name}{'-dark' * dark}.png"
                save_figure(figure, written[picture.name])
    return written


@contextmanager
def _colours(*, dark: bool) -> Generator[None]:
    from matplotlib import rc_context

    shown: dict[str, Any] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 10.5,
    }
    if dark:
        inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        shown |= dict.fromkeys(inks, _DARK)
        shown |= dict.fromkeys(
            ("figure.facecolor", "savefig.facecolor", "axes.facecolor"), "#14181d"
        )
        shown |= {
            "legend.facecolor": "#14181d",
            "legend.edgecolor": "#38424c",
            "grid.color": "#9aa0a6",
        }
    settings: Any = shown
    with rc_context(settings):
        yield


def _entropy(report: AnalysisReport) -> Any:
    tokens = report.tokens
    if tokens is None:
        return None
    figure = new_figure(11, 3.6)
    spread, parts = figure.subplots(1, 2, width_ratios=(1, 1))
    width = (tokens.histogram_end or 1.0) / len(tokens.histogram)
    spread.bar(
        [width * (n + 0.5) for n in range(len(tokens.histogram))],
        tokens.histogram,
        width,
        color=_BLUE,
    )
    spread.axvline(
        tokens.threshold,
        color=_ORANGE,
        linestyle="--",
        label=f"forking above {tokens.threshold:.3g}",
    )
    spread.set(
        title="completion tokens by entropy",
        xlabel="nats",
        ylabel="tokens (log scale)",
        yscale="log",
    )
    spread.legend(loc="upper right")
    _by_part(parts, report, tokens)
    return figure


def _by_part(axes: Any, report: AnalysisReport, tokens: TokenReport) -> None:
    """Draw mean entropy over the steps, with the recorded -log p; or a bar for each part if there
    are fewer than two steps.
    """
    recorded = [row for row in report.surprise if row.step is not None]
    if len(recorded) > 1:
        axes.plot(
            [row.step for row in recorded],
            [row.mean for row in recorded],
            color=_GREY,
            label="mean -log p, recorded",
        )
        for exact, marker, label in (
            (True, "o", "entropy"),
            (False, "x", "entropy by other weights"),
        ):
            own = [part for part in tokens.parts if part.exact is exact and part.step is not None]
            if own:
                numbers = [part.step for part in own], [part.mean_entropy for part in own]
                axes.plot(*numbers, marker, color=_BLUE if exact else _PURPLE, label=label)
        axes.set(xlabel="step", ylabel="nats", ylim=(0, None), title="mean entropy by step")
        _whole_steps(axes)
        axes.grid(alpha=0.3)
        axes.legend()
        return
    rows = [part for part in tokens.parts if part.tokens]
    bars = axes.barh(range(len(rows)), [part.mean_entropy for part in rows], 0.6, color=_BLUE)
    axes.bar_label(
        bars, [f"{part.mean_entropy:.3f}{'' if part.exact else ' *'}" for part in rows], padding=3
    )
    axes.set_yticks(range(len(rows)), [part.part[:24] for part in rows])
    axes.invert_yaxis()
    axes.set(
        xlabel="nats",
        title="mean entropy" + " (* by other weights)" * any(not part.exact for part in rows),
    )
    axes.margins(x=0.15)


def _reflection(report: AnalysisReport) -> Any:
    if report.tokens is None or not any(
        each.calls for each in report.tokens.reflection if each.after != "none"
    ):
        return None
    figure = new_figure(11, 3.4)
    axes = figure.subplots()
    for each in report.tokens.reflection:
        if each.calls:
            colour, marker, label = _KINDS[each.after]
            places = range(1, len(each.entropy_by_place) + 1)
            label = f"{label} ({each.calls} calls)"
            axes.plot(places, each.entropy_by_place, marker=marker, color=colour, label=label)
    axes.set(
        title="entropy of the first completion tokens of a call",
        xlabel="completion token",
        ylabel="mean, nats",
    )
    axes.set_ylim(0, None)
    _whole_steps(axes)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _tool_errors(report: AnalysisReport) -> Any:
    rows = [row for row in report.tool_errors if row.calls]
    if not rows:
        return None
    steps = [row for row in rows if row.step is not None]
    shown = steps if len(steps) > 1 else rows
    figure = new_figure(11, 3.8)
    classes, correct = figure.subplots(1, 2)
    _stacked(classes, shown)
    _places(correct, shown)
    values = [row.correct_with_tool_error for row in shown]
    correct.plot(
        range(len(shown)), values, marker="o", markersize=4, color=_BLUE, label="all rollouts"
    )
    kept = {row.step: row.kept_tool_error for row in report.selection_by_step}
    if kept:
        values = [math.nan if row.step is None else kept.get(row.step, math.nan) for row in shown]
        correct.plot(
            range(len(shown)),
            values,
            marker="s",
            markersize=4,
            linestyle="--",
            color=_ORANGE,
            label="trained on",
        )
        correct.legend()
    correct.set(title="correct rollouts with a tool error, share", ylim=(0, None))
    correct.grid(alpha=0.3)
    return figure


def _stacked(axes: Any, rows: Sequence[ToolErrorRow]) -> None:
    total: dict[str, int] = {}
    for row in rows:
        for name, count in _failures(row).items():
            total[name] = total.get(name, 0) + count
    named = sorted(total, key=lambda name: -total[name])[:_CLASSES]
    colours = dict(zip(named, (_ORANGE, _BLUE, _GREEN, _PURPLE, "#b0477a"), strict=False)) | {
        "other": _GREY
    }
    hatches = dict(zip(colours, ("", "//", "..", "xx", "\\\\", "--"), strict=False))
    below = [0.0] * len(rows)
    for name in colours:
        values = [_share(row, name, named) for row in rows]
        if any(values):
            axes.bar(
                range(len(rows)),
                values,
                0.8,
                below,
                color=colours[name],
                hatch=hatches[name],
                label=name[:28],
            )
            below = [a + b for a, b in zip(below, values, strict=True)]
    _places(axes, rows)
    axes.set(title="tool calls that failed, share", ylim=(0, None))
    if any(below):
        axes.legend()


def _failures(row: ToolErrorRow) -> dict[str, int]:
    """Failed calls by status, and those with status `error` by class."""
    others = {
        name: count
        for name, count in row.statuses.items()
        if name not in ("ok", "error", "under way")
    }
    return {**others, **row.errors}


def _share(row: ToolErrorRow, name: str, named: Sequence[str]) -> float:
    found = _failures(row)
    count = (
        found.get(name, 0)
        if name in named
        else sum(c for other, c in found.items() if other not in named)
    )
    return count / max(1, row.calls)


def _whole_steps(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True)


def _places(axes: Any, rows: Sequence[ToolErrorRow]) -> None:
    """Label the axis with step numbers, or names of other parts."""
    every = max(1, math.ceil(len(rows) / 10))
    shown = [n for n in range(len(rows)) if n % every == 0 or n == len(rows) - 1]
    if len(shown) > 1 and shown[-1] - shown[-2] < every:
        shown.pop(-2)
    of_steps = all(row.step is not None for row in rows)
    names = [str(rows[n].step) if of_steps else rows[n].part[:18] for n in shown]
    axes.set_xticks(shown, names)
    if of_steps:
        axes.set_xlabel("step")


def _lengths(report: AnalysisReport) -> Any:
    bins = report.length_bins
    if not bins:
        return None
    figure = new_figure(11, 3.6)
    by_length, by_step = figure.subplots(1, 2)
    names = [
        str(each.least) if each.least == each.most else f"{each.least} to {each.most}"
        for each in bins
    ]
    values = [each.accuracy for each in bins]
    errors = [
        [e.accuracy - e.interval[0] for e in bins],
        [e.interval[1] - e.accuracy for e in bins],
    ]
    by_length.bar(range(len(bins)), values, 0.7, color=_BLUE, yerr=errors, capsize=3, ecolor=_GREY)
    by_length.set_xticks(range(len(bins)), names, rotation=30 if len(bins) > 4 else 0)
    by_length.set(
        title="right, by length, with 95 % interval", xlabel="completion tokens", ylim=(0, 1.05)
    )
    rows = [row for row in report.lengths if row.step is not None]
    if len(rows) > 1:
        steps = [row.step for row in rows]
        by_step.plot(
            steps,
            [row.correct for row in rows],
            marker="o",
            markersize=4,
            color=_BLUE,
            label="correct",
        )
        wrong = [row.wrong for row in rows]
        by_step.plot(
            steps, wrong, marker="s", markersize=4, linestyle="--", color=_ORANGE, label="wrong"
        )
        by_step.set(xlabel="step")
        _whole_steps(by_step)
        by_step.legend()
    else:
        parts = report.lengths
        for offset, colour, label in ((-0.2, _BLUE, "correct"), (0.2, _ORANGE, "wrong")):
            heights = [getattr(row, label) for row in parts]
            by_step.bar(
                [n + offset for n in range(len(parts))], heights, 0.38, color=colour, label=label
            )
        by_step.set_xticks(range(len(parts)), [row.part[:18] for row in parts])
        by_step.legend()
    by_step.set(title="completion tokens, mean", ylim=(0, None))
    by_step.grid(alpha=0.3)
    return figure


def _selection(report: AnalysisReport) -> Any:
    rows = report.selection_by_step
    if not rows:
        return None
    figure = new_figure(11, 3.6)
    correct, rejected = figure.subplots(1, 2)
    steps = [row.step for row in rows]
    _both(correct, rows, steps, {"all rollouts": "correct", "trained on": "kept_correct"})
    correct.set(title="correct, share", ylim=(0, 1.05), xlabel="step")
    rejected.plot(
        steps, [row.groups_rejected for row in rows], marker="o", markersize=4, color=_PURPLE
    )
    rejected.set(title="groups without a signal, share", ylim=(0, 1.05), xlabel="step")
    _whole_steps(rejected)
    rejected.grid(alpha=0.3)
    return figure


def _both(
    axes: Any, rows: Sequence[SelectionRow], steps: Sequence[int], names: Mapping[str, str]
) -> None:
    for (label, name), colour, marker, line in zip(
        names.items(), (_BLUE, _ORANGE), ("o", "s"), ("-", "--"), strict=True
    ):
        values = [getattr(row, name) for row in rows]
        axes.plot(
            steps, values, marker=marker, markersize=4, linestyle=line, color=colour, label=label
        )
    _whole_steps(axes)
    axes.grid(alpha=0.3)
    axes.legend()


PICTURES = (
    Picture(
        "entropy", "Completion tokens by entropy, and mean entropy by part of the run", _entropy
    ),
    Picture(
        "reflection",
        "Mean entropy of the first completion tokens, by what came before",
        _reflection,
    ),
    Picture(
        "tool-errors",
        "Failed tool calls by status and class, and correct rollouts with a tool error",
        _tool_errors,
    ),
    Picture(
        "lengths",
        "Accuracy by completion tokens, and lengths of correct and wrong rollouts",
        _lengths,
    ),
    Picture(
        "selection",
        "Accuracy of all rollouts and of those trained on, and groups without a signal",
        _selection,
    ),
)
"""Pictures in the order of the page."""
