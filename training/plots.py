"""Pictures of a training run, as PNG files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.plotting import new_figure, save_figure

__all__ = ["plot_curves"]

_CURVES = (
    ("rollout/correct", "accuracy of all rollouts", (0.0, 1.02)),
    ("loss", "loss", (None, None)),
    ("rollout/correct_with_tool_error", "tool errors among correct rollouts", (0.0, None)),
    ("rollout/sampled_tokens", "completion tokens per rollout", (0.0, None)),
    ("select/groups_rejected", "groups without a signal", (0.0, 1.02)),
    ("select/mastered", "problems mastered", (0.0, None)),
    ("reward/reward", "reward, weighted sum", (None, None)),
)
"""Metric, title and limits. What no step has is left out."""


def plot_curves(
    rows: Sequence[Mapping[str, Any]], path: Path, title: str, held_out: Mapping[int, float] | None = None
) -> None:
    """Curves over the steps of `rows` (`metrics.jsonl`), counted from 1, as one picture.

    `held_out`: accuracy on held-out tasks, by the number of steps that the policy had taken.
    """
    held_out = held_out or {int(r["step"]) + 1: r["eval/correct"] for r in rows if r.get("eval/correct") is not None}
    curves = [curve for curve in _CURVES if any(row.get(curve[0]) is not None for row in rows)]
    if not any(row.get("select/mastered") for row in rows):
        curves = [curve for curve in curves if curve[0] != "select/mastered"]
    stages = [
        int(row["step"]) + 0.5 for row, before in zip(rows[1:], rows, strict=False) if _stage(row) != _stage(before)
    ]
    lines = math.ceil(len(curves) / 2)
    figure = new_figure(10, 3 * max(lines, 1), title)
    steps = [int(row["step"]) + 1 for row in rows]
    for place, (name, label, limits) in enumerate(curves, 1):
        axes = figure.add_subplot(lines, 2, place)
        values = [math.nan if row.get(name) is None else row[name] for row in rows]
        axes.plot(steps, values, marker=".", linewidth=1.5, label="rollouts")
        if name == "rollout/correct" and held_out:
            axes.plot(list(held_out), list(held_out.values()), marker="s", linestyle="--", label="held-out tasks")
            axes.legend()
        for began in stages:
            axes.axvline(began, color="0.6", linewidth=1)
        axes.set(title=label, xlabel="step", ylim=limits)
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def _stage(row: Mapping[str, Any]) -> int:
    return int(row.get("stage") or 0)
