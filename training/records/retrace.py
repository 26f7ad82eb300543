"""Steps of a training, taken again from its record.

A step is a function of the weights and the optimiser before it, of the rollouts on record, and of
their verdicts. So the same step has the same result to the last bit, and a step without some of its
rollouts shows what these have taught.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from hrm_agent.basics.files import read_whole
from hrm_agent.config import COMMAND_KEY, CONFIG_FILE, build_config, read_config_file
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.store import RunStore, open_store
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

_SAME = 1e-3
"""Difference of metrics, as a share of them, up to which a step taken again is the same. On one
machine there is none.
"""

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
    demo = build_config(DemoConfig, values, str(path), on_record=True)
    return (
        demo.train.model_copy(update={"policy": str(folder / "cold-start")})
        if demo.from_scratch
        else demo.train
    )


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
        """The step in which the outcome of the rollouts with these ids teaches nothing: their
        weight is 0. Mini-batches, numbers of tokens and advantages of the others stay.
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
        refuse_parts_changed_since(self.config, folder)
        run_id = read_whole(folder / "run_id")
        if run_id is None:
            raise RunError(
                f"{folder / 'run_id'} is missing or empty, so that the run's rollouts are unknown.",
                "Write the name there that the folder had when the run began.",
            )
        self.run_id = run_id
        self.learner = Learner(self.config, exact_accelerator(), folder)
        self._checkpoints = Checkpoints(folder).complete()
        self._versions = Versions(folder)

    @cached_property
    def kept(self) -> list[int]:
        """Versions whose weights and optimiser are kept, in order, and 0: the policy that the
        training began with.
        """
        return sorted({0, *self._checkpoints, *self._archived} & {*range(len(self.rows) + 1)})

    @cached_property
    def _archived(self) -> frozenset[int]:
        return frozenset(self._versions.numbers)

    def versions(self, numbers: Iterable[int]) -> Generator[int]:
        """Load kept versions one after the other, in ascending order, and yield the number of each
        while the learner has its weights and optimiser.
        """
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
        """Load a version. One that is not kept is made from the last kept one before it."""
        for _ in self.walk(max(each for each in self.kept if each <= number), number):
            pass

    def walk(self, start: int, end: int) -> Generator[int]:
        """Load the kept version `start`, take the steps from it to version `end` again, and yield
        the number of each version while it is loaded.
        """
        for _ in self.versions([start]):
            yield start
        for number in range(start, end):
            self._again(number)
            yield number + 1

    def _again(self, number: int) -> None:
        """Take a step again. Raises `RunError` if its metrics are not those on record."""
        found = self.take(self.step(number))
        for name in ("loss", "grad_norm", "trained_tokens"):
            before = self.rows[number].get(name)
            now = found[name]
            if before is None or not math.isfinite(now):
                continue
            if not math.isclose(float(before), now, rel_tol=_SAME, abs_tol=_SAME):
                raise RunError(
                    f"Step {number + 1} taken again has {name} {now:.6g}, and {before:.6g} on"
                    " record: the policy that the training began with, the device or a library is"
                    " another one.",
                    "Restore it, or train with --keep-versions 1, so that no step is taken again.",
                )

    def begins_afresh(self, number: int) -> bool:
        """True if the optimiser began afresh with step `number`."""
        if number == 0:
            return True
        stages = self.config.stages
        before, now = (int(self.rows[each].get("stage") or 0) for each in (number - 1, number))
        # a stage without a problem left takes no step, but begins
        return any(stages[each].reset_optimizer for each in range(before + 1, now + 1))

    def at_step(self, number: int) -> GrpoConfig:
        """Configuration of the training in the stage of step `number`."""
        return at_stage(self.config, int(self.rows[number].get("stage") or 0))

    def step(self, number: int) -> RecordedStep:
        """Recorded step `number`. Raises `RunError` if its rollouts are missing."""
        row = self.rows[number]
        config = self.at_step(number)
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
                f" {self.store.url}: they were deleted.",
                "Name a step whose rollouts are kept.",
            )
        threads = {each.thread_id for each in found}
        last = [each for each in found if each.thread_id + SECOND_ATTEMPT not in threads]
        last.sort(key=lambda each: self._place(each, number))
        verdicts = [overlays[each.id] for each in last]
        rate = float(row["learning_rate"])
        return RecordedStep(number, config, rate, self.begins_afresh(number), last, verdicts)

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
def opened_training(
    folder: Path, config: GrpoConfig | None = None, store: str | None = None
) -> Generator[RecordedTraining]:
    """Open the training in `folder`. `config`: its configuration (None: that on record). `store`:
    path or URL of its store (None: as the folder says). Raises as `RecordedTraining` and
    `config_of_training`.
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
                f"The steps in {folder} cannot be taken again: it {reason}.",
                "Name a training of one process that sampled its own rollouts.",
            )
