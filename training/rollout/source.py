"""Source of a training's tasks. It decides, from saved state, when the next stage begins and when
the run ends.

A stage is a sequence of steps with the same tasks, lengths and learning rate. The paper's recipe
has three stages. A run without stages is a single stage. The seed decides the order of a stage's
tasks (`hrm_agent.training.tasks.training_order`), and with the results so far each draw by
learnability. `RunProgress` records how much of the order was drawn, which problems have left the
pool because the policy masters them, and all other state on which decisions depend. It is part of
each checkpoint. A step changes it only by the results of its rollouts, so a step that is repeated
from the rollouts on record leads to the same state.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.fitted import decided, fit
from hrm_agent.training.config.parts import TrainingStage
from hrm_agent.training.config.rules import refuse_other_families
from hrm_agent.training.tasks import Task, load_tasks, refuse_unscored
from hrm_agent.training.tasks.sources import tasks_folder
from hrm_agent.training.tasks.training_order import training_tasks
from hrm_agent.training.update.schedule import Schedule
from hrm_agent.trajectory import derive_seed

__all__ = [
    "BegunStep",
    "RunProgress",
    "StepPlan",
    "TaskSource",
    "at_stage",
    "held_out",
    "key_of",
    "refuse_unknown_families",
    "tasks_of_run",
]


class BegunStep(BaseModel):
    """Step whose rollouts run before the step is taken."""

    model_config = ConfigDict(frozen=True)

    step: int
    """Number of the step, from 0."""
    places: list[int]
    """Positions of the step's tasks in the order of its stage."""


class RunProgress(BaseModel):
    """Progress of a run, apart from its weights. It is saved with each checkpoint."""

    model_config = ConfigDict(validate_assignment=True)

    stage: int = 0
    """Number of the stage, from 0."""
    began_at: int = 0
    """Step at which the stage began."""
    cursor: int = 0
    """Number of positions of the stage's order that have been drawn."""
    in_a_row: dict[str, int] = {}
    """Problem -> number of consecutive groups in which all rollouts were right."""
    mastered: list[str] = []
    """Problems that have left the pool, by `key_of`."""
    results: dict[str, tuple[float, float]] = {}
    """Problem -> numbers of right and wrong rollouts, earlier ones discounted, if tasks are drawn by
    learnability.
    """
    drawn_places: list[int] = []
    """Positions drawn by learnability since the last step that was taken."""
    best_correct: float = -1.0
    """Largest share of right rollouts in a step of this stage."""
    since_best: int = 0
    """Number of steps since the best step of this stage."""
    evaluations: list[tuple[int, float]] = []
    """Evaluations as (number of steps behind the weights, accuracy on held-out problems)."""
    begun: list[BegunStep] = []
    """Next steps, all of this stage, whose rollouts already run."""

    def evaluated(self, steps: int, accuracy: float) -> bool:
        """Record an evaluation. Returns True if its accuracy is the best so far."""
        best = max((found for _, found in self.evaluations), default=-1.0)
        self.evaluations = [*self.evaluations, (steps, accuracy)]
        return accuracy > best

    def is_patience_spent(self, patience: int, every: int) -> bool:
        """True if none of the last `patience` evaluations was better than all before them. If
        `patience` is 0, this is never true.

        Only evaluations after every `every`-th step count. The extra evaluation at the end of a run
        is ignored, since it would not exist if the run had been longer from the beginning.
        """
        found = [
            accuracy for steps, accuracy in self.evaluations if not every or steps % every == 0
        ]
        return bool(0 < patience < len(found)) and max(found[-patience:]) <= max(found[:-patience])


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Plan of one step."""

    step: int
    """Number of the step, from 0, over all stages."""
    stage: int
    """Number of the step's stage, from 0."""
    config: GrpoConfig
    """Configuration of the run in this stage."""
    rate: float
    """Learning rate of the step."""
    tasks: list[Task]
    """Tasks of the step's first groups, one for each group."""


class TaskSource:
    """Source of the tasks of a run."""

    def __init__(
        self, config: GrpoConfig, folder: Path, progress: RunProgress | None = None
    ) -> None:
        self.progress = progress or RunProgress()
        self._config = fit(config)
        self._folder = folder
        self._order: list[Task] = []
        self._order_of: tuple[Any, ...] = ()
        self._places: dict[str, int] = {}
        self._places_of: tuple[Any, ...] = ()

    def goes_on(self, step: int) -> bool:
        """True if the run has a step `step`. If this step is of the next stage, the
        stage begins.
        """
        while self._stage_is_over(step):
            if not self._next_stage(step):
                return False
        patience = self.config.evaluation.patience
        every = self.config.evaluation.eval_every
        return step < self._config.steps and not self.progress.is_patience_spent(patience, every)

    def prepare(self) -> None:
        """Raise `TaskError` if the tasks of a stage cannot be trained on, and `ConfigError` if
        `families` names one that no task is of.
        """
        self._extend()
        for number in range(len(self._config.stages)):
            _tasks(at_stage(self._config, number), self._folder, 1)
        refuse_unknown_families(self._config, self._folder)

    def ran_out(self, step: int) -> bool:
        """Report on stderr that no problem is left in the pool for `step`, and begin the next
        stage.

        Returns False if this was the last stage.
        """
        stages = self._config.stages
        number = self.progress.stage
        goes_on = self._next_stage(step)
        whose = f"of stage {stages[number].name or number + 1} " if stages else ""
        then = "the next stage begins" if goes_on else "the training ends here"
        sys.stderr.write(f"hrm-agent: No problem {whose}is left after {step} steps; {then}.\n")
        return goes_on

    def plan(self, step: int) -> StepPlan | None:
        """Plan of `step` (None if no problem is left). If the step has been begun, it is the plan
        with which it was begun.
        """
        progress = self.progress
        if progress.begun and progress.begun[0].step == step:
            begun, *progress.begun = progress.begun
            return self._planned(begun)
        places = self._draw()
        return self._planned(BegunStep(step=step, places=places)) if places else None

    def ahead(self, step: int) -> list[StepPlan]:
        """Return plans of the next steps, whose rollouts run while `step` is taken. There are at
        most `versions_behind`.

        All are of this stage. A later stage begins only when all begun steps have been taken.
        """
        progress = self.progress
        behind = self.config.rollout.versions_behind
        stages = self._config.stages
        end = progress.began_at + stages[progress.stage].steps if stages else self._config.steps
        for coming in range(step + 1 + len(progress.begun), min(step + 1 + behind, end)):
            if self._is_on_plateau or not (places := self._draw()):
                break
            progress.begun = [*progress.begun, BegunStep(step=coming, places=places)]
        return [self._planned(each) for each in progress.begun if each.step < end]

    def _draw(self) -> list[int]:
        places = (self._next_place() for _ in range(self.config.rollout.prompts_per_step))
        return [place for place in places if place is not None]

    def _planned(self, begun: BegunStep) -> StepPlan:
        tasks = [self._task(place) for place in begun.places]
        return StepPlan(begun.step, self.progress.stage, self.config, self.rate(begun.step), tasks)

    def rate(self, step: int) -> float:
        """Learning rate of `step`."""
        progress = self.progress
        optim = self.config.optim
        stage = self._config.stages[progress.stage] if self._config.stages else None
        length = self._config.steps if stage is None else stage.steps
        is_fresh = stage is None or progress.stage == 0 or stage.reset_optimizer
        schedule = Schedule(
            length,
            optim.warmup_steps if is_fresh else 0,
            optim.cooldown,
            optim.fall,
            optim.least_rate,
        )
        return decided(optim.learning_rate, "learning_rate") * schedule.share(
            step - progress.began_at
        )

    def entered(self, step: int) -> TrainingStage | None:
        """Stage that begins with `step` (None if no stage does)."""
        stages = self._config.stages
        return stages[self.progress.stage] if stages and step == self.progress.began_at else None

    @property
    def config(self) -> GrpoConfig:
        """Configuration of the run in the current stage."""
        return at_stage(self._config, self.progress.stage)

    def next_task(self) -> Task | None:
        """Next task of the stage's order whose problem has not left the pool (None if all have)."""
        place = self._next_place()
        return None if place is None else self._task(place)

    def drawn(self, family: str, task_id: str) -> Task | None:
        """Task of the stage's order among those drawn so far (None if there is no such task)."""
        if self.config.rollout.draw == "learnability":
            place = self._first_places().get(key_of(family, task_id))
            return None if place is None else self._task(place)
        places = (self._task(place) for place in reversed(range(self.progress.cursor)))
        return next((task for task in places if (task.family, task.id) == (family, task_id)), None)

    def _next_place(self) -> int | None:
        if self.config.rollout.draw == "learnability":
            return self._learnable_place()
        progress = self.progress
        passed = 0
        mastered = set(progress.mastered)
        while passed <= 2 * len(mastered):  # two passes meet every problem of the pool
            task = self._task(progress.cursor)
            progress.cursor += 1
            if key_of(task.family, task.id) not in mastered:
                return progress.cursor - 1
            passed += 1
        return None

    def _learnable_place(self) -> int | None:
        """Position of a task drawn by learnability, of the family that the order has next (of any
        family if this one has no problem left).

        A problem is drawn only once until a step is taken, if there are others.
        """
        progress = self.progress
        number = progress.cursor
        places = self._first_places()
        progress.cursor += 1
        mastered, drawn = set(progress.mastered), set(progress.drawn_places)
        left = [place for key, place in places.items() if key not in mastered]
        fresh = [place for place in left if place not in drawn] or left
        family = self._task(number).family
        able = [place for place in fresh if self._order[place].family == family] or fresh
        if not able:
            return None
        rng = random.Random(derive_seed(self._config.seed, "learnability", progress.stage, number))
        (place,) = rng.choices(able, [self._learnability(self._order[each]) for each in able])
        progress.drawn_places = [*progress.drawn_places, place]
        return place

    def _first_places(self) -> dict[str, int]:
        """First position of each problem of the pool in the stage's order. The pool does not depend
        on the number of steps, so that a run can be prolonged.
        """
        if self._places_of != self._wanted:
            size = _pool_size(self.config)
            self._task(size - 1)
            found: dict[str, int] = {}
            for place, task in enumerate(self._order[:size]):
                found.setdefault(key_of(task.family, task.id), place)
            self._places = found
            self._places_of = self._wanted
        return self._places

    def _learnability(self, task: Task) -> float:
        """Expected p(1 - p) of a problem with r right and w wrong rollouts, with a uniform prior of p:

            a b / ((a + b) (a + b + 1)),     a = r + 1, b = w + 1

        It is 1/6 for a problem without rollouts, at most 1/4, and never 0.
        """
        right, wrong = self.progress.results.get(key_of(task.family, task.id), (0.0, 0.0))
        a, b = right + 1, wrong + 1
        return a * b / ((a + b) * (a + b + 1))

    def _task(self, place: int) -> Task:
        if place >= len(self._order) or self._order_of != self._wanted:
            self._extend(place + 1)
        return self._order[place]

    def pool(self) -> list[Task]:
        """Problems of the stage's pool, without repeats, at most as many as the run would draw."""
        if self.config.rollout.draw == "learnability":
            return [self._task(place) for place in self._first_places().values()]
        self._extend()
        most = _places(self._config, self.config)
        return list({key_of(task.family, task.id): task for task in self._order[:most]}.values())

    def take_in(
        self,
        groups: Mapping[str, list[bool]],
        correct: float,
        sound: Mapping[str, list[bool]] | None = None,
    ) -> None:
        """Record the results of a step.

        `groups`: correctness of the rollouts, by problem. `correct`: share of right rollouts.
        `sound`: `groups` without rollouts lost to a fault of a machine (None: there were none).
        """
        progress = self.progress
        if self.config.rollout.draw == "learnability":
            progress.drawn_places = []
            decay = self.config.rollout.draw_decay
            results = dict(progress.results)
            for problem, right in (groups if sound is None else sound).items():
                before = results.get(problem, (0.0, 0.0))
                wrong = len(right) - sum(right)
                results[problem] = (decay * before[0] + sum(right), decay * before[1] + wrong)
            progress.results = results
        after = self.config.select.mastered_after
        if after:
            counts = dict(progress.in_a_row)
            for problem, right in groups.items():
                counts[problem] = counts.get(problem, 0) + 1 if all(right) else 0
            left = [problem for problem, count in counts.items() if count >= after]
            progress.in_a_row = {problem: n for problem, n in counts.items() if 0 < n < after}
            self.leave_out(left)
        is_best = correct > progress.best_correct
        progress.best_correct = max(correct, progress.best_correct)
        progress.since_best = 0 if is_best else progress.since_best + 1

    def leave_out(self, problems: list[str]) -> None:
        """Remove problems from the pool."""
        progress = self.progress
        progress.mastered = [*dict.fromkeys([*progress.mastered, *problems])]

    def _stage_is_over(self, step: int) -> bool:
        progress = self.progress
        stages = self._config.stages
        if not stages or progress.begun:
            return False
        return step - progress.began_at >= stages[progress.stage].steps or self._is_on_plateau

    @property
    def _is_on_plateau(self) -> bool:
        stages = self._config.stages
        progress = self.progress
        return bool(stages) and 0 < stages[progress.stage].plateau <= progress.since_best

    def _next_stage(self, step: int) -> bool:
        progress = self.progress
        before = self._wanted
        if progress.stage + 1 >= len(self._config.stages):
            return False
        progress.stage = progress.stage + 1
        progress.began_at = step
        progress.best_correct = -1.0
        progress.since_best = 0
        if self._wanted != before:  # the stage has other tasks, whose order starts at its beginning
            progress.cursor = 0
            progress.in_a_row = {}
        return True

    @property
    def _wanted(self) -> tuple[Any, ...]:
        config = self.config
        return config.tasks, config.rollout.problems

    def _extend(self, least: int = 0) -> None:
        """Extend the order to `least` positions or more. The longer order begins with the shorter
        one.
        """
        of_run = _places(self._config, self.config)
        grown = self.progress.cursor + of_run if len(self._order) >= of_run else 0
        count = max(of_run, grown, least)
        self._order_of = self._wanted
        self._order = _tasks(self.config, self._folder, count)


def key_of(family: str, task_id: str) -> str:
    """Key that identifies a problem."""
    return f"{family}/{task_id}"


def at_stage(config: GrpoConfig, number: int) -> GrpoConfig:
    """Configuration with the settings of stage `number`."""
    if not config.stages:
        return config
    stage = config.stages[number]
    context = {"max_tokens": stage.rollout_tokens, "max_turns": stage.turns}
    own = {name: value for name, value in context.items() if value is not None}
    rollout = config.rollout.model_copy(
        update={"problems": stage.problems or config.rollout.problems}
    )
    optim = config.optim.model_copy(
        update={"learning_rate": stage.learning_rate or config.optim.learning_rate}
    )
    return config.model_copy(
        update={
            "tasks": stage.tasks or config.tasks,
            "context": {**config.context, **own, **stage.context},
            "rollout": rollout,
            "optim": optim,
        }
    )


def tasks_of_run(config: GrpoConfig, folder: Path) -> list[Task]:
    """Return all tasks that a run may draw, without repeats. Worker processes need them."""
    found: dict[tuple[str, str], Task] = {}
    leave = config.select.mastered_after > 0 or any(
        stage.leave_out_solved for stage in config.stages
    )
    for number in range(max(1, len(config.stages))):
        staged = at_stage(config, number)
        # a problem that has left the pool is skipped once
        most = _places(config, staged) * (2 if leave else 1)
        if staged.rollout.draw == "learnability":
            most = max(most, _pool_size(staged))
        tasks = _tasks(staged, folder, most)
        if config.evaluation.eval_every:
            tasks = [*tasks, *held_out(staged, folder)]
        found |= {(task.family, task.id): task for task in tasks}
    return list(found.values())


def refuse_unknown_families(config: GrpoConfig, folder: Path) -> None:
    """Raise `ConfigError` if `families` names one that no task is of: none that the run draws, and
    none of the first ones that a longer run would draw.
    """
    if not config.families:
        return
    found: set[str] = set()
    for number in range(max(1, len(config.stages))):
        staged = at_stage(config, number)
        count = max(_places(config, staged), staged.rollout.shuffle_block)
        found |= {task.family for task in _tasks(staged, folder, count)}
    refuse_other_families((each.name for each in config.families), found)


def held_out(config: GrpoConfig, folder: Path, count: int | None = None) -> list[Task]:
    """Held-out problems of an evaluation, which are the same each time. `count`: number of problems
    (None: the number in the configuration).
    """
    count = count or config.evaluation.eval_problems
    return load_tasks(
        config.tasks, split="eval", seed=config.seed, count=count, folder=tasks_folder(folder)
    )


def _pool_size(staged: GrpoConfig) -> int:
    """Number of positions of the order from which tasks are drawn by learnability."""
    return staged.rollout.problems or staged.rollout.shuffle_block


def _places(config: GrpoConfig, staged: GrpoConfig) -> int:
    """Maximum number of tasks that the run draws if no problem leaves the pool."""
    return config.steps * (staged.rollout.prompts_per_step + staged.rollout.refill)


def _tasks(config: GrpoConfig, folder: Path, count: int) -> list[Task]:
    tasks = training_tasks(
        config.tasks,
        seed=config.seed,
        count=count,
        block=config.rollout.shuffle_block,
        problems=config.rollout.problems,
        folder=tasks_folder(folder),
    )
    unscored = [task for task in tasks if config.of_family(task.family).rewards is None]
    refuse_unscored(unscored, config.tasks)
    return tasks
