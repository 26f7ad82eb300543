"""Training data of `train sft --from`: conversations of recorded runs.

The conversations are selected once, when a run starts, and saved in its folder. So a resumed run
learns from the same conversations, even if the record has changed.
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
"""Name of the file in a run's folder, which has the format `chat`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected conversations, and a report of conversations that were left out."""

    text: str
    """Rows of the format `chat`, one a line."""
    report: Report
    """Number of conversations, and counts of those left out by reason."""

    @property
    def by_role(self) -> dict[str, int]:
        """Number of conversations by role."""
        rows = (json.loads(line) for line in self.text.split("\n") if line)
        return dict(Counter(row["role"] for row in rows).most_common())

    def write(self, folder: Path) -> None:
        """Save the conversations in a run's folder."""
        with replacing(folder / CONVERSATIONS) as part:
            part.write_text(self.text, encoding="utf-8")

    def data(self) -> dict[str, Any]:
        """Numbers of selected conversations and of those left out, as JSON."""
        report = self.report
        taken = {
            "trajectories": report.trajectories,
            "conversations": report.rows,
            "by_role": self.by_role,
        }
        return {**taken, "left_out": dict(report.left_out)}

    def lines(self) -> list[str]:
        """Numbers of selected conversations and of those left out, as lines for people."""
        roles = ", ".join(f"{role} {count}" for role, count in self.by_role.items())
        first = (
            f"{self.report.rows} conversations of {self.report.trajectories} runs on record:"
            f" {roles}"
        )
        return [first, *_left_out(self.report)]


def select(config: FineTuneConfig) -> Selection:
    """Select the conversations for a configuration. Raises `TaskError` if there are none."""
    with TemporaryDirectory() as folder, described_runs(config.source) as (trajectories, known):
        path = Path(folder) / CONVERSATIONS
        runs = _scored(config, trajectories) if config.by else trajectories
        report = export_to(path, runs, "chat", known, config.reward, config.roles)
        text = path.read_text(encoding="utf-8") if report.rows else ""
    if not report.rows:
        why = " ".join(f"{line}." for line in _left_out(report)) or "It holds no run."
        raise TaskError(
            f"There is no conversation to learn from in {config.source}. {why}",
            f"`hrm-agent history --store {config.source}` lists its runs; --reward and --role"
            " choose among them.",
        )
    return Selection(text, report)


def _scored(config: FineTuneConfig, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Trajectories that have scores named `config.by`, with these scores as their rewards."""
    if is_file(config.source):
        raise ConfigError(
            f"{config.source} is a file, which has no scores but the trajectories' own rewards.",
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
