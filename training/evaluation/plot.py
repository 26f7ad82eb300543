"""Plot of an evaluation: four panels, one PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hrm_agent.basics.intervals import Estimate
from hrm_agent.basics.plotting import new_figure, save_figure
from hrm_agent.training.evaluation.evaluate import Evaluation
from hrm_agent.training.evaluation.statistics import shown_ks

__all__ = ["draw"]

_FAILURES = ("failed", "truncated", "undecodable", "asked_again", "tool_errors")
_HEIGHT = 0.5
"""Height of a bar, as a share of its line."""
_LONGEST = 24
"""Maximum characters of a name. Longer ones are shortened in the middle."""


def draw(found: Evaluation, path: Path, title: str) -> None:
    """Draw scores by k, scores by family, stop reasons, and failures by role."""
    figure = new_figure(
        11, 7, f"{_short(title)}: {found.problems} problems, {found.trajectories} trajectories"
    )
    scores, families, ends, roles = figure.subplots(2, 2).flat
    _scores(scores, found)
    _families(families, found)
    _bars(ends, dict(reversed(found.stop_reasons.items())), "how runs ended")
    _roles(roles, found)
    save_figure(figure, path)


def _scores(axes: Any, found: Evaluation) -> None:
    for name, curve in (("pass@k", found.pass_at), ("majority@k", found.majority_at)):
        if len(curve) > 1 or name == "pass@k":
            _band(axes, name, curve)
    axes.set(title="score by samples a problem, 95 % intervals", xlabel="k", ylim=(-0.02, 1.02))
    axes.set_xticks(shown_ks(found.samples) or [1])
    axes.grid(alpha=0.3)
    axes.legend()


def _band(axes: Any, name: str, curve: dict[int, Estimate]) -> None:
    ks, values = list(curve), [e.value for e in curve.values()]
    below = [e.value - e.low for e in curve.values()]
    above = [e.high - e.value for e in curve.values()]
    axes.errorbar(ks, values, yerr=(below, above), marker="o", capsize=3, label=name)


def _families(axes: Any, found: Evaluation) -> None:
    names = [_short(name) for name in reversed(found.families)]
    scores = [score.pass_at_1 for score in reversed(found.families.values())]
    errors = ([s.value - s.low for s in scores], [s.high - s.value for s in scores])
    axes.barh(range(len(names)), [s.value for s in scores], _HEIGHT, xerr=errors, capsize=3)
    axes.set_yticks(range(len(names)), names)
    axes.set(title="pass@1 by family", xlim=(0, 1.02))
    axes.grid(alpha=0.3, axis="x")


def _bars(axes: Any, counts: dict[str, int], title: str) -> None:
    bars = axes.barh(range(len(counts)), list(counts.values()), _HEIGHT)
    axes.bar_label(bars, padding=3)
    axes.set_yticks(range(len(counts)), list(counts))
    axes.set(title=title)
    axes.margins(x=0.15)


def _roles(axes: Any, found: Evaluation) -> None:
    """Draw failures per run of each role. Several failures of one run all count."""
    names = list(reversed(found.roles))
    left = [0.0] * len(names)
    for kind in (kind for kind in _FAILURES if any(found.roles[name].get(kind) for name in names)):
        shares = [
            found.roles[name].get(kind, 0) / max(1, found.roles[name].get("runs", 0))
            for name in names
        ]
        axes.barh(range(len(names)), shares, _HEIGHT, left=left, label=kind.replace("_", " "))
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.set(title="failures a run, by role")
    if any(left):
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)


def _short(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    half = _LONGEST // 2
    return f"{name[: half - 1]}…{name[-half:]}"
