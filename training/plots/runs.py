"""Runs for plotting: metrics by step as the console counts, and accuracy on held-out problems.

A run in progress is read up to its current end. Lines of the file that are not rows are left out,
and the run lists their numbers, so that the rest can still be plotted.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, cast

from hrm_agent.basics.intervals import Estimate, wilson_interval
from hrm_agent.config import COMMAND_KEY, CONFIG_FILE
from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.training.config.parts import TRACK_KEYS
from hrm_agent.training.metrics import METRICS_FILE, flattened, parse_row, row_numbers

__all__ = ["Axis", "Kind", "PlottedRun", "plotted_rows", "read_run"]

Axis = Literal["step", "tokens", "seconds"]
"""Horizontal axis: steps, or cumulative completion tokens or seconds."""
Kind = Literal["rl", "sft"]

_TRAINS = {"train rl": "rl", "train sft": "sft", "demo": "rl"}
"""Command that makes runs with steps -> kind of training."""
_PHASES = (
    "evaluation_seconds",
    "rollout_seconds",
    "reward_seconds",
    "select_seconds",
    "update_seconds",
)
_UNIMPORTANT = {"seed", "store", "otel", "otel_content", *TRACK_KEYS}
"""Keys that do not distinguish configurations: the seed, the place of the record, and where metrics
and traces are sent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedRun:
    """One run with one list entry per step."""

    name: str
    """Name of the run folder."""
    kind: Kind
    """Kind of training, reinforcement or fine-tuning. Metrics of one name differ in meaning between
    the two.
    """
    steps: Sequence[int]
    """Step numbers as the console counts them, from 1, ascending."""
    metrics: Mapping[str, Sequence[float]]
    """Metrics by name (nan if a step has no value). A metric of a role is named
    `roles/ROLE/NAME`.
    """
    held_out: Mapping[int, Estimate] = field(default_factory=dict[int, Estimate])
    """Accuracy on held-out problems, with its 95 % interval, by the number of updates behind the
    weights.
    """
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Configuration values by key, `table/key` within a table, without the seed (empty if not on
    record).
    """
    seed: Any = None
    """Seed of the run (None if not on record)."""
    broken: Sequence[int] = ()
    """Numbers, from 1, of lines of the file that are not rows."""

    def over(self, axis: Axis) -> list[float]:
        """Position of each step on an axis. Raises `ConfigError` if the metrics lack it."""
        if axis == "step":
            return [float(step) for step in self.steps]
        if axis == "seconds":
            parts = [self.metrics[name] for name in (*_PHASES, "seconds") if name in self.metrics]
            taken = [
                math.fsum(x for x in row if math.isfinite(x)) for row in zip(*parts, strict=True)
            ]
        elif self.kind == "sft":
            taken = list(self.metrics.get("tokens", ()))
        else:
            names = ("rollout/sampled_tokens", "rollout/count")
            mean_count = zip(*(self.metrics.get(name, ()) for name in names), strict=True)
            taken = [
                0.0 if math.isnan(mean * count) else mean * count for mean, count in mean_count
            ]
        if not taken:
            raise ConfigError(
                f"The metrics of {self.name} have no values for the axis {axis}.",
                "Plot it over --x step.",
            )
        return list(accumulate(taken))

    def places(self, axis: Axis) -> dict[int, float]:
        """Number of updates -> position on an axis (0 before the first step)."""
        return {0: 0.0, **dict(zip(self.steps, self.over(axis), strict=True))}


def read_run(folder: Path) -> PlottedRun:
    """Read the config and metrics of a run folder.

    Raises `RunError` if it is not a run folder or has no metrics yet; `ConfigError` if its
    `config.toml` is unreadable.
    """
    config: dict[str, Any] = {}
    try:
        config = tomllib.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / CONFIG_FILE} cannot be read as TOML: {error}.", "Mend it, or delete it."
        ) from error
    command = str(config.pop(COMMAND_KEY, ""))
    rows, broken = _rows(folder / METRICS_FILE, folder, command)
    training = config.get("train") if command == "demo" else config
    training = cast("dict[str, Any]", training) if isinstance(training, dict) else {}
    kind = _TRAINS.get(command) or (
        "rl" if any("stage" in row or "rollout/count" in row for row in rows) else "sft"
    )
    evaluation = training.get("evaluation", training)  # earlier versions have flat keys
    problems = evaluation.get("eval_problems") if isinstance(evaluation, dict) else None
    run = plotted_rows(
        rows,
        folder.resolve().name,
        cast("Kind", kind),
        problems if isinstance(problems, int) else 0,
    )
    held_out = dict(run.held_out) or (_of_demo(folder) if command == "demo" else {})
    flat = {
        key: value
        for key, value in flattened({COMMAND_KEY: command, **config}).items()
        if key.rpartition("/")[2] not in _UNIMPORTANT
    }
    return PlottedRun(
        name=run.name,
        kind=run.kind,
        steps=run.steps,
        metrics=run.metrics,
        held_out=held_out,
        config=flat if config else {},
        seed=training.get("seed"),
        broken=broken,
    )


def plotted_rows(
    rows: Sequence[Mapping[str, Any]], name: str, kind: Kind = "rl", problems: int = 0
) -> PlottedRun:
    """Convert rows of `metrics.jsonl` for plotting. `problems`: number of held-out problems behind
    `eval/correct`.
    """
    first = 1 if kind == "rl" else 0
    flat = [row_numbers(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    steps = [int(row["step"]) + first for row in rows]
    metrics = {name: [row.get(name, math.nan) for row in flat] for name in names}
    held_out: dict[int, Estimate] = {}
    for step, share in zip(steps, metrics.get("eval/correct", ()), strict=False):
        if not math.isnan(share):
            low, high = (
                wilson_interval(share * problems, problems) if problems > 0 else (share, share)
            )
            held_out[step] = Estimate(share, low, high)
    return PlottedRun(name=name, kind=kind, steps=steps, metrics=metrics, held_out=held_out)


def _of_demo(folder: Path) -> dict[int, Estimate]:
    """Results of the demo before and after its training (empty if there is no report yet)."""
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        ends = {0: report["before"], int(report["steps"]): report["after"]}
        found = {at: (one["pass_at_1"], *one["interval"]) for at, one in ends.items()}
        return {
            at: Estimate(float(value), float(low), float(high))
            for at, (value, low, high) in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _rows(path: Path, folder: Path, command: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Read the last row of each step, in the order of steps, and the numbers of lines that are not
    rows.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise _no_run(folder, command) from error
    rows: dict[int, dict[str, Any]] = {}
    broken: list[int] = []
    for number, line in enumerate(lines, 1):
        row = parse_row(line)
        if row is not None:
            rows[row["step"]] = row
        elif line.strip("\0 \r\t") and number < len(lines):  # the last line may be incomplete
            broken.append(number)
    if not rows:
        why = (
            f"none of its {len(broken)} lines is a row" if broken else "its first step is not over"
        )
        raise RunError(
            f"{path} has no steps: {why}.", f"`hrm-agent resume {folder}` goes on with the run."
        )
    return [rows[step] for step in sorted(rows)], broken


def _no_run(folder: Path, command: str) -> RunError:
    if command in _TRAINS:
        return RunError(
            f"{folder} has no metrics yet: its first step is not over.",
            "Try again when it is over.",
        )
    if command:
        message = (
            f"{folder} was made by `hrm-agent {command}`, which takes no steps: there is nothing to"
            " plot."
        )
        return RunError(message, "Name runs of `train rl`, `train sft` or `demo`.")
    if folder.exists():
        return RunError(
            f"{folder} is not a run's folder: it has no {METRICS_FILE}.",
            "Name the folder of a run, as --out named it.",
        )
    beside = [str(path) for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
    return RunError(
        f"There is no folder {folder}.", nearest(str(folder), beside) or "Name the folder of a run."
    )
