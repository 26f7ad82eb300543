"""What `train sft --from` learns from: the conversations of runs on record.

They are selected once, when a run is begun, and kept in its folder: a resumed run learns from the
same ones, whatever was recorded, changed or deleted since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hrm_agent.basics.files import replacing
from hrm_agent.cli.common.run_folder import existing_store, is_file
from hrm_agent.cli.records.request_hints import described_runs
from hrm_agent.errors import ConfigError, TaskError
from hrm_agent.training.evaluation.rubrics import scored_by, scorings_named
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.formats import Report, export_to

if TYPE_CHECKING:
    from hrm_agent.training.config.commands import FineTuneConfig

__all__ = ["CONVERSATIONS", "Selection", "select"]

CONVERSATIONS = "conversations.jsonl"
"""File in a run's folder, in the format `chat`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Conversations that were found, and what was not taken."""

    text: str
    """Rows of the format `chat`, one a line."""
    report: Report
    """How many there are, and what was left out for which reason."""

    @property
    def by_role(self) -> dict[str, int]:
        """Role -> its conversations."""
        rows = (json.loads(line) for line in self.text.split("\n") if line)
        return dict(Counter(row["role"] for row in rows).most_common())

    def write(self, folder: Path) -> None:
        """Keep them in a run's folder."""
        with replacing(folder / CONVERSATIONS) as part:
            part.write_text(self.text, encoding="utf-8")

    def data(self) -> dict[str, Any]:
        """What was taken and what was not, as JSON."""
        report = self.report
        taken = {
            "trajectories": report.trajectories,
            "conversations": report.rows,
            "by_role": self.by_role,
        }
        return {**taken, "left_out": dict(report.left_out)}

    def lines(self) -> list[str]:
        """The same for people."""
        roles = ", ".join(f"{role} {count}" for role, count in self.by_role.items())
        first = (
            f"{self.report.rows} conversations of {self.report.trajectories} runs on record:"
            f" {roles}"
        )
        return [first, *_left_out(self.report)]


def select(config: FineTuneConfig) -> Selection:
    """The conversations that a configuration asks for. Raises `TaskError` if there is none."""
    with TemporaryDirectory() as folder, described_runs(config.source) as (trajectories, known):
        path = Path(folder) / CONVERSATIONS
        runs = _scored(config, trajectories) if config.by else trajectories
        report = export_to(path, runs, "chat", known, config.reward, config.roles)
        text = path.read_text(encoding="utf-8") if report.rows else ""
    if not report.rows:
        why = " ".join(f"{line}." for line in _left_out(report)) or "It holds no run."
        raise TaskError(
            f"There is nothing to learn from in {config.source}. {why}",
            f"`hrm-agent history --store {config.source}` lists its runs; --reward and --role"
            " choose among them.",
        )
    return Selection(text, report)


def _scored(config: FineTuneConfig, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Those that have scores of the name `config.by`, with these as their rewards."""
    if is_file(config.source):
        raise ConfigError(
            f"{config.source} is a file: it holds no scores beside its own.",
            "Name the folder or store.",
        )
    everything = list(trajectories)
    with existing_store(config.source) as store:
        scorings = scorings_named(store, config.by, everything)
    return (
        one
        for each in everything
        if each.id in scorings and (one := scored_by(each, scorings)) is not None
    )


def _left_out(report: Report) -> list[str]:
    return [f"{count} left out: {reason}" for reason, count in report.left_out.most_common()]
