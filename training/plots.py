"""Pictures of a training run, as PNG files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hrm_agent.plotting import new_figure, save_figure

__all__ = ["plot_curves"]

_CURVES = (
    ("rollout/correct", "accuracy of all rollouts", (0.0, 1.02)),
    ("rollout/correct_with_tool_error", "tool errors among correct rollouts", (0.0, None)),
    ("rollout/sampled_tokens", "completion tokens per rollout", (0.0, None)),
    ("select/groups_rejected", "groups without a signal", (0.0, 1.02)),
)


def plot_curves(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Four curves over the steps of `rows` (`metrics.jsonl`), as one picture of 10 x 6 inches."""
    figure = new_figure(10, 6, title)
    steps = [row["step"] for row in rows]
    for axes, (name, label, limits) in zip(figure.subplots(2, 2).flat, _CURVES, strict=True):
        axes.plot(steps, [math.nan if row[name] is None else row[name] for row in rows], marker=".", linewidth=1.5)
        axes.set(title=label, xlabel="step", ylim=limits)
        axes.grid(alpha=0.3)
    save_figure(figure, path)
