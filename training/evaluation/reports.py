"""Evaluation results as files: `results.json` for programs, `results.md` for readers,
`results.png`.

The picture needs matplotlib, which comes with the extra `train`. Without matplotlib no picture is
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import json_line, replacing
from hrm_agent.basics.plotting import bars, curve, finish, new_figure, save_figure
from hrm_agent.training.evaluation.compare import Comparison, comparison_lines, comparison_rows
from hrm_agent.training.evaluation.evaluate import Evaluation, summary
from hrm_agent.training.evaluation.roles import ROLE_COUNTS
from hrm_agent.training.evaluation.side_by_side import (
    SideBySide,
    differing_rows,
    side_by_side_lines,
    side_by_side_rows,
)
from hrm_agent.training.evaluation.statistics import shown_ks
from hrm_agent.training.evaluation.tables import Row, interval_text, plain_text

__all__ = [
    "comparison_lines",
    "comparison_markdown",
    "comparison_rows",
    "markdown",
    "role_rows",
    "side_by_side_markdown",
    "summary",
    "write_comparison",
    "write_results",
    "write_side_by_side",
]

_FAILURES = ("failed", "truncated", "undecodable", "asked_again", "tool_errors")
"""Names of counts of a role that are shown as failures."""
_LONGEST_NAME = 24
"""Maximum characters of a name in a picture."""


def write_results(
    found: Evaluation, folder: Path, title: str, config: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write the files into `folder`, and return their paths. Without matplotlib there is no
    picture.
    """
    record = {"record": title, **({"config": dict(config)} if config else {}), **asdict(found)}
    written = [_write_json(folder / "results.json", record)]
    written.append(_write(folder / "results.md", markdown(found, title, config)))
    if find_spec("matplotlib") is not None:
        with replacing(folder / "results.png") as part:
            _draw(found, part, title)
        written.append(folder / "results.png")
    return written


def _draw(found: Evaluation, path: Path, title: str) -> None:
    """Draw scores by k, scores by family, stop reasons, and failures by role."""
    figure = new_figure(
        11, 7, f"{_short(title)}: {found.problems} problems, {found.trajectories} trajectories"
    )
    scores, families, ends, roles = figure.subplots(2, 2).flat
    curve(scores, 0, list(found.pass_at), list(found.pass_at.values()), "pass@k", "bars")
    if len(found.majority_at) > 1:
        by_k = found.majority_at
        curve(scores, 1, list(by_k), list(by_k.values()), "majority@k", "bars")
    scores.set_xticks(shown_ks(found.samples) or [1])
    finish(scores, "score by samples a problem, 95 % intervals", xlabel="k", ylim=(-0.02, 1.02))
    pass_at_1 = [score.pass_at_1 for score in found.families.values()]
    bars(families, [_short(name) for name in found.families], {"": pass_at_1}, horizontal=True)
    finish(families, "pass@1 by family", xlim=(0, 1.02))
    counts = list(found.stop_reasons.values())
    bars(
        ends, list(found.stop_reasons), {"": counts}, horizontal=True, texts=list(map(str, counts))
    )
    finish(ends, "how runs ended")
    failures = {
        kind.replace("_", " "): [
            role.get(kind, 0) / max(1, role.get("runs", 0)) for role in found.roles.values()
        ]
        for kind in _FAILURES
        if any(role.get(kind) for role in found.roles.values())
    }
    # a run with several failures counts in each of them
    bars(roles, [_short(name) for name in found.roles], failures, horizontal=True)
    finish(roles, "failures a run, by role")
    save_figure(figure, path)


def _short(name: str) -> str:
    """Name, shortened in the middle if it is long."""
    if len(name) <= _LONGEST_NAME:
        return name
    half = _LONGEST_NAME // 2
    return f"{name[: half - 1]}…{name[-half:]}"


def write_comparison(found: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.json` and `comparison.md` into `folder`."""
    written = _write_json(folder / "comparison.json", asdict(found))
    return [written, _write(folder / "comparison.md", comparison_markdown(found))]


def write_side_by_side(found: SideBySide, folder: Path) -> list[Path]:
    """Write `comparison.json` and `comparison.md` into `folder`."""
    written = _write_json(folder / "comparison.json", asdict(found))
    return [written, _write(folder / "comparison.md", side_by_side_markdown(found))]


def _write_json(path: Path, record: Any) -> Path:
    return _write(
        path, json.dumps(json.loads(json_line(record)), ensure_ascii=False, indent=2) + "\n"
    )


def _write(path: Path, text: str) -> Path:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def role_rows(found: Evaluation) -> tuple[list[str], list[Row]]:
    """Table of roles as (columns, rows). A count is left out if no role has it."""
    counts = [name for name in ROLE_COUNTS if any(role.get(name) for role in found.roles.values())]
    return ["role", *counts], [
        [name, *(role.get(c, 0) for c in counts)] for name, role in found.roles.items()
    ]


def markdown(found: Evaluation, title: str, config: Mapping[str, Any] | None = None) -> str:
    """Whole evaluation as a Markdown page."""
    parts = [f"# Evaluation of {title}", _table(("measure", "value"), summary(found)), _LEGEND]
    if len(found.families) > 1:
        rows = [
            (n, s.problems, s.trajectories, interval_text(s.pass_at_1))
            for n, s in found.families.items()
        ]
        parts += ["## Families", _table(("family", "problems", "trajectories", "pass@1"), rows)]
    if found.roles:
        parts += [
            "## Roles",
            _table(*role_rows(found)),
            "\n".join(f"* `{n}`: {t}" for n, t in ROLE_COUNTS.items()),
        ]
    if found.tool_statuses:
        parts += ["## Tool calls", _table(("status", "calls"), list(found.tool_statuses.items()))]
    if config:
        parts += [
            "## Configuration",
            _table(("key", "value"), [(k, f"`{v}`") for k, v in config.items()]),
        ]
    return "\n\n".join(parts) + "\n"


_LEGEND = (
    "Intervals: 95 %, problems resampled (Wilson's with one sample a problem). A run that failed or"
    " was truncated is a wrong answer."
)


def comparison_markdown(found: Comparison) -> str:
    """Whole comparison as a Markdown page."""
    table = _table(
        ("", f"A: {found.a.name}", f"B: {found.b.name}", "B less A"), comparison_rows(found)
    )
    return "\n\n".join(["# Comparison", table, *comparison_lines(found)]) + "\n"


def side_by_side_markdown(found: SideBySide) -> str:
    """Evaluations side by side as a Markdown page."""
    parts = ["# Comparison", _table(*side_by_side_rows(found)), *side_by_side_lines(found)]
    if found.differing:
        parts += ["## Problems that differ", _table(*differing_rows(found))]
    return "\n\n".join(parts) + "\n"


def _table(columns: Row, rows: Iterable[Row]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(plain_text(cell).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )
