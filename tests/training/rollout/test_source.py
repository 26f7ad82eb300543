"""Choice of tasks, end of stages and removal of problems in a training, as a function of saved
state.
"""

from __future__ import annotations

import asyncio
import random
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.config import build_config
from hrm_agent.errors import ConfigError, TaskError
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.config.parts import TrainingStage
from hrm_agent.training.rollout.groups import Group, Groups
from hrm_agent.training.rollout.source import (
    RunProgress,
    StepPlan,
    TaskSource,
    held_out,
    key_of,
    tasks_of_run,
)
from hrm_agent.training.tasks import Task
from hrm_agent.training.tasks.training_order import training_tasks
from hrm_agent.training.update.schedule import Schedule

CONFIGS = Path(__file__).parents[3] / "configs"
STAGES = (
    TrainingStage(name="short", steps=3, rollout_tokens=32, turns=2, problems=8),
    TrainingStage(
        name="long",
        steps=4,
        rollout_tokens=64,
        learning_rate=1e-5,
        reset_optimizer=True,
        problems=8,
    ),
)
STAGED = GrpoConfig.of(
    stages=STAGES, prompts_per_step=4, warmup_steps=2, cooldown=0.0, learning_rate=1e-3
)


def plans(source: TaskSource, first: int = 0, correct: float = 0.5) -> list[StepPlan]:
    found: list[StepPlan] = []
    step = first
    while source.goes_on(step) and (plan := source.plan(step)) is not None:
        found.append(plan)
        source.take_in({}, correct)
        step += 1
    return found


def ids(plan: StepPlan) -> list[str]:
    return [task.id for task in plan.tasks]


def test_without_stages_the_tasks_are_those_of_the_training_order(tmp_path: Path) -> None:
    config = GrpoConfig.of(steps=3, prompts_per_step=4)
    drawn = [name for plan in plans(TaskSource(config, tmp_path)) for name in ids(plan)]
    order = training_tasks(config.tasks, seed=0, count=12, block=config.rollout.shuffle_block)
    assert drawn == [task.id for task in order]


def test_each_stage_has_its_lengths_and_its_rates(tmp_path: Path) -> None:
    found = plans(TaskSource(STAGED, tmp_path))
    assert [plan.stage for plan in found] == [0, 0, 0, 1, 1, 1, 1]
    assert [plan.rate for plan in found] == pytest.approx(
        [5e-4, 1e-3, 1e-3, 5e-6, 1e-5, 1e-5, 1e-5]
    )
    assert found[0].config.context == {"max_tokens": 32, "max_turns": 2}
    assert found[-1].config.context == {"max_tokens": 64} and STAGED.steps == 7
    assert {task for plan in found for task in ids(plan)} == {
        task.id for task in training_tasks(STAGED.tasks, seed=0, count=8, block=480, problems=8)
    }


def test_a_plateau_ends_a_stage_and_the_state_is_all_that_is_needed(tmp_path: Path) -> None:
    stages = (STAGES[0].model_copy(update={"plateau": 1}), STAGES[1])
    config = GrpoConfig.of(stages=stages, prompts_per_step=2)
    whole = plans(TaskSource(config, tmp_path))
    assert [plan.stage for plan in whole] == [
        0,
        0,
        1,
        1,
        1,
        1,
    ], "the second step reached no new best"
    source = TaskSource(config, tmp_path)
    before: list[StepPlan] = []
    for step in range(len(whole)):
        assert source.goes_on(step)
        plan = source.plan(step)
        assert plan is not None
        before.append(plan)
        source.take_in({}, 0.5)
        kept = RunProgress.model_validate_json(source.progress.model_dump_json())
        source = TaskSource(config, tmp_path, kept)
    assert [(ids(plan), plan.stage, plan.rate) for plan in before] == [
        (ids(plan), plan.stage, plan.rate) for plan in whole
    ]


def test_problems_that_are_mastered_leave_and_an_empty_pool_ends_the_run(tmp_path: Path) -> None:
    config = GrpoConfig.of(steps=20, prompts_per_step=2, problems=5, mastered_after=2)
    source = TaskSource(config, tmp_path)
    pool = [key_of(task.family, task.id) for task in source.pool()]
    assert len(pool) == len(tasks_of_run(config, tmp_path)) == 5
    first, second = pool[:2]
    source.take_in({first: [True, True], second: [True, True]}, 0.5)
    source.take_in({first: [True, True], second: [True, False]}, 0.5)
    source.take_in({second: [True, True]}, 0.5)
    assert source.progress.mastered == [first] and source.progress.in_a_row == {second: 1}
    found = [plan for step in range(6) if (plan := source.plan(step)) is not None]
    assert {key_of(task.family, task.id) for plan in found for task in plan.tasks} == set(pool[1:])
    source.leave_out(pool[1:-1])
    plan = source.plan(6)
    assert plan is not None and {key_of(task.family, task.id) for task in plan.tasks} == {pool[-1]}
    source.leave_out(pool)
    assert source.plan(7) is None


LEARNABLE = GrpoConfig.of(
    steps=60, prompts_per_step=4, group_size=8, problems=30, draw="learnability"
)


def learnable(tmp_path: Path, *, resumed: bool = False) -> tuple[list[list[str]], TaskSource]:
    """Steps on a pool of which a third is always right, a third never, and a third half the time."""
    source = TaskSource(LEARNABLE, tmp_path)
    pool = [key_of(task.family, task.id) for task in source.pool()]
    steps: list[list[str]] = []
    for step in range(60):
        plan = source.plan(step)
        assert plan is not None
        keys = [key_of(task.family, task.id) for task in plan.tasks]
        steps.append(keys)
        right = [[True] * 8, [False] * 8, [True, False] * 4]
        source.take_in({key: right[pool.index(key) % 3] for key in keys}, 0.5)
        if resumed:
            kept = RunProgress.model_validate_json(source.progress.model_dump_json())
            source = TaskSource(LEARNABLE, tmp_path, kept)
    return steps, source


def test_what_can_be_learnt_is_drawn_most_and_the_rest_still_now_and_then(tmp_path: Path) -> None:
    steps, source = learnable(tmp_path)
    assert all(len(set(keys)) == 4 for keys in steps), "a step draws a problem once"
    pool = [key_of(task.family, task.id) for task in source.pool()]
    drawn = Counter(pool.index(key) % 3 for keys in steps[20:] for key in keys)
    assert drawn[2] > 0.55 * drawn.total() and min(drawn[0], drawn[1]) > 0
    assert learnable(tmp_path, resumed=True)[0] == steps, "the state is all that is needed"
    family, name = steps[0][0].rsplit("/", 1)
    assert (task := source.drawn(family, name)) is not None and task.id == name


def test_shares_of_a_mixture_hold_and_a_mastered_problem_is_not_drawn(tmp_path: Path) -> None:
    mixture = "mix:3*word_problems,1*reasoning_gym:chain_sum"
    config = GrpoConfig.of(
        steps=10, prompts_per_step=4, tasks=mixture, draw="learnability", shuffle_block=40
    )
    source = TaskSource(config, tmp_path)
    found = [plan for step in range(10) if (plan := source.plan(step)) is not None]
    assert [sum("chain_sum" in task.family for task in plan.tasks) for plan in found] == [1] * 10
    pool = [key_of(task.family, task.id) for task in source.pool()]
    source.leave_out(pool[1:])
    assert source.next_task() == source.pool()[0]
    source.leave_out(pool)
    assert source.next_task() is None
    longer = TaskSource(config.but(steps=90), tmp_path)
    again = [plan for step in range(3) if (plan := longer.plan(step)) is not None]
    assert [*map(ids, again)] == [*map(ids, found[:3])], "a run can be prolonged"
    lost = {key_of(found[0].tasks[0].family, found[0].tasks[0].id): [False] * 8}
    longer.take_in(lost, 0.0, {})
    assert longer.progress.results == {}, "a fault of a machine says nothing on a problem"
    with pytest.raises(ConfigError, match="draw_decay has no effect"):
        GrpoConfig.of(draw_decay=0.9)


def test_a_stage_without_problems_gives_way_to_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = GrpoConfig.of(
        stages=(
            TrainingStage(name="few", steps=5, problems=4),
            TrainingStage(steps=2, tasks="reasoning_gym:basic_arithmetic", problems=6),
        ),
        prompts_per_step=4,
        mastered_after=1,
    )
    source = TaskSource(config, tmp_path)
    plan = source.plan(0)
    assert plan is not None
    source.take_in({key_of(task.family, task.id): [True] for task in plan.tasks}, 1.0)
    assert source.goes_on(1) and source.plan(1) is None and source.ran_out(1)
    assert (
        "No problem of stage few is left after 1 steps; the next stage begins"
        in capsys.readouterr().err
    )
    assert source.goes_on(1) and source.entered(1) is not None
    plan = source.plan(1)
    assert plan is not None and plan.stage == 1
    source.leave_out([key_of(task.family, task.id) for task in source.pool()])
    assert source.plan(2) is None and not source.ran_out(2)
    assert (
        "No problem of stage 2 is left after 2 steps; the training ends here"
        in capsys.readouterr().err
    )


def test_tasks_of_every_stage_are_looked_at_before_the_first(tmp_path: Path) -> None:
    stages = (STAGES[0], TrainingStage(steps=1, tasks="no_such_family"))
    with pytest.raises(TaskError, match="no_such_family"):
        TaskSource(GrpoConfig.of(stages=stages), tmp_path).prepare()


@pytest.mark.parametrize("problems", [None, 5])
def test_workers_know_every_task_that_is_drawn_tried_out_or_held_out(
    problems: int | None, tmp_path: Path
) -> None:
    stages = (
        TrainingStage(steps=2, problems=problems, leave_out_solved=2),
        TrainingStage(steps=3, problems=problems, leave_out_solved=2),
    )
    config = GrpoConfig.of(
        stages=stages, prompts_per_step=3, refill=1, mastered_after=1, eval_every=2, eval_problems=4
    )
    known = {key_of(task.family, task.id) for task in tasks_of_run(config, tmp_path)}
    assert {key_of(task.family, task.id) for task in held_out(config, tmp_path)} < known
    source, step, used = TaskSource(config, tmp_path), 0, set[str]()
    while source.goes_on(step):
        if source.entered(step) is not None:
            pool = [key_of(task.family, task.id) for task in source.pool()]
            used |= {*pool}
            source.leave_out(pool[::2])
        if (plan := source.plan(step)) is None:
            assert source.ran_out(step) or step
            break
        drawn = [*plan.tasks, source.next_task()]
        names = [key_of(task.family, task.id) for task in drawn if task is not None]
        used |= {*names}
        source.take_in({name: [True] for name in names[:1]}, 0.5)
        step += 1
    assert used <= known and (problems or step == 5)


def test_a_run_ends_when_its_patience_is_spent(tmp_path: Path) -> None:
    source = TaskSource(GrpoConfig.of(eval_every=1, patience=2), tmp_path)
    for step, (accuracy, is_best) in enumerate([(0.5, True), (0.7, True), (0.7, False)]):
        assert source.progress.evaluated(step, accuracy) is is_best
        assert source.goes_on(step)
    assert not source.progress.evaluated(3, 0.6) and not source.goes_on(4)
    other = TaskSource(GrpoConfig.of(eval_every=2, patience=2), tmp_path, source.progress)
    assert other.goes_on(4), "the evaluations at 1 and 3 are not of its steps"


@pytest.mark.parametrize("rejected", [set[int](), {0}, {1, 4, 5}, {0, 1, 2, 3, 4}, set(range(20))])
def test_the_groups_of_a_step_do_not_depend_on_which_of_them_ends_first(rejected: set[int]) -> None:
    wanted, refill = 4, 6

    async def places(seed: int) -> list[int]:
        rng = random.Random(seed)

        async def run(place: int, task: Task) -> Group:
            assert task.id == str(place), "the order of the tasks is that of the places"
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            return Group(place, ())

        groups, found = Groups(run), list[int]()
        tasks = iter(Task(prompt="", id=str(n)) for n in range(100))
        for _ in range(wanted):
            groups.begin(next(tasks))
        async for group in groups:
            found.append(group.place)
            if group.place in rejected and groups.begun < wanted + refill:
                groups.begin(next(tasks))
        return sorted(found)

    found = [asyncio.run(places(seed)) for seed in range(20)]
    assert all(each == found[0] for each in found)
    assert (
        len(found[0]) - len(rejected & set(found[0])) == wanted or len(found[0]) == wanted + refill
    )


def test_an_error_in_one_group_ends_the_others() -> None:
    ended: list[str] = []

    async def run(place: int, task: Task) -> Group:
        if place == 1:
            raise OSError("the disk is full")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append(task.id)
            raise
        return Group(place, ())

    async def go() -> None:
        groups = Groups(run)
        for name in "ab":
            groups.begin(Task(prompt="", id=name))
        await asyncio.sleep(0)
        try:
            async for _ in groups:
                pass
        finally:
            await groups.cancel()

    with pytest.raises(OSError, match="disk is full"):
        asyncio.run(go())
    assert ended == ["a"]


def test_the_cool_down_falls_along_either_line_and_not_below_its_floor() -> None:
    steps = range(10)
    linear = [Schedule(10, 0, 1.0).share(step) for step in steps]
    cosine = [Schedule(10, 0, 1.0, "cosine").share(step) for step in steps]
    floored = [Schedule(10, 0, 1.0, "linear", 0.25).share(step) for step in steps]
    for line in (linear, cosine, floored):
        assert line == sorted(line, reverse=True)
    assert cosine[2] > linear[2] and cosine[-2] < linear[-2]
    assert min(linear) > 0 and min(floored) > 0.25


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stages": STAGES, "steps": 9}, "steps = 9, but the stages have 7 together"),
        ({"dual_clip": 3.0, "objective": "gspo"}, "dual_clip has no effect here"),
        ({"correction": "token", "old_logprobs": "engine"}, "correction has no effect here"),
        (
            {"gradient_checkpointing": True, "forward": "tree"},
            "gradient_checkpointing does not go with forward = tree",
        ),
        (
            {"gradient_checkpointing": True, "forward": "packed"},
            "does not go with forward = packed",
        ),
        (
            {"lora_rank": 4, "lora_dropout": 0.1, "mini_batches": 2},
            "lora_dropout does not go with several",
        ),
        (
            {"lora_rank": 4, "lora_dropout": 0.1, "objective": "gspo"},
            "with ratios of whole rollouts",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GrpoConfig.of(**given)


# --- recipes
# ----------------------------------------------------------------------------------------------------------

PAPER = {
    "rollout": {"prompts_per_step": 512, "group_size": 16, "oversampling": 2, "problems": 42_000},
    "select": {"algorithm": "grpo-roc", "selection": "inverse"},
    "loss": {
        "advantages": "grpo", "objective": "clipped", "aggregation": "token", "clip_low": 0.2, "clip_high": 0.28,
        "kl_coef": 0.0,
    },
    "optim": {
        "learning_rate": 1e-6, "warmup_steps": 20, "cooldown": 0.0, "weight_decay": 0.01, "max_grad_norm": 1.0,
        "mini_batches": 1, "epochs": 1,
    },
    "temperature": 1.0,
    "max_tokens": 12_288,
    "graph": "tool_loop",
    "command": "train rl",
}  # fmt: skip
"""rStar2-Agent (arXiv 2508.20722), sections 2 to 5: what is the same in all stages."""
PAPER_STAGES = [
    {"name": "RL 1", "steps": 300, "rollout_tokens": 8 * 1024, "turns": 10},
    {"name": "RL 2", "steps": 85, "rollout_tokens": 12 * 1024, "turns": 10},
    {
        "name": "RL 3", "steps": 125, "rollout_tokens": 12 * 1024, "turns": 15, "leave_out_solved": 8,
        "reset_optimizer": True,
    },
]  # fmt: skip
"""The table of its recipe. Stage 3 leaves out the problems that eight rollouts of stage 2's policy
all solve.
"""


def test_the_recipe_of_the_paper_is_the_papers_line_by_line() -> None:
    values = tomllib.loads((CONFIGS / "rstar2-agent-14b.toml").read_text(encoding="utf-8"))
    assert values.pop("stages") == PAPER_STAGES
    assert values == PAPER
    values.pop("command")
    config = build_config(GrpoConfig, {**values, "stages": PAPER_STAGES}, "the recipe")
    assert (config.steps, config.samples) == (510, 32)
    cold = tomllib.loads((CONFIGS / "rstar2-agent-14b-cold-start.toml").read_text(encoding="utf-8"))
    assert cold.pop("command") == "train sft"
    start = build_config(SftConfig, cold, "the cold start")
    assert (start.batch_size, start.learning_rate, start.fall) == (128, 5e-6, "cosine")
    assert start.steps == 3 * (165_000 + 30_000 + 27_000) // 128
    assert start.warmup_steps == round(0.04 * start.steps) and start.cooldown == 0.96


def test_the_recipe_for_a_laptop_grows_and_leaves_out_what_is_solved() -> None:
    values = tomllib.loads((CONFIGS / "laptop.toml").read_text(encoding="utf-8"))
    values.pop("command")
    config = build_config(GrpoConfig, values, "the recipe")
    lengths = [stage.rollout_tokens or 0 for stage in config.stages]
    assert len(lengths) == 3 and lengths == sorted(set(lengths))
    assert config.select.mastered_after and config.stages[-1].leave_out_solved == 8
