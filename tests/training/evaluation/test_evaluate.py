from __future__ import annotations

import math
import random

import pytest

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.training.evaluation.compare import compare
from hrm_agent.training.evaluation.evaluate import evaluate, group_metrics
from hrm_agent.training.evaluation.reports import comparison_rows, summary
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.select.roc import select
from hrm_agent.training.update.advantages import group_advantages
from hrm_agent.trajectory import RunStatus, TaskRef, Trajectory
from tests.support.training.builders import call, group, rollout, trajectory


def sample(problem: int, index: int, reward: float, **changes: object) -> Trajectory:
    task = TaskRef(id=str(problem), family="f", prompt="p")
    return trajectory(100 * problem + index, reward, task=task, **changes)


def test_pass_at_1_is_a_mean_over_problems():
    runs = [sample(0, i, 1.0) for i in range(4)] + [sample(1, 0, 0.0)]
    assert evaluate(runs).pass_at_1 == 0.5
    assert (evaluate(runs).problems, evaluate(runs).trajectories) == (2, 5)


def test_one_sample_a_problem_takes_wilsons_interval():
    result = evaluate([sample(i, 0, 1.0) for i in range(10)])
    assert result.interval == pytest.approx((0.7224672001371107, 1.0))
    assert wilson_interval(5, 10) == pytest.approx((0.236593090512564, 0.763406909487436))
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_several_samples_resample_problems_not_samples():
    # Eight samples of each problem agree: only 20 independent facts, whatever the number of
    # samples.
    runs = [sample(p, i, float(p % 2)) for p in range(20) for i in range(8)]
    assert evaluate(runs).interval == pytest.approx((0.3, 0.7), abs=0.051)


def test_the_interval_depends_on_the_seed_and_not_on_the_order():
    runs = [sample(p, i, float(i < p % 9)) for p in range(20) for i in range(8)]
    shuffled = random.Random(0).sample(runs, len(runs))
    # as text, since NaN equals no NaN
    assert repr(evaluate(runs, seed=1)) == repr(evaluate(shuffled, seed=1))
    assert len({evaluate(runs, seed=seed).interval for seed in range(4)}) > 1


def test_every_ended_run_counts_and_truncation_is_wrong():
    runs = [
        sample(0, 0, 1.0),
        sample(1, 0, 1.0, status=RunStatus.TRUNCATED),
        sample(2, 0, 0.0, status=RunStatus.FAILED),
        sample(3, 0, 0.0, status=RunStatus.RUNNING),
    ]
    result = evaluate(runs)
    assert result.pass_at_1 == pytest.approx(1 / 3)
    assert result.statuses == {"completed": 1, "failed": 1, "running": 1, "truncated": 1}


def test_what_nothing_has_scored_is_neither_right_nor_wrong():
    unscored = sample(0, 1, 0.0).model_copy(update={"rewards": {}})
    failed = sample(1, 0, 0.0).model_copy(update={"rewards": {}, "status": RunStatus.FAILED})
    found = evaluate([sample(0, 0, 1.0), unscored, failed])
    assert (found.pass_at_1, found.trajectories, found.without_score) == (
        0.5,
        2,
        1,
    ), "who failed has no answer"
    assert ("left out: completed, without a score", 1) in summary(found)
    assert math.isnan(evaluate([unscored]).pass_at_1)


def test_tool_errors_are_counted_among_the_correct_ones():
    runs = [
        rollout(0, 1.0, 1, 2),
        rollout(1, 1.0, 0, 2),
        rollout(2, 0.0, 2, 2),
        rollout(3, 1.0, 0, 0),
    ]
    result = evaluate(runs)
    assert result.correct_with_tool_error == pytest.approx(1 / 3)
    assert result.mean_tool_calls == 1.5
    assert result.mean_sampled_tokens == 2


def test_token_counts_that_no_provider_gave_are_not_told_as_zero():
    silent = call("c", token_ids=(), mask=(), logprobs=(), branch_reason=None)
    found = evaluate([sample(0, 0, 1.0, calls=(silent,))])
    shown = dict(summary(found))
    assert found.without_call == 0 and found.read_tokens == found.sampled_tokens == 0
    assert (
        shown["completion tokens, mean"]
        == shown["prompt tokens, completion tokens"]
        == "not reported"
    )
    known = dict(summary(evaluate([rollout(0, 1.0, 0, 1)])))
    assert known["completion tokens, mean"] == 2 and "not reported" not in known.values()
    compared = compare(
        samples_of([sample(0, 0, 1.0, calls=(silent,))]),
        samples_of([sample(0, 1, 1.0)]),
        ("a", "b"),
    )
    assert ("completion tokens", "not reported", "2.000", "") in comparison_rows(compared)


def test_of_a_rollout_that_was_run_once_more_the_second_attempt_counts():
    first = sample(0, 0, 0.0, status=RunStatus.FAILED, thread_id="r/step-0/0/0")
    second = sample(0, 0, 1.0, id="second", thread_id="r/step-0/0/0/attempt-2")
    found = evaluate([first, second, sample(1, 0, 1.0)])
    assert (found.trajectories, found.pass_at_1, found.run_again, found.statuses) == (
        2,
        1.0,
        1,
        {"completed": 2},
    )
    assert dict(summary(found))["run once more, failed by a machine"] == 1
    assert evaluate([first]).statuses == {"failed": 1}


def test_nothing_is_nan_and_not_an_error():
    result = evaluate([])
    assert math.isnan(result.pass_at_1)
    assert math.isnan(result.correct_with_tool_error)
    assert result.interval == (0.0, 1.0)


def test_a_steps_metrics_tell_sampled_from_kept():
    whole = [rollout(i, float(i < 6), int(i < 3), 1) for i in range(12)]
    whole += [t.model_copy(update={"id": f"g2-{t.id}", "group_id": "g2"}) for t in group(4, 0)]
    overlays = [
        *select(whole[:12], 6, "grpo-roc", seed=0),
        *select(whole[12:], 6, "grpo-roc", seed=0),
    ]
    metrics = group_metrics(whole, group_advantages(overlays))
    assert metrics["rollout/count"] == 16
    assert metrics["rollout/correct"] == 10 / 16
    assert metrics["rollout/correct_with_tool_error"] == 3 / 10
    assert metrics["select/kept"] == 6
    assert metrics["select/correct"] == 0.5
    assert metrics["select/correct_with_tool_error"] == 0
    assert metrics["select/groups_rejected"] == 0.5


def test_a_part_per_whole_is_pooled_over_problems() -> None:
    """A problem with three instructions counts three times as much as one with a single one."""
    followed = "followed per instruction"
    runs = [
        sample(0, 0, 0.0, rewards={"correct": 0.0, followed: 0.0, "instruction": 3.0}),
        sample(1, 0, 1.0, rewards={"correct": 1.0, followed: 1.0, "instruction": 1.0}),
    ]
    found = evaluate(runs).rewards
    assert (found[followed].value, found["instruction"].value) == (0.25, 2.0)
    assert (found[followed].low, found[followed].high) == (0.0, 1.0)
    assert group_metrics(runs, [])[f"reward/{followed}"] == 0.25
    alone = [sample(0, 0, 0.0, rewards={"correct": 0.0, followed: 2.0})]
    assert evaluate(alone).rewards[followed].value == 2.0, "there is no such whole"
    right = [
        sample(i, 0, 1.0, rewards={"correct": 1, followed: 2, "instruction": 2}) for i in range(9)
    ]
    assert evaluate(right).rewards[followed].low < 1.0, "nine problems leave some doubt"
