"""Figures of the study: means over the seeds, differences of arms within a seed, and the course of
the tool errors, each with Student's 95 % interval over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

from benchmarks.roc_study.trainings import (
    ARMS,
    LONG,
    MEASURES,
    START,
    Form,
    Reading,
    same_tokens,
)
from hrm_agent.basics.intervals import Estimate, mean_interval
from hrm_agent.errors import ConfigError

__all__ = [
    "Contrast",
    "against",
    "as_markdown",
    "contrasts",
    "course",
    "differences",
    "refuse_incomparable",
    "summary",
]

Row = dict[str, Any]
_ALL = "grpo-2g"


class Contrast(NamedTuple):
    """Two states that are compared within each seed."""

    section: str
    """Question that the comparison belongs to."""
    title: str
    """Name of the comparison."""
    left: str
    """Name of the readings whose figures count as positive."""
    right: str
    """Name of the readings that are subtracted."""


UPDATES = "equal updates"
TOKENS = "equal sampled tokens"
BOTH = "equal updates and sampled tokens"
PARTS = "parts of GRPO-RoC"


def contrasts(arms: Sequence[str]) -> list[Contrast]:
    """Comparisons that are possible between these arms."""
    others = [arm for arm in arms if arm != "grpo"]
    found = [Contrast(UPDATES, f"{arm} - grpo", arm, "grpo") for arm in others]
    found += [Contrast(TOKENS, f"{arm} - grpo", arm, same_tokens(arm)) for arm in others]
    found += [Contrast(BOTH, f"{arm} - {_ALL}", arm, _ALL) for arm in others if arm != _ALL]
    found += [
        Contrast(PARTS, "quotas", "grpo-roc-random", "grpo-random"),
        Contrast(PARTS, "clean ones, drawn", "grpo-roc", "grpo-roc-random"),
        Contrast(PARTS, "clean ones, lowest", "grpo-roc-lowest", "grpo-roc-random"),
    ]
    missing = ARMS.keys() - set(arms)
    return [each for each in found if not {each.left, each.right} & missing]


def differences(readings: Sequence[Reading], contrast: Contrast) -> dict[str, Estimate]:
    """Mean of left - right over the seeds, by measure. A seed without a value on one side is left
    out.
    """
    by_place = {(reading.arm, reading.seed): reading.figures for reading in readings}
    seeds = sorted({reading.seed for reading in readings})
    found: dict[str, Estimate] = {}
    for measure in MEASURES:
        values: list[float] = []
        for seed in seeds:
            left = by_place[contrast.left, seed][measure]
            right = by_place[contrast.right, seed][measure]
            if left is not None and right is not None:
                values.append(left - right)
        found[measure] = mean_interval(values)
    return found


def course(readings: Sequence[Reading], arm: str) -> dict[str, Estimate]:
    """Course of the tool errors among the correct rollouts of an arm's training: the means of its
    first, its last but one and its last fifth, and the change from the last but one to the last.
    """
    fifths = [_fifths(reading.errors) for reading in readings if reading.arm == arm]
    return {
        "first": mean_interval([each[0] for each in fifths]),
        "before": mean_interval([each[-2] for each in fifths]),
        "last": mean_interval([each[-1] for each in fifths]),
        "change": mean_interval([each[-1] - each[-2] for each in fifths]),
    }


def _fifths(curve: Sequence[float | None]) -> list[float]:
    """Means of the first, the last but one and the last fifth of a curve (nan over nothing)."""
    size = max(1, len(curve) // 5)
    parts = (curve[:size], curve[-2 * size : -size] or curve[:size], curve[-size:])
    known = [[value for value in part if value is not None] for part in parts]
    return [fmean(part) if part else math.nan for part in known]


def summary(readings: Sequence[Reading], form: Form, arms: Sequence[str]) -> Row:
    """Everything that was measured and computed, as JSON values."""
    names = list(dict.fromkeys(reading.arm for reading in readings))
    return {
        "form": asdict(form),
        "seeds": sorted({reading.seed for reading in readings}),
        "readings": [asdict(reading) for reading in readings],
        "means": {name: _row(_means(readings, name)) for name in names},
        "differences": [
            {**contrast._asdict(), "figures": _row(differences(readings, contrast))}
            for contrast in contrasts(arms)
        ],
        "course": {arm: _row(course(readings, arm)) for arm in (*arms, LONG)},
    }


def _means(readings: Sequence[Reading], name: str) -> dict[str, Estimate]:
    own = [reading for reading in readings if reading.arm == name]
    columns: dict[str, list[float]] = {"steps": [float(each.steps) for each in own]}
    columns["sampled"] = [each.sampled for each in own]
    columns["cpu_seconds"] = [each.cpu_seconds for each in own]
    for measure in MEASURES:
        values = [each.figures[measure] for each in own]
        columns[measure] = [value for value in values if value is not None]
    return {key: mean_interval(values) for key, values in columns.items()}


def _row(estimates: Mapping[str, Estimate]) -> Row:
    """JSON values of estimates: value, and half the width of the interval (None without one)."""
    return {
        key: {"value": _finite(each.value), "half": _finite(each.high - each.value)}
        for key, each in estimates.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def as_markdown(record: Row) -> str:
    """Tables of a summary. An interval stands behind its value as ±, and a difference is bold if
    its interval does not include 0.
    """
    arms = [name for name in record["means"] if name in (START, LONG, *ARMS)]
    lines = [_line("", "updates", "sampled tokens, 1,000", *MEASURES.values())]
    lines.append(_line(*["---"] * (3 + len(MEASURES))))
    for name in arms:
        row = record["means"][name]
        sampled = row["sampled"]["value"] / 1000
        cells = [_cell(measure, row[measure]) for measure in MEASURES]
        lines.append(_line(name, f"{row['steps']['value']:.0f}", f"{sampled:,.0f}", *cells))
    lines += ["", _line("difference at", "of", *MEASURES.values())]
    lines.append(_line(*["---"] * (2 + len(MEASURES))))
    for each in record["differences"]:
        cells = [_cell(measure, each["figures"][measure], signed=True) for measure in MEASURES]
        lines.append(_line(each["section"], each["title"], *cells))
    headings = ("first fifth", "last but one", "last fifth", "change from the one to the other", "")
    lines += ["", _line("tool errors among the correct", *headings)]
    lines.append(_line(*["---"] * 6))
    for name, row in record["course"].items():
        cells = [_cell("errors", row[part]) for part in ("first", "before", "last")]
        change = row["change"]
        lines.append(_line(name, *cells, _cell("errors", change, signed=True), _direction(change)))
    return "\n".join(lines) + "\n"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(measure: str, figure: Row, *, signed: bool = False) -> str:
    value, half = figure["value"], figure["half"]
    if value is None:
        return "-"
    digits = 1 if measure == "tokens" else 3
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if half is None:
        return text
    text += f" ± {half:.{digits}f}"
    return f"**{text}**" if signed and abs(value) > half else text


def _direction(change: Row) -> str:
    if change["value"] is None or change["half"] is None:
        return "-"
    if abs(change["value"]) <= change["half"]:
        return "level"
    return "falls" if change["value"] < 0 else "rises"


Place = Literal["inside", "in range", "outside"]


def refuse_incomparable(form: Form, seeds: Sequence[int], stored: Row) -> None:
    """Raise `ConfigError` if a study of these seeds would not reproduce the stored one: it has
    another form, or a seed in common.
    """
    if asdict(form) != stored["form"]:
        raise ConfigError(
            f"The stored study has another form: {stored['form']}.", "Give this one the same."
        )
    if shared := sorted(set(seeds) & set(stored["seeds"])):
        raise ConfigError(
            f"The stored study has the seeds {shared}, too.",
            f"Take others: --first-seed {max(stored['seeds']) + 1}.",
        )


def against(record: Row, stored: Row) -> str:
    """Comparison of this study's differences with those of a stored summary of other seeds.

    inside: the mean of the new seeds is in the stored interval. in range: it is outside of that
    interval, but where the mean of so few new seeds is expected with 95 % (the stored interval,
    widened by their own spread). outside: neither.
    """
    wider = math.sqrt(1 + len(stored["seeds"]) / len(record["seeds"]))
    before = {(each["section"], each["title"]): each["figures"] for each in stored["differences"]}
    places: list[Place] = []
    lines = [_line("difference at", "of", *MEASURES.values())]
    lines.append(_line(*["---"] * (2 + len(MEASURES))))
    for each in record["differences"]:
        old = before.get((each["section"], each["title"]))
        if old is None:
            continue
        cells: list[str] = []
        for measure in MEASURES:
            place = _place(each["figures"][measure]["value"], old[measure], wider)
            if place:
                places.append(place)
            value = _cell(measure, {**each["figures"][measure], "half": None}, signed=True)
            cells.append(f"{value} {place or ''}".strip())
        lines.append(_line(each["section"], each["title"], *cells))
    counts = ", ".join(f"{places.count(name)} {name}" for name in get_args(Place))
    return "\n".join([*lines, "", f"Of {len(places)} differences: {counts}."]) + "\n"


def _place(value: float | None, stored: Row, wider: float) -> Place | None:
    """Place of a new mean (None: nothing to compare)."""
    if value is None or stored["value"] is None or stored["half"] is None:
        return None
    distance = abs(value - stored["value"])
    if distance <= stored["half"]:
        return "inside"
    return "in range" if distance <= stored["half"] * wider else "outside"
