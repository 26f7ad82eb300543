"""Lines of a plot: runs that differ only in the seed form one line, their mean with a band."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from hrm_agent.basics.intervals import Estimate
from hrm_agent.errors import ConfigError
from hrm_agent.training.plots.runs import Axis, PlottedRun

__all__ = ["Band", "PlotLine", "plot_lines"]

Band = Literal["minmax", "interval", "none"]
"""Band around the mean of several runs: their range, the 95 % interval of the mean, or none."""

_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
"""Percentiles (97.5th) of Student's t, by degrees of freedom from 1."""
_T95_MORE = 2.131
"""Percentile for more degrees of freedom, slightly too large."""
_SEEDS_NAMED = 6


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line of a plot."""

    label: str
    """Label in the legend."""
    runs: tuple[PlottedRun, ...]
    """Runs of the line. The mean of several is drawn."""

    @property
    def steps(self) -> int:
        """Last step of the line, up to which all runs have values. A mean over fewer runs would
        jump.
        """
        return min(run.steps[-1] for run in self.runs)

    def points(
        self, metric: str, axis: Axis, band: Band, smooth: int = 1
    ) -> list[tuple[float, Estimate]]:
        """Points of the line: position on the axis, and the mean with its band (nan if no run has a
        value).
        """
        series = [
            dict(zip(run.steps, _smoothed(run.metrics[metric], smooth), strict=True))
            for run in self._with(metric)
        ]
        places = [run.places(axis) for run in self._with(metric)]
        steps = sorted({step for each in series for step in each if step <= self.steps})
        return [
            (_mean(p[s] for p in places if s in p), _over([e[s] for e in series if s in e], band))
            for s in steps
        ]

    def held_out(self, axis: Axis, band: Band) -> list[tuple[float, Estimate]]:
        """Accuracy on held-out problems, as (position, estimate) by updates. A single run has the
        interval over its problems.
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

    def _with(self, metric: str) -> list[PlottedRun]:
        return [run for run in self.runs if metric in run.metrics]


def _smoothed(values: Sequence[float], steps: int) -> list[float]:
    """Running mean of each value and those before it, `steps` in all."""
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
    mean, count = fmean(known), len(known)
    if band == "minmax":
        return Estimate(mean, min(known), max(known))
    if band == "none" or count < 2:
        return Estimate(mean, mean, mean)
    t = _T95[count - 2] if count - 2 < len(_T95) else _T95_MORE
    half = t * stdev(known) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half)


def plot_lines(
    runs: Sequence[PlottedRun], *, by_seed: bool = True, labels: Sequence[str] = ()
) -> list[PlotLine]:
    """Group the runs into lines, in their order.

    `by_seed`: runs of one configuration form one line. `labels`: one for each run; runs of one
    label form one line. Raises `ConfigError` for runs of different kinds, or another number of
    labels than of runs.
    """
    kinds = {run.kind: run.name for run in runs}
    if len(kinds) > 1:
        raise ConfigError(
            f"{kinds['rl']} was trained by reinforcement and {kinds['sft']} on conversations: their"
            " losses and steps are not the same thing.",
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
    """Labels of groups: the one or two keys in which they differ, otherwise the names of their
    folders.
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
    values = ", ".join(f"{key.rpartition('/')[2]} {_value(group[0].config, key)}" for key in keys)
    if len(group) == 1:
        return f"{group[0].name}: {values}" if values else group[0].name
    seeds = [str(run.seed) for run in group]
    told = f"seeds {', '.join(seeds)}" if len(seeds) <= _SEEDS_NAMED else f"{len(seeds)} seeds"
    return f"{values or group[0].name + ' and others'}, {told}"


def _value(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key, "default")
    return f"{value:g}" if isinstance(value, float) else str(value)
