"""Plots of training runs: accuracy in a large panel (on held-out problems with its interval), and
other metrics in small panels.

Runs that differ only in the seed form one line: their mean, with a band.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from hrm_agent.basics.intervals import Estimate, mean_interval
from hrm_agent.basics.plotting import curve, finish, line_look, new_figure, save_figure
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.training.plots.runs import Axis, Kind, PlottedRun, plotted_rows

__all__ = [
    "Band",
    "PlotLine",
    "PlotStyle",
    "draw_lines",
    "metrics_of",
    "plot_curves",
    "plot_lines",
]

Band = Literal["minmax", "interval", "none"]
"""Band around the mean of several runs. minmax: their range. interval: the 95 % interval of the
mean. none: no band.
"""

_SEEDS_NAMED = 6


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line of a plot."""

    label: str
    """Label in the legend."""
    runs: tuple[PlottedRun, ...]
    """Runs of the line. If there are several, their mean is drawn."""

    @property
    def steps(self) -> int:
        """Last step of the line: the last for which all runs have values. Beyond it, the mean would
        be over fewer runs and jump.
        """
        return min(run.steps[-1] for run in self.runs)

    def points(
        self, metric: str, axis: Axis, band: Band, smooth: int = 1
    ) -> list[tuple[float, Estimate]]:
        """Points of the line: position on the axis, and the mean with its band (nan if no run has a
        value).
        """
        runs = [run for run in self.runs if metric in run.metrics]
        series = [
            dict(zip(run.steps, _smoothed(run.metrics[metric], smooth), strict=True))
            for run in runs
        ]
        places = [run.places(axis) for run in runs]
        steps = sorted({step for each in series for step in each if step <= self.steps})
        return [
            (_mean(p[s] for p in places if s in p), _over([e[s] for e in series if s in e], band))
            for s in steps
        ]

    def held_out(self, axis: Axis, band: Band) -> list[tuple[float, Estimate]]:
        """Accuracy on held-out problems, as (position, estimate) in the order of updates. The
        interval of a single run is over its problems.
        """
        at = sorted({updates for run in self.runs for updates in run.held_out})
        found: list[tuple[float, Estimate]] = []
        for updates in at:
            of = [
                run for run in self.runs if updates in run.held_out and updates in (0, *run.steps)
            ]
            if not of or len(of) < len(self.runs):
                continue
            place = fmean(run.places(axis)[updates] for run in of)
            single = of[0].held_out[updates]
            found.append(
                (
                    place,
                    (
                        single
                        if len(of) == 1
                        else _over([r.held_out[updates].value for r in of], band)
                    ),
                )
            )
        return found


def _smoothed(values: Sequence[float], steps: int) -> list[float]:
    """Running means: of each value and the values before it, `steps` in all."""
    return (
        [_mean(values[max(0, end - steps) : end]) for end in range(1, len(values) + 1)]
        if steps > 1
        else list(values)
    )


def _mean(values: Sequence[float] | Iterator[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _over(values: Sequence[float], band: Band) -> Estimate:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Estimate(math.nan, math.nan, math.nan)
    mean = fmean(known)
    if band == "minmax":
        return Estimate(mean, min(known), max(known))
    if band == "none" or len(known) < 2:
        return Estimate(mean, mean, mean)
    return mean_interval(known)


def plot_lines(
    runs: Sequence[PlottedRun], *, by_seed: bool = True, labels: Sequence[str] = ()
) -> list[PlotLine]:
    """Group the runs into lines, in their order.

    `by_seed`: runs with the same configuration except the seed form one line. `labels`: a label for
    each run; runs with the same label form one line. Raises `ConfigError` for runs of different
    kinds, or if the numbers of labels and runs differ.
    """
    kinds = {run.kind: run.name for run in runs}
    if len(kinds) > 1:
        raise ConfigError(
            f"{kinds['rl']} was trained by reinforcement and {kinds['sft']} on conversations: their"
            " losses and steps cannot be compared.",
            "Plot the runs of `train rl` and of `train sft` one after the other.",
        )
    if labels and len(labels) != len(runs):
        raise ConfigError(
            f"There are {len(labels)} labels for {len(runs)} runs.",
            "Write --label once for each run, in their order.",
        )
    groups: dict[Any, list[PlottedRun]] = {}
    for number, run in enumerate(runs):
        same = (
            tuple(sorted((key, repr(value)) for key, value in run.config.items()))
            if by_seed and run.config
            else ()
        )
        groups.setdefault(labels[number] if labels else same or number, []).append(run)
    if labels:
        return [PlotLine(str(label), tuple(group)) for label, group in groups.items()]
    named = _labels(list(groups.values()))
    return [
        PlotLine(label, tuple(group)) for label, group in zip(named, groups.values(), strict=True)
    ]


def _labels(groups: Sequence[Sequence[PlottedRun]]) -> list[str]:
    """Labels of groups of runs: the keys in which the groups differ if there are at most two, else
    the names of the runs' folders.
    """
    configs = [group[0].config for group in groups]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differing = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    told = differing if len(differing) <= 2 else []
    labels = [_label(group, told) for group in groups]
    return [
        f"{label} ({group[0].name})" if labels.count(label) > 1 else label
        for label, group in zip(labels, groups, strict=True)
    ]


def _label(group: Sequence[PlottedRun], keys: Sequence[str]) -> str:
    config = group[0].config
    differing: list[str] = []
    for key in keys:
        value = config.get(key, "default")
        told = f"{value:g}" if isinstance(value, float) else str(value)
        differing.append(f"{key.rpartition('/')[2]} {told}")
    values = ", ".join(differing)
    if len(group) == 1:
        return f"{group[0].name}: {values}" if values else group[0].name
    seeds = [str(run.seed) for run in group]
    told_seeds = (
        f"seeds {', '.join(seeds)}" if len(seeds) <= _SEEDS_NAMED else f"{len(seeds)} seeds"
    )
    return f"{values or group[0].name + ' and others'}, {told_seeds}"


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
"""Metrics that are drawn by default, if a run has them."""
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
"""Metrics that are drawn on the whole range from 0 to 1."""
_FROM_ZERO = {"rollout/correct_with_tool_error", "rollout/sampled_tokens", "select/mastered"}
_AXES: dict[Axis, str] = {
    "step": "step",
    "tokens": "tokens so far",
    "seconds": "seconds of the steps so far",
}
_BANDS: dict[Band, str] = {
    "minmax": "lowest to highest run",
    "interval": "95 % interval over runs",
    "none": "",
}
_HOLLOW: dict[str, Any] = {"markersize": 7, "markerfacecolor": "white", "markeredgewidth": 1.6}


class PlotStyle(NamedTuple):
    """Style of lines."""

    axis: Axis = "step"
    """Horizontal axis."""
    band: Band = "minmax"
    """Band around the mean of several runs."""
    smooth: int = 1
    """Number of steps in the running mean: a step and the steps before it."""


def plot_curves(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    title: str,
    held_out: Mapping[int, Estimate] | None = None,
    problems: int = 0,
) -> None:
    """Draw curves over the steps of `rows` (`metrics.jsonl`), counted from 1, as one PNG file.

    `held_out`: number of updates behind the weights -> accuracy on held-out problems (None: read
    from the rows, for `problems` problems).
    """
    run = plotted_rows(rows, title, problems=problems)
    if held_out is not None:
        run = replace(run, held_out=held_out)
    draw_lines(
        [PlotLine(title, (run,))] if rows else [], metrics_of([run]), path, "png", title=title
    )


def metrics_of(runs: Sequence[PlottedRun], wanted: Sequence[str] = ()) -> list[str]:
    """Names of the metrics to draw: the wanted metrics, or if none are named the default metrics
    that any run has. Raises `ConfigError` for an unknown name.
    """
    known = dict.fromkeys(name for run in runs for name in run.metrics)
    if any(run.held_out for run in runs):
        known[_HELD_OUT] = None
    for name in wanted:
        if name not in known:
            # suggest `rollout/correct` for `correct`, although other names are more similar
            ends = [each for each in known if each.rpartition("/")[2] == name]
            hint = f"Did you mean {ends[0]!r}?" if ends else nearest(name, known)
            raise ConfigError(
                f"No run has a metric {name!r}.", hint or f"There are: {', '.join(known)}."
            )
    if wanted:
        return list(dict.fromkeys(wanted))
    usual = [name for name in _CURVES[runs[0].kind] if name in known]
    if not any(any(run.metrics.get("select/mastered", ())) for run in runs):
        usual = [name for name in usual if name != "select/mastered"]
    return usual or list(known)[:6]


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
        from matplotlib.lines import Line2D

        handles: list[Line2D] = []
        for number, line in enumerate(lines):
            label = line.label
            if len(line.runs) > 1:
                label += ": mean" + (f", {_BANDS[style.band]}" if style.band != "none" else "")
            handles.append(Line2D([], [], **line_look(number), label=_plain(label)))
        figure.legend(
            handles=handles, loc="outside upper left", ncols=min(2, len(lines)), handlelength=4
        )
    save_figure(figure, path, kind)


def _panel(axes: Any, lines: Sequence[PlotLine], metric: str, style: PlotStyle) -> None:
    for number, line in enumerate(lines):
        if metric != _HELD_OUT and any(metric in run.metrics for run in line.runs):
            points = line.points(metric, style.axis, style.band, style.smooth)
            several = len(line.runs) > 1
            if style.smooth > 1 and not several:
                raw = line.points(metric, style.axis, style.band)
                pale: dict[str, Any] = {
                    "alpha": 0.3,
                    "linewidth": 1,
                    "marker": "",
                    "linestyle": "-",
                }
                curve(axes, number, [x for x, _ in raw], [p for _, p in raw], **pale)
            band = "fill" if several and style.band != "none" else "none"
            curve(axes, number, [x for x, _ in points], [p for _, p in points], band=band)
        if metric in (_ACCURACY, _HELD_OUT):
            points = line.held_out(style.axis, style.band)
            hollow = {**_HOLLOW, "linestyle": ":", "linewidth": 1.2, "capsize": 4, "zorder": 3}
            curve(
                axes, number, [x for x, _ in points], [p for _, p in points], "", "bars", **hollow
            )
    for began in _stages(lines, style.axis):
        axes.axvline(began, color="0.6", linewidth=1)
    smoothed = f", mean of {style.smooth} steps" if style.smooth > 1 and metric != _HELD_OUT else ""
    title = _plain(f"{_TITLES.get(metric, metric)}{smoothed}")
    finish(axes, title, xlabel=_AXES[style.axis], whole_steps=style.axis == "step")
    if metric in _SHARES:
        axes.set_ylim(-0.02, 1.02)
    elif metric in _FROM_ZERO:
        axes.update_datalim([(axes.dataLim.x0, 0.0)])
        axes.autoscale_view()
    if metric == _ACCURACY and any(line.held_out(style.axis, style.band) for line in lines):
        _key(axes, lines, style)


def _plain(text: str) -> str:
    """Text changed so that matplotlib neither sets it as a formula nor hides it."""
    return text.lstrip("_").replace("$", r"\$") or "-"


def _key(axes: Any, lines: Sequence[PlotLine], style: PlotStyle) -> None:
    """Draw a legend for rollouts and held-out problems. It is grey, since colours distinguish the
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
    """Positions at which a run entered another stage, halfway between two steps (empty if there are
    several lines).
    """
    if len(lines) != 1 or "stage" not in lines[0].runs[0].metrics:
        return []
    run = lines[0].runs[0]
    stages = run.metrics["stage"]
    xs = run.over(axis)
    return [(xs[i - 1] + xs[i]) / 2 for i in range(1, len(xs)) if stages[i] != stages[i - 1]]
