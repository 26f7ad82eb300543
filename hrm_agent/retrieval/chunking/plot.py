"""Picture of a text's chunks: one lane for each way of cutting, the text from left to right.

Neighbouring chunks alternate between the upper and the lower half of a lane. An overlap fills both
halves and has its own colour. Headings and paragraphs of the text are drawn above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hrm_agent.basics.plotting import new_figure, save_figure
from hrm_agent.errors import ConfigError
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.comparison import Cutting

__all__ = ["Window", "draw", "headings", "lane", "paragraph_starts", "window"]

Window = tuple[int, int]
"""First character shown, and one past the last."""

_CHUNKS = 24
"""Number of chunks shown by default. More could not be distinguished."""
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?)[ #]*$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_UPPER, _LOWER, _OVERLAP, _WRONG = "#4c78a8", "#9ecae9", "#f58518", "#e45756"
_LABEL = 26
"""Maximum characters of a heading shown."""


def window(text: str, cuttings: Sequence[Cutting]) -> Window:
    """Beginning of a text, as far as about 24 chunks reach."""
    sizes = sorted(len(text) / len(cutting.chunks) for cutting in cuttings if cutting.chunks)
    return (0, min(len(text), round(_CHUNKS * sizes[len(sizes) // 2]))) if sizes else (0, len(text))


def headings(text: str, shown: Window) -> list[tuple[int, str]]:
    """Markdown headings within a window, as (place, title)."""
    return [(match.start(), match[1]) for match in _HEADING.finditer(text, *shown)]


def paragraph_starts(text: str, shown: Window) -> list[int]:
    return [match.end() for match in _PARAGRAPH.finditer(text, *shown)]


def lane(cutting: Cutting, shown: Window, cells: int) -> str:
    """Lane of a cutting as text of `cells` characters: `a` and `b` for alternating chunks, `x` for
    an overlap, a space for no chunk.
    """
    drawn, per_cell = [" "] * cells, (shown[1] - shown[0]) / cells
    for number, chunk in _visible(cutting, shown):
        first, last = (round((place - shown[0]) / per_cell) for place in (chunk.start, chunk.end))
        for cell in range(max(first, 0), min(last, cells)):
            drawn[cell] = "x" if drawn[cell] != " " else "ab"[number % 2]
    return "".join(drawn)


def draw(text: str, cuttings: Sequence[Cutting], path: Path, title: str, shown: Window) -> None:
    """Draw a picture in the format of the suffix of `path`: PNG, SVG or PDF."""
    figure = new_figure(13, 1.9 + 0.46 * len(cuttings))
    axes = figure.subplots()
    for row, cutting in enumerate(cuttings):
        _lane(axes, row, cutting, shown)
    _structure(axes, text, shown, len(cuttings))
    _scales(axes, cuttings, shown)
    axes.set_title(title, loc="left", pad=46 if headings(text, shown) else 16, parse_math=False)
    _legend(figure)
    try:
        save_figure(figure, path, kind=None)
    except (OSError, ValueError) as error:  # a folder that is not there, a format that is not known
        raise ConfigError(
            f"The picture {path} cannot be written: {error}.", "Name a file such as chunks.png."
        ) from error


def _visible(cutting: Cutting, shown: Window) -> list[tuple[int, Chunk]]:
    """Chunks within a window whose place is known, with their numbers."""
    numbered = enumerate(cutting.chunks)
    return [
        (n, chunk)
        for n, chunk in numbered
        if chunk.start >= 0 and chunk.end > shown[0] and chunk.start < shown[1]
    ]


def _lane(axes: Any, row: int, cutting: Cutting, shown: Window) -> None:
    visible = _visible(cutting, shown)
    for half, colour in ((0, _UPPER), (1, _LOWER)):
        bars = [
            (chunk.start, chunk.end - chunk.start)
            for number, chunk in visible
            if number % 2 == half
        ]
        top = row - 0.36 + 0.36 * half
        axes.broken_barh(bars, (top, 0.36), facecolors=colour, edgecolors="white", linewidth=0.6)
    shared = [(b.start, a.end - b.start) for (_, a), (_, b) in pairwise(visible) if b.start < a.end]
    axes.broken_barh(shared, (row - 0.36, 0.72), facecolors=_OVERLAP)
    if cutting.problem:
        axes.text(
            shown[0],
            row,
            f"  {cutting.problem}",
            va="center",
            color=_WRONG,
            fontsize="small",
            parse_math=False,
        )


def _structure(axes: Any, text: str, shown: Window, rows: int) -> None:
    """Draw paragraphs as ticks above the lanes, headings as lines through them with their
    titles.
    """
    axes.vlines(paragraph_starts(text, shown), -0.9, -0.62, color="0.6", linewidth=0.7)
    last = -float("inf")
    for place, title in headings(text, shown):
        axes.vlines(place, -0.9, rows - 0.5, color="0.25", linewidth=0.7, linestyle=":", zorder=0.5)
        if place - last > 0.025 * (shown[1] - shown[0]):
            label = title if len(title) <= _LABEL else f"{title[: _LABEL - 1]}…"
            axes.annotate(
                label,
                (place, -0.95),
                rotation=28,
                fontsize="x-small",
                va="bottom",
                annotation_clip=False,
                parse_math=False,
            )
            last = place


def _scales(axes: Any, cuttings: Sequence[Cutting], shown: Window) -> None:
    axes.set(xlim=shown, ylim=(len(cuttings) - 0.4, -1.0), xlabel="character of the text")
    axes.set_yticks(range(len(cuttings)), [cutting.name for cutting in cuttings])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(range(len(cuttings)), [_summary(cutting) for cutting in cuttings])
    for side in (axes, beside):
        side.tick_params(axis="y", length=0)
        for spine in side.spines.values():
            spine.set_visible(side is axes and spine is axes.spines["bottom"])


def _summary(cutting: Cutting) -> str:
    if not cutting.chunks:
        return "none"
    faults = cutting.faults.total
    return f"{len(cutting.chunks):,} chunks" + (
        f", {faults:,} fault{'s' * (faults != 1)}" if faults else ""
    )


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour) for colour in (_UPPER, _LOWER, _OVERLAP)]
    labels = ["chunk", "the next one", "in both"]
    figure.legend(
        handles, labels, loc="outside lower right", ncols=3, fontsize="small", frameon=False
    )
