"""Plots with matplotlib, which comes with the extras: without a display and without pyplot's global
state.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from hrm_agent.errors import ConfigError

__all__ = ["new_figure", "save_figure"]

_DOTS_PER_INCH = 120


def new_figure(width: float, height: float, title: str = "") -> Any:
    """Empty figure; sizes in inches. Raises `ConfigError` if matplotlib is not installed."""
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
    """Write a figure: the same bytes for the same figure. `kind`: format; None takes the suffix of
    `path`.
    """
    from matplotlib import rc_context

    is_svg = (kind or path.suffix.lower().removeprefix(".")) == "svg"
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "hrm-agent"}):
        # text in a script that the font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(
            path, dpi=_DOTS_PER_INCH, format=kind, metadata={"Date": None} if is_svg else None
        )
