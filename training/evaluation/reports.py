"""The results of an evaluation as files: `results.json` for programs, `results.md` for people, `results.png`.

The picture is matplotlib's, which comes with `hrm-agent[train]` and draws the training curves too. Without it an
evaluation has its numbers all the same: the picture is left out, and `write_results` says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hrm_agent.files import json_line, replacing
from hrm_agent.intervals import Estimate
from hrm_agent.training.evaluation.compare import Comparison
from hrm_agent.training.evaluation.evaluate import Evaluation
from hrm_agent.training.evaluation.roles import ROLE_COUNTS
from hrm_agent.training.evaluation.statistics import shown_ks

__all__ = [
    "comparison_lines",
    "comparison_markdown",
    "comparison_rows",
    "markdown",
    "role_rows",
    "summary",
    "write_comparison",
    "write_results",
]

_NAMED = 20
"""Problems of a comparison that are named in the text; all of them stand in the JSON."""

Row = Sequence[object]


def write_results(found: Evaluation, folder: Path, title: str, config: Mapping[str, Any] | None = None) -> list[Path]:
    """The files, written into `folder`; without matplotlib there is no picture among them."""
    record = {"record": title, **({"config": dict(config)} if config else {}), **asdict(found)}
    written = [_write_json(folder / "results.json", record)]
    written.append(_write(folder / "results.md", markdown(found, title, config)))
    if find_spec("matplotlib") is not None:
        from hrm_agent.training.evaluation.plot import draw

        with replacing(folder / "results.png") as part:
            draw(found, part, title)
        written.append(folder / "results.png")
    return written


def write_comparison(found: Comparison, folder: Path) -> list[Path]:
    """`comparison.json` and `comparison.md` in `folder`."""
    written = _write_json(folder / "comparison.json", asdict(found))
    return [written, _write(folder / "comparison.md", comparison_markdown(found))]


def _write_json(path: Path, record: Any) -> Path:
    return _write(path, json.dumps(json.loads(json_line(record)), ensure_ascii=False, indent=2) + "\n")


def _write(path: Path, text: str) -> Path:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def summary(found: Evaluation) -> list[tuple[str, object]]:
    """The measures of an evaluation with their values, as people read them."""
    rows: list[tuple[str, object]] = [("problems", found.problems), ("trajectories", found.trajectories)]
    rows += [("left out: completed, without a score", found.without_score)] if found.without_score else []
    rows += [(f"pass@{k}", _interval(found.pass_at[k])) for k in shown_ks(found.samples)] or [("pass@1", math.nan)]
    rows += [(f"majority@{k}", _interval(found.majority_at[k])) for k in shown_ks(found.samples) if k > 1]
    rows += [(f"reward {name}", _interval(estimate)) for name, estimate in found.rewards.items()]
    rows += [
        ("tool error among the correct", found.correct_with_tool_error),
        ("tool errors, share of tool calls", found.tool_error_share),
        ("tool calls, mean", found.mean_tool_calls),
        ("completion tokens, mean", found.mean_sampled_tokens),
        ("prompt tokens, completion tokens", f"{found.read_tokens:,}, {found.sampled_tokens:,}"),
        ("wall time, seconds", found.seconds.wall),
        ("a trajectory: from start to end, models, tools", _times(found)),
        ("statuses", _counts(found.statuses)),
        ("run once more, failed by a machine", found.run_again),
        ("stop reasons", _counts(found.stop_reasons)),
        ("right, but truncated", found.truncated_correct),
        ("ended before any model call", found.without_call),
    ]
    costs = (("cost, by the prices given", found.cost), ("cost, as reported", found.reported_cost))
    return rows + [(name, f"{cost:.6g}") for name, cost in costs if cost is not None]


def role_rows(found: Evaluation) -> tuple[list[str], list[Row]]:
    """The roles as a table, with those counts that any of them has."""
    counts = [name for name in ROLE_COUNTS if any(role.get(name) for role in found.roles.values())]
    return ["role", *counts], [[name, *(role.get(c, 0) for c in counts)] for name, role in found.roles.items()]


def markdown(found: Evaluation, title: str, config: Mapping[str, Any] | None = None) -> str:
    """The whole evaluation as a page."""
    parts = [f"# Evaluation of {title}", _table(("measure", "value"), summary(found)), _LEGEND]
    if len(found.families) > 1:
        rows = [(n, s.problems, s.trajectories, _interval(s.pass_at_1)) for n, s in found.families.items()]
        parts += ["## Families", _table(("family", "problems", "trajectories", "pass@1"), rows)]
    if found.roles:
        parts += ["## Roles", _table(*role_rows(found)), "\n".join(f"* `{n}`: {t}" for n, t in ROLE_COUNTS.items())]
    if found.tool_statuses:
        parts += ["## Tool calls", _table(("status", "calls"), list(found.tool_statuses.items()))]
    if config:
        parts += ["## Configuration", _table(("key", "value"), [(k, _code(v)) for k, v in config.items()])]
    return "\n\n".join(parts) + "\n"


_LEGEND = (
    "Intervals: 95 %, problems resampled (Wilson's with one sample a problem). A run that failed or was truncated is a "
    "wrong answer."
)


def comparison_rows(found: Comparison) -> list[Row]:
    """Both sides and their difference, measure by measure."""
    a, b = found.a, found.b
    return [
        ("trajectories", a.trajectories, b.trajectories, ""),
        ("pass@1", _interval(a.pass_at_1), _interval(b.pass_at_1), _interval(found.difference, sign=True)),
        (
            "completion tokens",
            _text(a.sampled_tokens),
            _text(b.sampled_tokens),
            _interval(found.sampled_tokens, sign=True),
        ),
        ("tool errors", _text(a.tool_errors), _text(b.tool_errors), _interval(found.tool_errors, sign=True)),
    ]


def comparison_lines(found: Comparison) -> list[str]:
    """What follows from the table, in words."""
    word = "beyond chance" if found.certain else "within what chance gives"
    lines = [
        f"{found.problems} problems are in both.",
        f"The difference of pass@1 is {word}: p = {found.p_value:.2g} ({found.test}).",
        f"B is right oftener on {len(found.better)}, A on {len(found.worse)}.",
    ]
    for name, ids in (("A", found.only_a), ("B", found.only_b)):
        if ids:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            lines.append(f"Only in {name}, left out: {', '.join(ids[:_NAMED])}{more}.")
    return lines


def comparison_markdown(found: Comparison) -> str:
    """The whole comparison as a page."""
    table = _table(("", f"A: {found.a.name}", f"B: {found.b.name}", "B less A"), comparison_rows(found))
    return "\n\n".join(["# Comparison", table, *comparison_lines(found)]) + "\n"


def _table(columns: Row, rows: Iterable[Row]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_text(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "none"
    return " ".join(str(value).split())


def _interval(found: Estimate, *, sign: bool = False) -> str:
    form = "+.3f" if sign else ".3f"
    return f"{found.value:{form}}  (95 % interval {found.low:{form}} to {found.high:{form}})"


def _times(found: Evaluation) -> str:
    seconds = found.seconds
    return ", ".join(f"{_text(value)} s" for value in (seconds.trajectory, seconds.model, seconds.tool))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _code(value: object) -> str:
    return f"`{value}`"
