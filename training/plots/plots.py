"""Plots of training runs: accuracy in a large panel, on held-out problems with its interval, the
rest in small panels.

Lines differ in colour (of Okabe and Ito, distinguishable with any colour vision), in dashes and in
markers, so that a print in grey shows the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hrm_agent.basics.intervals import Estimate
from hrm_agent.basics.plotting import new_figure, save_figure
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.training.plots.lines import Band, PlotLine
from hrm_agent.training.plots.runs import Axis, Kind, PlottedRun, plotted_rows

__all__ = ["PlotStyle", "draw_lines", "metrics_of", "plot_curves"]

_ACCURACY, _HELD_OUT = "rollout/correct", "eval/correct"
_CURVES: dict[Kind, tuple[str, ...]] = {
    "rl": (
        _ACCURACY,
        "loss",
        "rollout/correct_with_tool_error",
        "rollout/sampled_tokens",
        "select/groups_rejected",
        "select/mastered",
        "reward/reward",
    ),
    "sft": ("loss", "accuracy", "grad_norm", "learning_rate"),
}
"""Metrics drawn by default. Those that no run has are left out."""
_TITLES = {
    _ACCURACY: "accuracy of all rollouts",
    _HELD_OUT: "accuracy on held-out problems",
    "accuracy": "tokens that are the most probable ones",
    "rollout/correct_with_tool_error": "tool errors among correct rollouts",
    "rollout/sampled_tokens": "completion tokens per rollout",
    "select/groups_rejected": "groups without a signal",
    "select/mastered": "problems mastered",
    "reward/reward": "reward, weighted sum",
}
_SHARES = {_ACCURACY, _HELD_OUT, "accuracy", "select/groups_rejected", "select/correct"}
"""Metrics drawn on the whole range from 0 to 1."""
_FROM_ZERO = {"rollout/correct_with_tool_error", "rollout/sampled_tokens", "select/mastered"}
_AXES: dict[Axis, str] = {
    "step": "step",
    "tokens": "tokens so far",
    "seconds": "seconds of the steps so far",
}
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
_BANDS: dict[Band, str] = {
    "minmax": "lowest to highest run",
    "interval": "95 % interval over runs",
    "none": "",
}
_HOLLOW: dict[str, Any] = {"markersize": 7, "markerfacecolor": "white", "markeredgewidth": 1.6}
_MANY_POINTS = 60
"""Number of steps above which only some have a marker."""


class PlotStyle(NamedTuple):
    """Style of lines."""

    axis: Axis = "step"
    """Horizontal axis."""
    band: Band = "minmax"
    """Band around the mean of several runs."""
    smooth: int = 1
    """Number of steps of the running mean: a step and those before it."""


def plot_curves(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    title: str,
    held_out: Mapping[int, Estimate] | None = None,
    problems: int = 0,
) -> None:
    """Draw curves over the steps of `rows` (`metrics.jsonl`), counted from 1, as one PNG file.

    `held_out`: accuracy on held-out problems, by the number of updates behind the weights (None:
    from the rows, with `problems` problems each).
    """
    run = plotted_rows(rows, title, problems=problems)
    if held_out is not None:
        run = replace(run, held_out=held_out)
    draw_lines(
        [PlotLine(title, (run,))] if rows else [], metrics_of([run]), path, "png", title=title
    )


def metrics_of(runs: Sequence[PlottedRun], wanted: Sequence[str] = ()) -> list[str]:
    """Names of the metrics to draw: the wanted ones, otherwise the default ones that any run has.
    Raises `ConfigError` for an unknown name.
    """
    known = dict.fromkeys(name for run in runs for name in run.metrics)
    if any(run.held_out for run in runs):
        known[_HELD_OUT] = None
    for name in wanted:
        if name not in known:
            message = f"No run has a metric {name!r}."
            raise ConfigError(message, _nearest(name, known) or f"There are: {', '.join(known)}.")
    if wanted:
        return list(dict.fromkeys(wanted))
    usual = [name for name in _CURVES[runs[0].kind] if name in known]
    if not any(any(run.metrics.get("select/mastered", ())) for run in runs):
        usual = [name for name in usual if name != "select/mastered"]
    return usual or list(known)[:6]


def _nearest(name: str, known: Mapping[str, None]) -> str:
    """Suggestion for an unknown name. `correct` suggests `rollout/correct`, though other names are
    more similar.
    """
    ends = [each for each in known if each.rpartition("/")[2] == name]
    return f"Did you mean {ends[0]!r}?" if ends else nearest(name, known)


def draw_lines(
    lines: Sequence[PlotLine],
    metrics: Sequence[str],
    path: Path,
    kind: str,
    style: PlotStyle | None = None,
    *,
    title: str = "",
) -> None:
    """Draw one panel for each metric, the first one large, to `path` as `png` or `svg`."""
    style = style or PlotStyle()
    rest = math.ceil((len(metrics) - 1) / 2)
    figure = new_figure(10, 4.6 + 2.7 * rest, _plain(title) if title else "")
    if not metrics:
        save_figure(figure, path, kind)
        return
    grid = figure.add_gridspec(1 + rest, 2, height_ratios=[1.45] + [1] * rest)
    for place, name in enumerate(metrics):
        row, column = divmod(place + 1, 2)
        alone = place == 0 or (column == 0 and place == len(metrics) - 1)
        where = grid[row, slice(None) if alone else column]
        _panel(figure.add_subplot(where), lines, name, style)
    if len(lines) > 1 or len(lines[0].runs) > 1:
        handles = [_handle(number, _legend(line, style)) for number, line in enumerate(lines)]
        figure.legend(
            handles=handles, loc="outside upper left", ncols=min(2, len(lines)), handlelength=4
        )
    save_figure(figure, path, kind)


def _handle(number: int, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **_look(number), linewidth=1.6, markersize=3.5, label=_plain(label))


def _look(number: int) -> dict[str, Any]:
    """Look of a line by its number. Colours, dashes and markers repeat after 7, 5 and 8, so 280
    lines differ.
    """
    parts = {"color": _COLORS, "linestyle": _DASHES, "marker": _MARKERS}
    return {name: choices[number % len(choices)] for name, choices in parts.items()}


def _panel(axes: Any, lines: Sequence[PlotLine], metric: str, style: PlotStyle) -> None:
    for number, line in enumerate(lines):
        if metric != _HELD_OUT:
            _curve(axes, line, metric, style, _look(number))
        if metric in (_ACCURACY, _HELD_OUT):
            _held_out(axes, line, style, _look(number))
    for began in _stages(lines, style.axis):
        axes.axvline(began, color="0.6", linewidth=1)
    smoothed = f", mean of {style.smooth} steps" if style.smooth > 1 and metric != _HELD_OUT else ""
    axes.set(title=_plain(f"{_TITLES.get(metric, metric)}{smoothed}"), xlabel=_AXES[style.axis])
    if metric in _SHARES:
        axes.set_ylim(-0.02, 1.02)
    elif metric in _FROM_ZERO:
        axes.update_datalim([(axes.dataLim.x0, 0.0)])
        axes.autoscale_view()
    axes.grid(alpha=0.3)
    if style.axis == "step":
        axes.xaxis.get_major_locator().set_params(integer=True)
    if metric == _ACCURACY and any(line.held_out(style.axis, style.band) for line in lines):
        _key(axes, lines, style)


def _curve(
    axes: Any, line: PlotLine, metric: str, style: PlotStyle, look: Mapping[str, Any]
) -> None:
    points = line.points(metric, style.axis, style.band, style.smooth) if _has(line, metric) else []
    xs = [x for x, _ in points]
    every = max(1, len(xs) // 15) if len(xs) > _MANY_POINTS else 1
    several = len(line.runs) > 1
    if several and style.band != "none":
        axes.fill_between(
            xs,
            [p.low for _, p in points],
            [p.high for _, p in points],
            color=look["color"],
            alpha=0.18,
            linewidth=0,
        )
    if style.smooth > 1 and not several:
        raw = line.points(metric, style.axis, style.band) if points else []
        axes.plot(xs, [p.value for _, p in raw], color=look["color"], alpha=0.3, linewidth=1)
    axes.plot(
        xs, [p.value for _, p in points], **look, linewidth=1.6, markersize=3.5, markevery=every
    )


def _legend(line: PlotLine, style: PlotStyle) -> str:
    if len(line.runs) == 1:
        return line.label
    return f"{line.label}: mean" + (f", {_BANDS[style.band]}" if style.band != "none" else "")


def _plain(text: str) -> str:
    """Text that matplotlib neither sets as a formula nor hides."""
    return text.lstrip("_").replace("$", r"\$") or "-"


def _has(line: PlotLine, metric: str) -> bool:
    return any(metric in run.metrics for run in line.runs)


def _held_out(axes: Any, line: PlotLine, style: PlotStyle, look: Mapping[str, Any]) -> None:
    points = line.held_out(style.axis, style.band)
    if not points:
        return
    xs, values = [x for x, _ in points], [p.value for _, p in points]
    errors = ([p.value - p.low for _, p in points], [p.high - p.value for _, p in points])
    shown = {**look, **_HOLLOW, "linestyle": ":", "linewidth": 1.2, "capsize": 4, "zorder": 3}
    axes.errorbar(xs, values, yerr=errors, label="_held_out", **shown)


def _key(axes: Any, lines: Sequence[PlotLine], style: PlotStyle) -> None:
    """Draw a legend of rollouts and held-out problems in grey, since colours distinguish the
    runs.
    """
    from matplotlib.lines import Line2D

    single = any(len(line.runs) == 1 for line in lines)
    over = ["95 % interval over problems"] if single else []
    if style.band != "none" and any(len(line.runs) > 1 for line in lines):
        over.append(_BANDS[style.band])
    held_out = Line2D([], [], color="0.3", linestyle=":", marker="o", **_HOLLOW)
    axes.legend(
        [Line2D([], [], color="0.3", marker="o", markersize=3.5), held_out],
        ["rollouts of the step", f"held-out problems, after so many updates{', ' * bool(over)}{' or '.join(over)}"],
        loc="lower right", fontsize="small",
    )  # fmt: skip


def _stages(lines: Sequence[PlotLine], axis: Axis) -> list[float]:
    """Positions at which a run entered another stage, halfway between the two steps (empty for
    several lines).
    """
    if len(lines) != 1 or "stage" not in lines[0].runs[0].metrics:
        return []
    run = lines[0].runs[0]
    stages, xs = run.metrics["stage"], run.over(axis)
    return [(xs[i - 1] + xs[i]) / 2 for i in range(1, len(xs)) if stages[i] != stages[i - 1]]
