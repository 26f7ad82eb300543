"""Steps of a training, taken again from its record.

A step is a function of the weights and the optimiser before it, of the rollouts on record, and of
their verdicts. So the same step has the same result to the last bit, and a step without some of its
rollouts shows what these have taught.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hrm_agent.config import COMMAND_KEY, CONFIG_FILE, build_config, read_config_file
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.checkpoints import Checkpoints
from hrm_agent.training.config.commands import DemoConfig, GrpoConfig
from hrm_agent.training.config.fitted import fit
from hrm_agent.training.grpo import mini_batches
from hrm_agent.training.metrics import METRICS_FILE, Row, read_metrics
from hrm_agent.training.own_parts import keep_own_parts
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.rollout.rollout import run_id_of
from hrm_agent.training.rollout.source import at_stage
from hrm_agent.training.update.accelerators import exact_accelerator
from hrm_agent.training.update.batch import MicroBatch, split_kept
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.versions import Versions
from hrm_agent.trajectory import Overlay, Trajectory, Verdict, step_in_name

__all__ = ["RecordedStep", "RecordedTraining", "config_of_training", "opened_training"]


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
    return build_config(DemoConfig, values, str(path), on_record=True).train


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Step of a training, with all that decided its update, except the weights before it."""

    number: int
    """Number of the step, from 0. It made version `number + 1` of the weights."""
    config: GrpoConfig
    """Configuration of the training in the stage of the step."""
    rate: float
    """Learning rate."""
    fresh_optimizer: bool
    """True if the optimiser began afresh with this step."""
    rollouts: list[Trajectory]
    """Rollouts, in the order in which they were trained on."""
    overlays: list[Overlay]
    """Verdict on each rollout, in the same order."""

    @property
    def trained(self) -> list[Trajectory]:
        """Rollouts that were selected."""
        kept = {each.trajectory_id for each in self.overlays if each.verdict is Verdict.KEPT}
        return [each for each in self.rollouts if each.id in kept]

    @property
    def trained_by_part(self) -> list[list[str]]:
        """Ids of the selected rollouts of each mini-batch, in the order of their numbers there."""
        parts = split_kept(self.overlays, self.config.optim.mini_batches, seed=self.config.seed)
        return [[each.trajectory_id for each in part] for part in parts]

    def without(self, ids: Collection[str]) -> RecordedStep:
        """The step without the rollouts with these ids. The others keep their advantages."""
        rollouts = [each for each in self.rollouts if each.id not in ids]
        overlays = [each for each in self.overlays if each.trajectory_id not in ids]
        return replace(self, rollouts=rollouts, overlays=overlays)


class RecordedTraining:
    """Training on record: its kept versions, and its steps. Nothing is written to its folder."""

    def __init__(self, folder: Path, store: RunStore, config: GrpoConfig) -> None:
        """Raises `ConfigError` or `RunError` if its steps cannot be taken again."""
        self.folder = folder
        self.store = store
        _refuse_unrepeatable(config, folder)
        self.config = fit(config)
        self.rows: list[Row] = read_metrics(folder / METRICS_FILE)
        """Rows of metrics, one a step."""
        if not self.rows:
            raise RunError(f"The training in {folder} has taken no step.", "Continue it first.")
        keep_own_parts(self.config, folder)
        self.run_id = run_id_of(folder)
        self.learner = Learner(self.config, exact_accelerator(), folder)
        self._checkpoints = Checkpoints(folder).complete()
        self._versions = Versions(folder)

    @cached_property
    def kept(self) -> list[int]:
        """Versions whose weights and optimiser are kept, in order, and 0: the policy that the
        training began with.
        """
        return sorted({0, *self._checkpoints, *self._versions.numbers} & {*self._made})

    @property
    def _made(self) -> range:
        """Versions that the training has made."""
        return range(len(self.rows) + 1)

    def versions(self, numbers: Iterable[int]) -> Generator[int]:
        """Load kept versions one after the other, in ascending order, and yield the number of each
        while the learner has its weights and optimiser.
        """
        wanted = sorted(numbers)
        archived = [each for each in wanted if each not in self._checkpoints and each]
        with self._versions.opened(archived) as folders:
            for number in wanted:
                if number == 0:
                    self._begin()
                elif number in self._checkpoints:
                    self.learner.read(self._checkpoints[number], number)
                else:
                    _, folder = next(folders)
                    self.learner.read(folder, number)
                yield number

    def load(self, number: int) -> None:
        """Load a version. One that is not kept is made from the last kept one before it."""
        start = max(each for each in self.kept if each <= number)
        for _ in self.versions([start]):
            for step in range(start, number):
                self.take(self.step(step))

    def _begin(self) -> None:
        """Load the policy that the training began with."""
        self.learner = Learner(self.config, exact_accelerator(), self.folder)

    def step(self, number: int) -> RecordedStep:
        """Recorded step `number`. Raises `RunError` if its rollouts are missing."""
        row = self.rows[number]
        stage = int(row.get("stage") or 0)
        before = int(self.rows[number - 1].get("stage") or 0) if number else 0
        stages = self.config.stages
        config = at_stage(self.config, stage)
        fresh = bool(stages) and stage != before and stages[stage].reset_optimizer
        overlays = {
            each.trajectory_id: each for each in self.store.journal.overlays(self.run_id, number)
        }
        rollouts: list[Trajectory] = []
        for each in overlays:
            found = self.store.journal.find_trajectory(
                each, requests=config.loss.teacher_prompt is not None
            )
            if found is None:
                raise RunError(
                    f"A rollout of step {number + 1} is missing in {self.store.url}: it was"
                    " deleted.",
                    "Name a step whose rollouts are kept.",
                )
            rollouts.append(found)
        threads = {each.thread_id for each in rollouts}
        last = [each for each in rollouts if each.thread_id + SECOND_ATTEMPT not in threads]
        last.sort(key=lambda each: self._place(each, number))
        rate = float(row["learning_rate"])
        verdicts = [overlays[each.id] for each in last]
        return RecordedStep(number, config, rate, fresh, last, verdicts)

    def _place(self, rollout: Trajectory, step: int) -> tuple[bool, int, int]:
        """Place of a rollout in its step. Those carried over from the step before come last."""
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
        """Take a step with the weights that are loaded, and return the metrics of its update."""
        if step.fresh_optimizer:
            self.learner.begin_optimizer_afresh()
        return self.learner.update(self.batches(step), step.rate)


@contextmanager
def opened_training(folder: Path, config: GrpoConfig | None = None) -> Generator[RecordedTraining]:
    """Open the training in `folder`. `config`: its configuration (None: that on record). Raises as
    `RecordedTraining` and `config_of_training`.
    """
    config = config or config_of_training(folder)
    with open_store(str(folder), create=False, read_only=True) as store:
        yield RecordedTraining(folder, store, config)


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
                f"The steps in {folder} cannot be taken again: it {reason}.",
                "Name a training of one process that sampled its own rollouts.",
            )
