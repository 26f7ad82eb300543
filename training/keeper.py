"""Writer of a training's run folder: metrics, checkpoints with everything on which the next step
depends, and models.

    RUN/metrics.jsonl                   a row per step
    RUN/checkpoints/step-000012/        weights, optimiser, and progress of the run
    RUN/best/                           the best weights on held-out problems, if the run evaluates
    RUN/versions/step-000012.zip        an archived version of weights and optimiser
    RUN/stages/1/                       the weights after the first stage, if the run keeps them
    RUN/model/                          the weights after the last step
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import read_whole, replacing
from hrm_agent.training.checkpoints import Checkpoints, keep_model, write_whole
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.metrics import METRICS_FILE, MetricsLog, Row, read_metrics
from hrm_agent.training.rollout.source import RunProgress
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.schedule import Schedule, refuse_other_course
from hrm_agent.training.versions import Versions

__all__ = ["Keeper"]

_STATE = "state.json"
_SCHEDULE = "schedule.json"
"""File with the planned number of steps. Checkpoints have this number, too, but the plan may have
changed since the newest checkpoint.
"""


class Keeper:
    """Keeper of a training's run folder."""

    def __init__(self, folder: Path, config: GrpoConfig, learner: Learner) -> None:
        self.folder = folder
        self.config = config
        self._learner = learner
        self._log: MetricsLog | None = None

    def restore(self, with_rollouts: Callable[[], int] = lambda: 0) -> RunProgress:
        """Restore the newest complete checkpoint if there is one, and return the progress of the
        run.

        `with_rollouts`: function that returns the number of steps with rollouts on record, which
        are not sampled again. Runs of earlier versions drew their tasks from a single block of all
        tasks. They continue to do so (except for a `mix:` of tasks, which they drew in another
        way), and `config` is changed accordingly. Raises `RunError` if there are checkpoints but
        none is complete, or if the taken steps would have had other learning rates with the number
        of steps that is requested now.
        """
        checkpoints = self._checkpoints
        config = self.config
        state = checkpoints.restore(self._read)
        version = int(state["version"]) if state else 0
        planned = read_whole(self.folder / _SCHEDULE)  # None for a new run, too
        before = int((state or {}).get("steps", config.steps))
        if planned is not None:
            before = int(json.loads(planned)["steps"])
        if before != config.steps:
            taken = max(version, checkpoints.newest_step, with_rollouts())
            optim = config.optim
            now = Schedule(
                config.steps, optim.warmup_steps, optim.cooldown, optim.fall, optim.least_rate
            )
            refuse_other_course(now, before, taken, self.folder)
        with replacing(self.folder / _SCHEDULE) as part:
            part.write_text(json.dumps({"steps": config.steps}), encoding="utf-8")
        if state is None:
            return RunProgress()
        block = int(state.get("shuffle_block", config.steps * config.rollout.prompts_per_step))
        self.config = config.but(on_record=True, shuffle_block=block)
        drawn = version * config.rollout.prompts_per_step
        return (
            RunProgress.model_validate(state["progress"])
            if "progress" in state
            else RunProgress(cursor=drawn)
        )

    def keep(self, row: Row, progress: RunProgress) -> None:
        """Append the row of a step, and save a checkpoint if one is due."""
        if self._log is None:
            self._log = MetricsLog(self.folder / METRICS_FILE, before_step=int(row["step"]))
        self._log.append(row)
        self._log.sync()
        self.checkpoint(progress)

    def checkpoint(self, progress: RunProgress) -> None:
        """Save everything on which the next step depends, if a checkpoint is due."""
        version = self._learner.version
        if self._checkpoints.is_due(version, self.config.steps) or self._is_kept(version):
            written = self._checkpoints.save(version, lambda folder: self._write(folder, progress))
            self._keep_version(version, written)

    def best(self) -> Path:
        """Save the weights as the best ones so far."""
        return write_whole(self.folder / "best", self._learner.version, self._learner.save)

    def stage(self, number: int) -> None:
        """Save the weights as those at the end of a stage, counted from 1."""
        folder = self.folder / "stages" / str(number)
        write_whole(folder, self._learner.version, self._learner.save)

    def end(self) -> Path:
        """Return the folder of the trained model, which is written if it is missing. Raises
        `RunError` if there were steps with tokens to train, but all were skipped.
        """
        skipped = self._learner.skipped
        skipped.taken_before = any(
            row.get("stepped") for row in read_metrics(self.folder / METRICS_FILE)
        )
        skipped.end()
        return keep_model(self.folder, self._learner.version, self._learner.save)

    def _is_kept(self, version: int) -> bool:
        every = self.config.keep.keep_versions
        return every > 0 and (version % every == 0 or version == self.config.steps)

    def _keep_version(self, version: int, checkpoint: Path) -> None:
        if self._is_kept(version):
            Versions(self.folder).keep(version, checkpoint)

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(
            self.folder, keep=self.config.keep.checkpoints, every=self.config.keep.checkpoint_every
        )

    def _write(self, folder: Path, progress: RunProgress) -> None:
        config = self.config
        self._learner.write(folder)
        state = {
            "version": self._learner.version,
            "steps": config.steps,
            "shuffle_block": config.rollout.shuffle_block,
            "progress": progress.model_dump(),
        }
        (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")

    def _read(self, folder: Path) -> dict[str, Any]:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        version = int(state["version"])
        self._learner.read(folder, version)
        self._keep_version(version, folder)  # missing if the run was killed after the checkpoint
        return state
