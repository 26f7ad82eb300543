"""Plots with matplotlib, which comes with the extras. They need no display and do not use pyplot's
global state. Panels have lines with bands (`curve`) or bars (`bars`).

Lines differ in colour, dashes and markers, and bars in colour and hatches, so that they can also be
distinguished in a grey print.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hrm_agent.basics.intervals import Estimate
from hrm_agent.errors import ConfigError

__all__ = ["COLORS", "bars", "curve", "finish", "line_look", "new_figure", "save_figure"]

COLORS = ("#2f7ebc", "#d1630b", "#2a8f62", "#8a63c9", "#b0477a", "#80868b")
"""Colours that can be distinguished with any colour vision. Each has a contrast of 3:1 against
white and against a dark page.
"""
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "^", "s", "D", "v", "P", "X")
_HATCHES = ("", "//", "..", "xx", "\\\\", "--")
_DOTS_PER_INCH = 120
_MANY_POINTS = 60
"""Number of points above which only some of them get a marker."""
_MANY_NAMES = 10
"""Number of upright bars above which only some of them get a name."""


def new_figure(width: float, height: float, title: str = "") -> Any:
    """Empty figure, with its size in inches. Raises `ConfigError` if matplotlib is not
    installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "matplotlib is not installed.", "Run `pip install matplotlib`."
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title)
    return figure


def save_figure(figure: Any, path: Path, kind: str | None = "png") -> None:
    """Write a figure. Equal figures give equal bytes. `kind`: format of the file (None: the suffix
    of `path`).
    """
    from matplotlib import rc_context

    is_svg = (kind or path.suffix.lower().removeprefix(".")) == "svg"
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "hrm-agent"}):
        # the font may lack characters of a text
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(
            path, dpi=_DOTS_PER_INCH, format=kind, metadata={"Date": None} if is_svg else None
        )


def line_look(number: int) -> dict[str, Any]:
    """Look of a line by its number. Colours repeat after 6 lines, dashes after 5 and markers after
    7, so 210 lines look different.
    """
    parts = {"color": COLORS, "linestyle": _DASHES, "marker": _MARKERS}
    return {name: choices[number % len(choices)] for name, choices in parts.items()}


def curve(
    axes: Any,
    number: int,
    xs: Sequence[float],
    values: Sequence[Estimate | float],
    label: str = "",
    band: Literal["fill", "bars", "none"] = "none",
    **look: Any,
) -> None:
    """Draw line `number` with its intervals as a filled band, or as bars. `look`: changes of
    `line_look`.
    """
    look = {**line_look(number), "linewidth": 1.6, "markersize": 3.5, "label": label, **look}
    points = _estimates(values)
    means = [point.value for point in points]
    if band == "bars":
        axes.errorbar(xs, means, yerr=_errors(points), **{"capsize": 3, **look})
        return
    if band == "fill":
        lows = [point.low for point in points]
        highs = [point.high for point in points]
        axes.fill_between(xs, lows, highs, color=look["color"], alpha=0.18, linewidth=0)
    every = max(1, len(xs) // 15) if len(xs) > _MANY_POINTS else 1
    axes.plot(xs, means, markevery=every, **look)


def bars(
    axes: Any,
    names: Sequence[str],
    series: Mapping[str, Sequence[Estimate | float]],
    *,
    horizontal: bool = False,
    stacked: bool = True,
    texts: Sequence[str] | None = None,
) -> None:
    """Draw the values of each name as bars with their intervals. Several series are stacked, or are
    drawn side by side. `texts`: texts at the ends of the bars.
    """
    draw = axes.barh if horizontal else axes.bar
    breadth = 0.6 if stacked else 0.8 / len(series)
    ends = [0.0] * len(names)
    for number, (label, values) in enumerate(series.items()):
        points = _estimates(values)
        heights = [point.value for point in points]
        aside = 0.0 if stacked else (number - (len(series) - 1) / 2) * breadth
        given: dict[str, Any] = {"color": COLORS[number % len(COLORS)], "label": label}
        given["hatch"] = _HATCHES[number % len(_HATCHES)]
        if stacked:
            given["left" if horizontal else "bottom"] = list(ends)
        if any(point.low != point.high for point in points):
            given["xerr" if horizontal else "yerr"] = _errors(points)
            given |= {"capsize": 3, "ecolor": COLORS[-1]}
        drawn = draw([place + aside for place in range(len(names))], heights, breadth, **given)
        if texts is not None:
            axes.bar_label(drawn, texts, padding=3)
            axes.margins(x=0.15)
        ends = [end + height for end, height in zip(ends, heights, strict=True)]
    every = 1 if horizontal else math.ceil(len(names) / _MANY_NAMES) or 1
    shown = range(0, len(names), every)
    if horizontal:
        axes.set_yticks(shown, names)
        axes.invert_yaxis()
    else:
        axes.set_xticks(shown, [names[place] for place in shown])


def finish(axes: Any, title: str, *, whole_steps: bool = False, **settings: Any) -> None:
    """Set a panel's title and grid, and its legend if there are labels. `whole_steps`: no fractions
    on the horizontal axis. `settings`: settings for `Axes.set`, such as `xlabel` and `ylim`.
    """
    axes.set(title=title, **settings)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    if whole_steps:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if any(label for label in axes.get_legend_handles_labels()[1]):
        axes.legend(fontsize="small")


def _estimates(values: Sequence[Estimate | float]) -> list[Estimate]:
    return [v if isinstance(v, Estimate) else Estimate(v, v, v) for v in values]


def _errors(points: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Distances of both ends of each interval from its value."""
    return [p.value - p.low for p in points], [p.high - p.value for p in points]
