"""Rollouts that were cut off go on in the next step, once, and are trained on there as members of
their own group.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import Row, read_metrics
from hrm_agent.training.rollout.ahead import with_bound
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.trajectory import DropReason, Overlay, RunStatus, Trajectory, Verdict
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.carried_rollout import GROUPS, HANGING, HANGS_ON, SAMPLES, is_right
from tests.support.training.kill_moments import asked_for, moments
from tests.support.training.killed_training import assert_same_weights, killed_runs, sampled_tokens

CONFIG = GrpoConfig.of(
    steps=2,
    prompts_per_step=GROUPS,
    group_size=SAMPLES,
    algorithm="grpo",
    tasks="tests.support.graphs.carried_rollout:tasks",
    graph="tests.support.graphs.carried_rollout:graph",
    context={},
    seed=5,
    cooldown=0.0,
    max_tokens=12,
    group_quorum=0.75,
    group_deadline=0.0,
    carry_over=True,
    correction="token",
    checkpoints=9,
)
ENDED = GROUPS * (SAMPLES - 1)
"""Number of rollouts of a step that end in it."""
CARRIED = [f"run/step-0/{place}/{HANGING}" for place in range(GROUPS)]


def threads(folder: Path) -> dict[str, Trajectory]:
    with open_store(folder / "store.db") as store:
        return {each.thread_id: each for each in store.journal.trajectories()}


def verdicts(folder: Path) -> dict[str, Overlay]:
    """Overlays by thread."""
    names = {each.id: thread for thread, each in threads(folder).items()}
    with open_store(folder / "store.db") as store:
        return {names[each.trajectory_id]: each for each in store.journal.overlays("run")}


def rows_of(folder: Path) -> list[Row]:
    return [
        {name: value for name, value in row.items() if not name.endswith("_seconds")}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def taken_again(folder: Path, to: Path, config: GrpoConfig = CONFIG) -> Path:
    """Repeat all steps from the record alone."""
    copy = Path(shutil.copytree(folder, to / "again" / "run"))
    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "checkpoints")
    asyncio.run(train(config, copy))
    return copy


def assert_taken_again_alike(folder: Path, to: Path, config: GrpoConfig = CONFIG) -> None:
    again = taken_again(folder, to, config)
    assert verdicts(again) == verdicts(folder) and rows_of(again) == rows_of(folder)
    assert_same_weights(again, folder, atol=0.0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    asyncio.run(train(CONFIG, folder))
    return folder


def hand_computed(place: int, sample: int) -> float:
    """Advantage in the whole group, as GRPO defines it."""
    rewards = [float(is_right(place, each)) for each in range(SAMPLES)]
    return (rewards[sample] - statistics.fmean(rewards)) / (
        statistics.stdev(rewards) + CONFIG.loss.advantage_eps
    )


@pytest.mark.whole
def test_a_rollout_that_was_cut_off_is_trained_on_in_the_next_step(undisturbed: Path) -> None:
    found, said, (first, second) = threads(undisturbed), verdicts(undisturbed), rows_of(undisturbed)
    for place, thread in enumerate(CARRIED):
        rollout, verdict = found[thread], said[thread]
        assert rollout.status is RunStatus.COMPLETED and lint(rollout) == []
        assert [call.policy_version for call in rollout.own_calls] == [
            0,
            1,
        ], "it went on with the next weights"
        assert (verdict.step, verdict.carried_from, verdict.verdict) == (1, 0, Verdict.KEPT)
        assert verdict.reason == "one of all 4 rollouts; carried over from step 0"
        assert verdict.advantage == pytest.approx(hand_computed(place, HANGING), abs=1e-12)
    others = [
        said[f"run/step-0/{place}/{sample}"] for place in range(GROUPS) for sample in (0, 2, 3)
    ]
    assert [each.verdict for each in others] == [Verdict.KEPT] * 3 + [Verdict.GROUP_REJECTED] * 3, (
        "as it was"
    )
    assert {(each.step, each.carried_from) for each in others} == {(0, None)}

    counted = (
        "rollout/count",
        "rollout/cut_off",
        "rollout/carried_over",
        "rollout/carried_ended",
        "select/carried",
    )
    assert [[row[name] for name in counted] for row in (first, second)] == [
        [ENDED, 2, 0, 0, 0],
        [ENDED, 2, 2, 2, 2],
    ]
    trained = {
        step: sum(
            call.sampled_tokens
            for thread, verdict in said.items()
            if verdict.step == step and verdict.verdict is Verdict.KEPT
            for call in found[thread].own_calls
        )
        for step in (0, 1)
    }
    assert [row["trained_tokens"] for row in (first, second)] == [
        trained[0],
        trained[1],
    ], "its tokens are in the loss"
    old = sum(found[thread].own_calls[0].sampled_tokens for thread in CARRIED)
    assert second["staleness_max"] == 1 and second["staleness_mean"] == pytest.approx(
        old / trained[1]
    )


@pytest.mark.whole
def test_steps_that_are_taken_again_come_to_the_same(undisturbed: Path, tmp_path: Path) -> None:
    assert_taken_again_alike(undisturbed, tmp_path)


KILLS = {
    "a carried rollout has ended": ("rollout", ENDED + 1),
    "both have": ("rollout", ENDED + 3),
    "step 1": ("step", 1),
}


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_runs(CONFIG, tmp_path_factory.mktemp("killed"), asked_for(KILLS, request))


@pytest.mark.whole
@pytest.mark.parametrize("name", moments(KILLS, "a carried rollout has ended"))
def test_a_killed_run_goes_on_with_what_was_carried(
    name: str, killed: Path, undisturbed: Path, tmp_path: Path
) -> None:
    folder = killed / name / "run"
    before = threads(folder)
    calls = {thread: each.calls for thread, each in before.items()}
    assert all(calls[thread] for thread in CARRIED)
    asyncio.run(train(CONFIG, folder))
    after = threads(folder)
    assert {thread: after[thread].calls[: len(made)] for thread, made in calls.items()} == calls, (
        "no call again"
    )
    assert sampled_tokens(folder) == sampled_tokens(undisturbed)
    # What runs in one batch is not the same again, nor are the last bits of its log-probs: a few
    # weights move by 4e-5.
    assert_same_weights(folder, undisturbed, atol=1e-4)
    assert_taken_again_alike(folder, tmp_path)


@pytest.mark.whole
def test_it_is_carried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HANGS_ON, "1")
    folder, config = tmp_path / "run", CONFIG.but(steps=3)
    asyncio.run(train(config, folder))
    said, found = verdicts(folder), threads(folder)
    for thread in CARRIED:
        assert found[thread].status is RunStatus.RUNNING
        assert (said[thread].step, said[thread].carried_from) == (1, 0)
        assert said[thread].drop_reason is DropReason.CUT_OFF
        assert (
            said[thread].reason
            == "cut off again: group_deadline = 0 s after the groups of step 1 was over"
        )
    counts = [
        (row["rollout/carried_over"], row["rollout/carried_ended"]) for row in rows_of(folder)
    ]
    assert counts == [(0, 0), (2, 0), (2, 0)], "those of step 0 are not carried into step 2"
    monkeypatch.delenv(HANGS_ON)
    assert_taken_again_alike(folder, tmp_path, config)


@pytest.mark.whole
@pytest.mark.parametrize(
    "changes",
    [
        {"processes": 2, "versions_behind": 1},
        {
            "algorithm": "grpo-roc",
            "group_size": 2,
            "advantages": "reinforce_plus_plus",
            "credit": "even",
            "refill": 1,
        },
    ],
    ids=["workers ahead", "roc"],
)
def test_it_goes_with(changes: dict[str, Any], tmp_path: Path) -> None:
    folder, config = tmp_path / "run", CONFIG.but(**changes)
    asyncio.run(train(config, folder))
    found, said, rows = threads(folder), verdicts(folder), rows_of(folder)
    carried = [thread for thread, each in said.items() if each.carried_from is not None]
    assert carried and rows[1]["rollout/carried_ended"] == len(carried)
    assert all(found[thread].status is RunStatus.COMPLETED for thread in carried)
    assert rows[1]["stale_tokens"] == 0 and [f for each in found.values() for f in lint(each)] == []
    if not config.rollout.versions_behind:  # whose time under way is measured
        assert_taken_again_alike(folder, tmp_path, config)


def test_what_it_does_not_go_with_is_refused() -> None:
    for changes, said in (
        (
            {"group_quorum": 1.0, "group_deadline": 60.0},
            "carry_over has no effect here: without group_quorum",
        ),
        (
            {"correction": "none"},
            "carry_over trains on tokens of older weights, but nothing corrects",
        ),
        ({"sharding": "ddp"}, "sharding = ddp does not go with carry_over"),
    ):
        with pytest.raises(ConfigError, match=said):
            CONFIG.but(**changes)
    assert CONFIG.but(correction="none", old_logprobs="engine").rollout.carry_over
    assert with_bound(CONFIG.but(versions_behind=2)).loss.max_staleness == 3


def length_rank(group: list[Trajectory]) -> dict[str, float]:
    return {each.id: 0.0 for each in group}


def test_rewards_that_compare_a_group_are_refused(store: RunStore) -> None:
    async def scene() -> None:
        async with scoring_by(
            CONFIG.but(rewards=f"{__name__}:length_rank"), store, carry_over=True
        ):
            raise AssertionError

    with pytest.raises(ConfigError, match="compares the rollouts of a group"):
        asyncio.run(scene())
