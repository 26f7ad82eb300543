"""Rollouts sampled ahead for later steps: the age of their tokens, and what a killed run recovers
of them.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import TrainingStage
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import Row, read_metrics
from hrm_agent.training.rollout.ahead import with_bound
from hrm_agent.training.rollout.source import RunProgress, TaskSource
from hrm_agent.training.select.verdicts import judge_group
from hrm_agent.trajectory import DropReason, Trajectory, Verdict
from hrm_agent.trajectory.lint import lint
from tests.support.training.builders import call, trajectory
from tests.support.training.kill_moments import asked_for, moments
from tests.support.training.killed_training import assert_same_weights, killed_runs, sampled_tokens

CONFIG = GrpoConfig.of(
    steps=4,
    prompts_per_step=2,
    group_size=2,
    seed=5,
    cooldown=0.0,
    context={"max_turns": 4, "max_tokens": 96},
    versions_behind=1,
    correction="token",
    checkpoints=9,
)
ROLLOUTS = 2 * CONFIG.rollout.group_size * CONFIG.rollout.prompts_per_step
"""Number of rollouts of one step."""
STAGED = CONFIG.but(
    steps=4,
    stages=(
        TrainingStage(name="short", steps=2, rollout_tokens=48, turns=2),
        TrainingStage(
            name="long",
            steps=2,
            rollout_tokens=96,
            turns=3,
            leave_out_solved=2,
            reset_optimizer=True,
        ),
    ),
    refill=2,
    problems=8,
    mastered_after=1,
    eval_every=2,
    eval_problems=4,
)
KILLS = {
    "after step 1": ("step", 1),
    "inside the first two steps": ("rollout", ROLLOUTS // 2),
    "when rollouts of the last step have ended": ("rollout", 3 * ROLLOUTS + 1),
    "inside a checkpoint": ("sync", 12),
}


def on_record(folder: Path) -> dict[str, Trajectory]:
    with open_store(folder / "store.db") as store:
        return {each.thread_id: each for each in store.journal.trajectories()}


def step_of(thread: str) -> int | None:
    stage = thread.split("/")[1]
    return int(stage.removeprefix("step-")) if stage.startswith("step-") else None


def assert_within_bound(folder: Path, behind: int) -> None:
    """Check that a step's tokens are from weights at most `behind` versions old, and none from
    later ones.
    """
    for thread, each in on_record(folder).items():
        if (step := step_of(thread)) is not None:
            versions = {found.policy_version for found in each.own_calls}
            assert versions <= set(range(max(0, step - behind), step + 1)), thread


def taken_again(
    folder: Path, config: GrpoConfig, to: Path
) -> tuple[list[Row], dict[str, list[tuple[int, ...]]]]:
    """Repeat a run from its first checkpoint. Return its rows and its tokens."""
    copy = Path(shutil.copytree(folder, to))
    shutil.rmtree(copy / "model")
    for checkpoint in (copy / "checkpoints").iterdir():
        if checkpoint.name != "step-000001":
            shutil.rmtree(checkpoint)
    asyncio.run(train(config, copy))
    return read_metrics(copy / "metrics.jsonl"), sampled_tokens(copy)


def without_times(rows: list[Row]) -> list[Row]:
    return [
        {k: v for k, v in row.items() if not k.endswith("_seconds") and k != "update_overlap"}
        for row in rows
    ]


@pytest.mark.whole
def test_no_token_is_older_than_the_bound(tmp_path: Path) -> None:
    """The killed run below is held to a bound of one version."""
    behind = 2
    # rollouts wait for others, and span several versions
    config = CONFIG.but(versions_behind=behind, concurrency=4)
    asyncio.run(train(config, tmp_path / "run"))
    assert_within_bound(tmp_path / "run", behind)
    found, rows = on_record(tmp_path / "run"), read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (
        len(found) == CONFIG.steps * ROLLOUTS
        and [f for each in found.values() for f in lint(each)] == []
    )
    # None: all groups had equal rewards
    trained = [row for row in rows if row["staleness_mean"] is not None]
    assert trained and all(
        0 <= row["staleness_mean"] <= row["staleness_max"] <= behind for row in trained
    )
    assert {row["stale_tokens"] for row in rows} == {0.0}
    older = [
        t
        for thread, t in found.items()
        for c in t.own_calls
        if c.policy_version < (step_of(thread) or 0)
    ]
    assert older, "something was sampled ahead"


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that killed themselves at the moment when so many steps or rollouts had ended,
    by name.
    """
    return killed_runs(CONFIG, tmp_path_factory.mktemp("killed"), asked_for(KILLS, request))


@pytest.mark.whole
@pytest.mark.parametrize("name", moments(KILLS, "inside the first two steps"))
def test_a_killed_run_finds_what_was_under_way(name: str, killed: Path, tmp_path: Path) -> None:
    folder = killed / name / "run"
    ended = {
        thread: each for thread, each in on_record(folder).items() if each.ended_at is not None
    }
    assert ended
    asyncio.run(train(CONFIG, folder))
    found = on_record(folder)
    assert {thread: found[thread] for thread in ended} == ended, (
        "what had ended was not sampled again"
    )
    assert (
        len(found) == CONFIG.steps * ROLLOUTS
        and [f for each in found.values() for f in lint(each)] == []
    )
    assert_within_bound(folder, 1)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    again, tokens = taken_again(folder, CONFIG, tmp_path / "run")
    assert without_times(again) == without_times(rows) and tokens == sampled_tokens(folder)
    assert_same_weights(tmp_path / "run", folder, atol=0.0)


@pytest.mark.whole
def test_stages_refill_and_evaluations_come_to_the_same_from_the_record(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asyncio.run(train(STAGED, folder))
    rows, tokens = read_metrics(folder / "metrics.jsonl"), sampled_tokens(folder)
    assert [row["stage"] for row in rows] == [0, 0, 1, 1]
    assert [row["eval/correct"] is not None for row in rows] == [False, True, False, True]
    assert any(row["staleness_max"] for row in rows) and not rows[2]["staleness_max"], (
        "a stage begins on its own"
    )
    evaluated = {thread: each for thread, each in on_record(folder).items() if "/eval-" in thread}
    for thread, each in evaluated.items():
        version = int(thread.split("/")[1].removeprefix("eval-"))
        assert {found.policy_version for found in each.own_calls} == {version}
    again, sampled = taken_again(folder, STAGED, tmp_path / "again")
    assert without_times(again) == without_times(rows) and sampled == tokens
    assert_same_weights(tmp_path / "again", folder, atol=0.0)


@pytest.mark.whole
def test_replies_that_are_dropped_leave_nothing_on_record(tmp_path: Path) -> None:
    asyncio.run(train(CONFIG.but(on_publish="abort", concurrency=4), tmp_path / "run"))
    assert_within_bound(tmp_path / "run", 1)
    found = on_record(tmp_path / "run")
    assert (
        len(found) == CONFIG.steps * ROLLOUTS
        and [f for each in found.values() for f in lint(each)] == []
    )


@pytest.mark.whole
def test_an_adapter_goes_with_it(tmp_path: Path) -> None:
    """Worker processes do, too: `tests/training/select/test_carry_over.py`."""
    config = CONFIG.but(steps=2, group_size=4, lora_rank=2)
    asyncio.run(train(config, tmp_path / "run"))
    assert_within_bound(tmp_path / "run", 1)
    assert [row["stepped"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [
        1.0,
        1.0,
    ]


# what is begun when


def begun(source: TaskSource) -> list[int]:
    return [each.step for each in source.progress.begun]


def test_steps_that_were_begun_are_part_of_the_state(tmp_path: Path) -> None:
    config = CONFIG.but(steps=9, versions_behind=2, prompts_per_step=3, cooldown=0.0)
    source = TaskSource(config, tmp_path)
    first = source.plan(0)
    coming = source.ahead(0)
    assert first is not None and [plan.step for plan in coming] == begun(source) == [1, 2]
    refilled = source.next_task()
    kept = RunProgress.model_validate_json(source.progress.model_dump_json())
    resumed = TaskSource(config, tmp_path, kept)
    assert [source.plan(1), *source.ahead(1)] == [resumed.plan(1), *resumed.ahead(1)]
    assert begun(resumed) == [2, 3]
    drawn = [task.id for plan in (first, *coming) for task in plan.tasks]
    assert refilled is not None and len({*drawn, refilled.id}) == 10, "each task is drawn once"


def test_no_step_of_a_later_stage_or_beyond_the_end_is_begun(tmp_path: Path) -> None:
    stages = (TrainingStage(steps=2), TrainingStage(steps=3, rollout_tokens=32))
    source = TaskSource(CONFIG.but(steps=5, stages=stages, versions_behind=2), tmp_path)
    seen: list[tuple[int, list[int]]] = []
    for step in range(5):
        assert source.goes_on(step) and source.plan(step) is not None
        seen.append((source.progress.stage, [plan.step for plan in source.ahead(step)]))
        source.take_in({}, 0.5)
    assert seen == [(0, [1]), (0, []), (1, [3, 4]), (1, [4]), (1, [])]
    assert not source.goes_on(5)


def test_on_a_plateau_what_was_begun_is_taken_and_no_more(tmp_path: Path) -> None:
    stages = (TrainingStage(steps=9, plateau=1), TrainingStage(steps=1))
    source = TaskSource(CONFIG.but(steps=10, stages=stages), tmp_path)
    taken: list[int] = []
    for step, correct in enumerate((0.5, 0.5, 0.4, 0.4)):
        assert source.goes_on(step)
        plan = source.plan(step)
        assert plan is not None
        taken.append(plan.stage)
        source.ahead(step)
        source.take_in({}, correct)
        if step == 2:
            break
    assert taken == [0, 0, 0], "step 2 was under way when step 1 was no better"
    assert source.goes_on(3) and source.progress.stage == 1


def test_what_is_on_record_and_too_old_is_not_trained_on() -> None:
    def sampled_by(index: int, version: int) -> Trajectory:
        return trajectory(
            index, float(index % 2), calls=(call(f"call-{index}", policy_version=version),)
        )

    group = [sampled_by(index, version) for index, version in enumerate((4, 4, 2, 3, 3, 4))]
    config = CONFIG.but(algorithm="grpo", group_size=6, oversampling=2.0)
    judged = {
        o.trajectory_id: o for o in judge_group([(each,) for each in group], 4, "run", config)
    }
    assert len(judged) == len(group)
    old = judged[group[2].id]
    assert (old.verdict, old.drop_reason) == (Verdict.DROPPED, DropReason.TOO_OLD)
    assert old.reason == "sampled by weights 2 versions back, more than versions_behind = 1"
    assert {o.verdict for o in judged.values() if o is not old} == {Verdict.KEPT}
    alone = [sampled_by(index, 0) for index in range(2)]
    assert {o.drop_reason for o in judge_group([(each,) for each in alone], 4, "run", config)} == {
        DropReason.TOO_OLD
    }


# what is refused


def test_the_bound_of_tokens_is_that_of_steps() -> None:
    assert with_bound(CONFIG).loss.max_staleness == 1
    assert with_bound(CONFIG.but(max_staleness=0)).loss.max_staleness == 0
    assert with_bound(GrpoConfig()) == GrpoConfig()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"versions_behind": 1}, "nothing corrects for that"),
        ({"on_publish": "abort"}, "without versions_behind no reply is in progress"),
        ({"group_deadline": 5.0}, "without group_quorum a step waits for all rollouts"),
        ({"group_quorum": 0.05}, "one alone teaches nothing"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GrpoConfig.of(**keys)


def test_recorded_log_probs_in_the_ratio_are_a_correction_too() -> None:
    assert GrpoConfig.of(versions_behind=2, old_logprobs="engine").rollout.versions_behind == 2
