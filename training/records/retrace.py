"""Repetition of recorded training steps.

The result of a step depends only on the weights and the optimiser before it, the recorded rollouts,
and their verdicts. So on one machine a repeated step gives bit-identical weights. A step repeated
without some of its rollouts shows their effect.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hrm_agent.config import COMMAND_KEY, CONFIG_FILE, build_config, read_config_file
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.run_store import own_run
from hrm_agent.training.checkpoints import Checkpoints
from hrm_agent.training.config.commands import DemoConfig, GrpoConfig
from hrm_agent.training.config.fitted import fit
from hrm_agent.training.grpo import mini_batches
from hrm_agent.training.metrics import METRICS_FILE, Row, read_metrics
from hrm_agent.training.own_parts import refuse_parts_changed_since
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.rollout.source import at_stage
from hrm_agent.training.update.accelerators import exact_accelerator
from hrm_agent.training.update.batch import MicroBatch, split_kept
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.versions import Versions
from hrm_agent.trajectory import Overlay, Trajectory, Verdict, step_in_name

__all__ = ["RecordedStep", "RecordedTraining", "config_of_training", "opened_training"]

_SAME = 1e-3
"""Maximum relative difference between the metrics of a repeated step and the recorded ones. On one
machine they are equal. Other devices and library versions round differently.
"""


def config_of_training(folder: Path) -> GrpoConfig:
    """Configuration of the reinforcement learning in a run folder. Raises `ConfigError` for a folder
    of another kind.
    """
    path = folder / CONFIG_FILE
    try:
        command = tomllib.loads(path.read_text(encoding="utf-8")).get(COMMAND_KEY)
    except (OSError, ValueError, RecursionError):
        command = None
    if command not in ("train rl", "demo"):
        raise ConfigError(
            f"{folder} is not the folder of a `train rl`.", "Name the folder that its --out named."
        )
    values = read_config_file(path, command)
    if command == "train rl":
        return build_config(GrpoConfig, values, str(path), on_record=True)
    demo = build_config(DemoConfig, values, str(path), on_record=True)
    return (
        demo.train.model_copy(update={"policy": str(folder / "cold-start")})
        if demo.from_scratch
        else demo.train
    )


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Recorded input of a training step's update: everything except weights and optimiser."""

    number: int
    """Number of the step, from 0. Its result is version `number + 1` of the weights."""
    config: GrpoConfig
    """Configuration of the training in the stage of the step."""
    rate: float
    """Learning rate."""
    fresh_optimizer: bool
    """True if the optimiser is reset before this step."""
    rollouts: list[Trajectory]
    """All rollouts of the step, selected or not."""
    overlays: list[Overlay]
    """Verdict on each rollout, in the same order."""

    @property
    def trained(self) -> list[Trajectory]:
        """Rollouts that were selected."""
        kept = {each.trajectory_id for each in self.overlays if each.verdict is Verdict.KEPT}
        return [each for each in self.rollouts if each.id in kept]

    @property
    def trained_by_part(self) -> list[list[str]]:
        """Ids of the selected rollouts by mini-batch, in the order of `MicroBatch.sequences_K`."""
        parts = split_kept(self.overlays, self.config.optim.mini_batches, seed=self.config.seed)
        return [[each.trajectory_id for each in part] for part in parts]

    def without(self, ids: Collection[str]) -> RecordedStep:
        """Copy of the step in which the weights of the rollouts with these ids are 0. Mini-batches,
        token counts and the advantages of the other rollouts are unchanged.
        """
        calls = {each.id: [call.id for call in each.calls] for each in self.rollouts}
        overlays = [
            each.model_copy(
                update={
                    "advantage": 0.0,
                    "credit": dict.fromkeys(each.credit or calls[each.trajectory_id], 0.0),
                }
            )
            if each.trajectory_id in ids
            else each
            for each in self.overlays
        ]
        return replace(self, overlays=overlays)


class RecordedTraining:
    """Recorded training, with its kept versions and its steps. Its folder is only read."""

    def __init__(self, folder: Path, store: RunStore, config: GrpoConfig) -> None:
        """Load the policy. Raises `ConfigError` or `RunError` if the steps cannot be repeated."""
        self.folder = folder
        self.store = store
        _refuse_unrepeatable(config, folder)
        self.config = fit(config)
        self.rows: list[Row] = read_metrics(folder / METRICS_FILE)
        """Rows of metrics, one a step."""
        if not self.rows:
            raise RunError(f"The training in {folder} has taken no step.", "Continue it first.")
        refuse_parts_changed_since(self.config, folder)
        run_id = own_run(str(folder))
        if run_id is None:
            raise RunError(
                f"{folder / 'run_id'} is missing or empty. It names the run's rollouts in the store.",
                "Write the name there that the folder had when the run began.",
            )
        self.run_id = run_id
        self.learner = Learner(self.config, exact_accelerator(), folder)
        self._checkpoints = Checkpoints(folder).complete()
        self._versions = Versions(folder)

    @cached_property
    def kept(self) -> list[int]:
        """Numbers of the versions whose weights and optimiser are kept, ascending. Version 0 is the
        policy before the first step.
        """
        return sorted({0, *self._checkpoints, *self._archived} & {*range(len(self.rows) + 1)})

    @cached_property
    def _archived(self) -> frozenset[int]:
        return frozenset(self._versions.numbers)

    @property
    def kept_bytes(self) -> int:
        """Size of the archive of versions."""
        return self._versions.size

    def versions(self, numbers: Iterable[int]) -> Generator[int]:
        """Load kept versions in ascending order. Yields the number of each after loading it."""
        wanted = sorted(numbers)
        with self._versions.opened(each for each in wanted if each in self._archived) as folders:
            for number in wanted:
                if number == 0:
                    self.learner = Learner(self.config, exact_accelerator(), self.folder)
                elif number in self._archived:
                    _, folder = next(folders)
                    self.learner.read(folder, number)
                else:
                    self._read_checkpoint(number)
                yield number

    def _read_checkpoint(self, number: int) -> None:
        try:
            self.learner.read(self._checkpoints[number], number)
        except FileNotFoundError as error:
            raise RunError(
                f"{self._checkpoints[number]} was removed while it was read: the training goes on.",
                "Ask again, or train with --keep-versions 1.",
            ) from error

    def load(self, number: int) -> None:
        """Load a version. If it is not kept, repeat the steps after the last kept one before it."""
        for _ in self.walk(max(each for each in self.kept if each <= number), number):
            pass

    def walk(self, start: int, end: int) -> Generator[int]:
        """Load the kept version `start`, and repeat steps up to version `end`. Yields the number of
        each version after loading it.
        """
        for _ in self.versions([start]):
            yield start
        for number in range(start, end):
            self._repeat(number)
            yield number + 1

    def _repeat(self, number: int) -> None:
        """Repeat a step. Raises `RunError` if its metrics differ from the recorded ones."""
        found = self.take(self.step(number))
        for name in ("loss", "grad_norm", "trained_tokens"):
            before = self.rows[number].get(name)
            now = found[name]
            if before is None or not math.isfinite(now):
                continue
            if not math.isclose(float(before), now, rel_tol=_SAME, abs_tol=_SAME):
                raise RunError(
                    f"Step {number + 1} was repeated with another result: {name} is {now:.6g}, and"
                    f" {before:.6g} on record. The initial policy, the device or a library has"
                    " changed.",
                    "Restore it, or train with --keep-versions 1, so that no step is repeated.",
                )

    def begins_afresh(self, number: int) -> bool:
        """True if the optimiser is reset before step `number`."""
        if number == 0:
            return True
        stages = self.config.stages
        before, now = (int(self.rows[each].get("stage") or 0) for each in (number - 1, number))
        # a stage whose pool is empty has no step, but resets the optimiser
        return any(stages[each].reset_optimizer for each in range(before + 1, now + 1))

    def config_at(self, number: int) -> GrpoConfig:
        """Configuration of the training in the stage of step `number`."""
        return at_stage(self.config, int(self.rows[number].get("stage") or 0))

    def step(self, number: int) -> RecordedStep:
        """Recorded step `number`. Raises `RunError` if its rollouts are missing."""
        row = self.rows[number]
        config = self.config_at(number)
        overlays = {
            each.trajectory_id: each for each in self.store.journal.overlays(self.run_id, number)
        }
        rollouts = [
            self.store.journal.find_trajectory(
                each, requests=config.loss.teacher_prompt is not None
            )
            for each in overlays
        ]
        found = [each for each in rollouts if each is not None]
        kept = [each for each in overlays.values() if each.verdict is Verdict.KEPT]
        if len(found) < len(rollouts) or (row["trained_tokens"] and not kept):
            raise RunError(
                f"Rollouts of step {number + 1}, or their verdicts, are missing in"
                f" {self.store.url}.",
                "Name a step whose rollouts are kept.",
            )
        threads = {each.thread_id for each in found}
        last = [each for each in found if each.thread_id + SECOND_ATTEMPT not in threads]
        last.sort(key=lambda each: self._place(each, number))
        verdicts = [overlays[each.id] for each in last]
        rate = float(row["learning_rate"])
        return RecordedStep(number, config, rate, self.begins_afresh(number), last, verdicts)

    def _place(self, rollout: Trajectory, step: int) -> tuple[bool, int, int]:
        """Sort key of a rollout in its step. Rollouts carried over from the previous step are last."""
        carried = step_in_name(rollout.thread_id, self.run_id) != step
        return carried, int(rollout.group_id.rpartition("/")[2]), rollout.sample_index

    def batches(self, step: RecordedStep) -> list[list[MicroBatch]]:
        """Micro-batches of each optimiser step of a step."""
        teachers = self.learner.teachers
        return mini_batches(
            step.rollouts,
            step.overlays,
            step.config,
            forward=self.learner.forward,
            lesson=teachers.lesson if teachers is not None else None,
        )

    def take(self, step: RecordedStep) -> Row:
        """Take a step from the loaded weights. Returns the metrics of its update."""
        if step.fresh_optimizer:
            self.learner.begin_optimizer_afresh()
        return self.learner.update(self.batches(step), step.rate)


@contextmanager
def opened_training(
    folder: Path, config: GrpoConfig | None = None, store: str | None = None
) -> Generator[RecordedTraining]:
    """Open the training in `folder`. `config`: its configuration (None: read from the folder).
    `store`: path or URL of its store (None: found through the folder). Raises the errors of
    `RecordedTraining` and `config_of_training`.
    """
    config = config or config_of_training(folder)
    with open_store(store or str(folder), create=False, read_only=True) as opened:
        yield RecordedTraining(folder, opened, config)


def _refuse_unrepeatable(config: GrpoConfig, folder: Path) -> None:
    reasons = {
        "was trained on the records of other runs (--from)": bool(config.source),
        f"was trained by several processes (sharding = {config.optim.sharding})": (
            config.optim.sharding != "none"
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(
                f"The steps of {folder} cannot be repeated: it {reason}.",
                "Name a training of one process that sampled its own rollouts.",
            )
