"""Picture of an evaluation: a row for each configuration, a panel for each measure, the baseline as
a vertical line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hrm_agent.basics.plotting import new_figure, save_figure
from hrm_agent.retrieval.evaluation.evaluate import ALL, RetrievalEvaluation, Score
from hrm_agent.retrieval.index.fusion import MODES

__all__ = ["draw"]

_COLOURS: dict[str, str] = dict(zip(MODES, ("tab:blue", "tab:green", "tab:orange"), strict=True))
_LINE = 0.28
"""Inches per configuration."""


def draw(found: RetrievalEvaluation, path: Path, source: str) -> None:
    """Draw an evaluation. A filled point differs from the baseline by more than chance. Bars are 95
    % intervals of the difference.
    """
    k, budget = found.settings.k, f"{found.settings.budget:,} tokens"
    panels = (
        ("recall", f"recall, {k} chunks"),
        ("iou", f"IoU, {k} chunks"),
        ("budget_recall", f"recall, {budget}"),
        ("budget_iou", f"IoU, {budget}"),
        ("mrr", "MRR"),
    )
    questions = sum(found.questions.values())
    title = f"{Path(source).name}: {questions} questions on {len(found.questions)} corpora, in %"
    figure = new_figure(15, 1.9 + _LINE * len(found.results), title)
    for axes, (measure, label) in zip(
        figure.subplots(1, len(panels), sharey=True), panels, strict=True
    ):
        _panel(axes, found, measure)
        axes.set_title(label, fontsize="medium")
    axes = figure.axes[0]
    axes.set_yticks(
        range(len(found.results)), [str(result.configuration) for result in found.results]
    )
    axes.set_ylim(len(found.results) - 0.5, -0.5)
    figure.supxlabel(
        "dotted line: the baseline, at the top; bars: 95 % interval of the difference from it;"
        " filled: it leaves out 0",
        fontsize="small",
    )
    save_figure(figure, path)


def _panel(axes: Any, found: RetrievalEvaluation, measure: str) -> None:
    """Draw one measure. Configurations without wrong spans set the scale. A point outside of it is
    written as a number at the edge.
    """
    scores = [result.scores[ALL][measure] for result in found.results]
    base = 100 * scores[0].value.value
    axes.axvline(base, color="grey", linestyle=":", linewidth=1.2)
    sound = [
        s for s, result in zip(scores, found.results, strict=True) if not result.wrong_spans
    ] or scores
    low = base + 100 * min(score.less_base.low for score in sound)
    high = base + 100 * max(score.less_base.high for score in sound)
    margin = 0.08 * (high - low) or 1.0
    axes.set_xlim(low - margin, high + margin)
    for row, (score, result) in enumerate(zip(scores, found.results, strict=True)):
        colour = _COLOURS[result.configuration.mode]
        if low <= 100 * score.value.value <= high:
            _point(axes, row, score, base, colour)
        else:
            left = 100 * score.value.value < low
            text = (
                f"< {100 * score.value.value:.2f}" if left else f"{100 * score.value.value:.2f} >"
            )
            axes.text(
                low if left else high,
                row,
                text,
                color=colour,
                va="center",
                ha="left" if left else "right",
            )
    axes.grid(alpha=0.3, axis="x")


def _point(axes: Any, row: int, score: Score, base: float, colour: str) -> None:
    low, high = (base + 100 * edge for edge in (score.less_base.low, score.less_base.high))
    differs = score.less_base.low > 0 or score.less_base.high < 0
    axes.plot((low, high), (row, row), color=colour, linewidth=1.5, alpha=0.7)
    face = colour if differs else "white"
    axes.plot(
        100 * score.value.value, row, marker="o", color=colour, markerfacecolor=face, markersize=6
    )
