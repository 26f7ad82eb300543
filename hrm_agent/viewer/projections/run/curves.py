"""Metrics of a training run, by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hrm_agent.viewer.projections.runs import held_out_of, is_own_run, step_base
from hrm_agent.viewer.run_files import MetricsTail, config_of, metrics_of

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["metrics"]


def metrics(place: Place, run: str, after: int = 0) -> dict[str, Any]:
    """`GET metrics`: metrics of a run from row `after` on."""
    folder = place.folder if is_own_run(place, run) else None
    config = config_of(folder)
    tail = metrics_of(folder)
    kind = str(config.get("command", ""))
    held_out = held_out_of(place, place.store(), run) if folder is not None else []
    best = max(held_out, key=lambda each: (each["value"], -each["step"]), default=None)
    total = len(tail) if tail else 0
    first = after if after <= total else 0
    base = step_base(kind)
    series: dict[str, Any] = {}
    roles: dict[str, dict[str, Any]] = {}
    if tail:
        for key in tail.columns:
            if key.startswith("roles/"):
                role, _, name = key.removeprefix("roles/").rpartition("/")
                roles.setdefault(role, {})[name] = tail.series(key, first)
            elif key not in ("step", "stage"):
                series[key] = tail.series(key, first)
    return {
        "kind": kind,
        "total": total,
        "after": first,
        "generation": tail.generation if tail else "",
        "held_out": held_out,
        "best": best,
        "config": config,
        "steps": [step + base for step in tail.steps[first:]] if tail else [],
        "series": series,
        "roles": roles,
        "stages": _stages(tail, base) if tail else [],
    }


def _stages(tail: MetricsTail, base: int) -> list[dict[str, Any]]:
    """First step and name of each stage (empty if there is only one stage)."""
    found: list[dict[str, Any]] = []
    before: float | None = None
    for step, stage in zip(tail.steps, tail.series("stage"), strict=True):
        if stage is not None and stage != before:
            found.append({"step": step + base, "name": f"stage {int(stage) + 1}"})
            before = stage
    return found if len(found) > 1 else []
