"""Counts of classes, and the change between two records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import RunError
from hrm_agent.training.analysis.failures.report import (
    RIGHT,
    SAME_REWARD,
    ClassifiedRun,
    change_between,
    classified_runs,
    failure_report,
)
from hrm_agent.training.evaluation.samples import Problem
from hrm_agent.training.records.runs import opened_runs
from hrm_agent.trajectory import ForkRef, RunStatus, StopReason, TaskRef, Trajectory
from hrm_agent.trajectory.formats import export_to
from tests.support.training.builders import trajectory


def run(task: str, outcome: str, index: int = 0, **changes: Any) -> ClassifiedRun:
    facts: dict[str, Any] = {
        "trajectory": f"{task}-{index}",
        "thread": f"t/{task}/{index}",
        "problem": Problem(task, task),
        "family": "f",
        "part": "eval",
        "outcome": outcome,
    }
    return ClassifiedRun(**facts | changes)


def found(folder: Path, *runs: Trajectory) -> tuple[dict[str, str], dict[str, int]]:
    file = folder / "runs.jsonl"
    export_to(file, runs, "jsonl")
    left_out: dict[str, int] = {}
    with opened_runs([str(file)]) as (opened,):
        return {each.thread: each.outcome for each in classified_runs(opened, left_out)}, left_out


def test_which_runs_failed(tmp_path: Path) -> None:
    def one(index: int, rewards: dict[str, float], **changes: Any) -> Trajectory:
        answer = {"answer": "41"} | changes
        task = TaskRef(id=str(index), family="f", prompt="p")
        return trajectory(index, task=task, rewards=rewards, calls=(), **answer)

    cut = {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_TURNS}
    outcomes, left_out = found(
        tmp_path,
        one(0, {"correct": 1.0}),
        one(1, {"correct": 0.5}),
        one(2, {"correct": 1.0}, **cut),
        one(3, {"reward": 2.0}),
        one(4, {"reward": 1.0}),
        one(5, {}),
        one(6, {}, answer=""),
        one(7, {"correct": 1.0}, answer=None),  # its result is elsewhere
        one(8, {}, status=RunStatus.RUNNING),
        one(9, {"correct": 0.0}, group_id="thread-0"),
        one(10, {"correct": 0.0}, forked_from=ForkRef(trajectory_id="x", checkpoint_id="y")),
    )
    names = ("right", "unexplained", "limit", "right", "unexplained", "unjudged", "gave_up")
    assert outcomes == {f"thread-{i}": name for i, name in enumerate((*names, "right"))}
    expected = {"not ended": 1, "candidates among which a run chose its answer": 1, "forks": 1}
    assert left_out == expected


def rewarded(folder: Path, name: str, *rewards: float) -> Path:
    file = folder / f"{name}.jsonl"
    runs = [
        trajectory(n, task=TaskRef(id=str(n), family="f", prompt="p"), rewards={"reward": each}, calls=(), answer="41")
        for n, each in enumerate(rewards)
    ]  # fmt: skip
    export_to(file, runs, "jsonl")
    return file


def test_rewards_alone_are_measured_by_the_best_of_both_records(tmp_path: Path) -> None:
    worse = rewarded(tmp_path, "worse", 0.0, 0.0)
    better = rewarded(tmp_path, "better", 1.0, 0.5)
    with opened_runs([str(worse), str(better)]) as (a, b):
        alone = classified_runs(a, {})
        assert {(each.outcome, each.unjudged) for each in alone} == {("unjudged", SAME_REWARD)}
        assert failure_report("worse", alone, {}, examples=0).unjudged == {SAME_REWARD: 2}
        old = classified_runs(b, {}, others=[a])
        new = classified_runs(a, {}, others=[b])
    assert [each.outcome for each in old] == [RIGHT, "unexplained"]
    assert [each.outcome for each in new] == ["unexplained", "unexplained"]
    report = failure_report("worse", new, {}, examples=0)
    assert (report.failed, report.by_reward, report.best) == (2, 2, 1.0)
    right = next(e for e in change_between("better", old, new).changes if e.name == RIGHT)
    assert right.difference.value == -0.5


def test_a_record_without_ended_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no ended run"):
        found(tmp_path, trajectory(0, status=RunStatus.RUNNING, calls=()))


def test_shares_are_means_over_tasks() -> None:
    many = [run("a", "loop", i) for i in range(9)] + [run("b", RIGHT), run("c", RIGHT)]
    report = failure_report("r", [*many, run("d", "unjudged")], {}, examples=2)
    (loop,) = report.classes
    assert (loop.runs, loop.tasks, len(loop.examples)) == (9, 1, 2)
    assert loop.share.value == pytest.approx(1 / 3) and loop.share.low == 0 and loop.share.high == 1
    assert (report.runs, report.judged, report.failed, report.tasks) == (12, 11, 9, 4)
    assert report.families == {"f": {"loop": 9, RIGHT: 2}}


def test_secondary_classes_roles_and_unchecked_rules_are_counted() -> None:
    lacks = (("wrong_form", "no reference answer is on record"),)
    runs = [
        run("a", "limit", secondary=("loop",), role="solve", unchecked=lacks),
        run("b", "loop", role="solve", unchecked=lacks),
        run("c", "provider"),
    ]
    report = failure_report("r", runs, {}, examples=0)
    by_name = {each.name: each for each in report.classes}
    assert [*by_name] == ["provider", "loop", "limit", "wrong_form"]
    assert by_name["loop"].secondary == 1
    assert by_name["wrong_form"].unchecked == {"no reference answer is on record": 2}
    assert report.apart == 1 and report.roles == {"solve": {"limit": 1, "loop": 1}}


def test_runs_are_paired_by_task() -> None:
    before = [run(str(n), "loop") for n in range(20)] + [run("x", "limit"), run("only", RIGHT)]
    after = [run(str(n), RIGHT if n < 15 else "loop") for n in range(20)] + [run("x", "limit")]
    change = change_between("old", before, after)
    by_name = {each.name: each for each in change.changes}
    assert change.paired == 21 and [*by_name][-1] == "limit"
    loop = by_name["loop"]
    assert loop.difference.value == pytest.approx(-15 / 21) and loop.difference.high < -0.4
    assert loop.certain and by_name[RIGHT].p_value == pytest.approx(2 * 0.5**15)
    unchanged = by_name["limit"].difference
    assert unchanged.value == 0 and unchanged.low < 0 < unchanged.high, "some width"
    (moved,) = change.moved
    assert (moved.before, moved.after, moved.runs, len(moved.tasks)) == ("loop", RIGHT, 15, 8)


def test_records_without_a_common_task_are_compared_as_independent() -> None:
    before = [run(f"a{n}", "loop") for n in range(30)]
    after = [run(f"b{n}", RIGHT) for n in range(30)]
    change = change_between("old", before, after)
    assert change.paired == 0 and not change.moved
    loop = next(each for each in change.changes if each.name == "loop")
    assert loop.difference.value == -1 and -1 <= loop.difference.low < loop.difference.high < -0.7
    assert loop.certain
    same = change_between("old", before[:2], [run("b", RIGHT), run("c", "loop")])
    assert not any(each.certain for each in same.changes)


@pytest.mark.parametrize("tasks", [1, 3, 5, 7])
def test_few_tasks_that_changed_alike_are_within_chance(tasks: int) -> None:
    """The interval has the width that `eval --compare` gives it, and the test is the same."""
    before = [run(str(n), "loop", i) for n in range(tasks) for i in range(3)]
    after = [run(str(n), RIGHT if i else "loop", i) for n in range(tasks) for i in range(3)]
    right = change_between("old", before, after).changes[0]
    value = right.difference.value
    assert value == pytest.approx(2 / 3) and right.difference.low < value - 0.3
    assert right.p_value == 2 * 0.5**tasks and right.certain is (tasks == 7)


def test_classes_are_corrected_for_their_number() -> None:
    """Six tasks of one class are significant alone (p = 0.03), and not beside four other classes."""
    names = ("limit", "no_source", "gave_up", "provider")
    before = [run(str(n), "loop") for n in range(6)]
    after = [run(str(n), RIGHT) for n in range(6)]
    (loop,) = (e for e in change_between("old", before, after).changes if e.name == "loop")
    assert loop.certain and loop.p_value == 2 * 0.5**6
    others = [run(name, name) for name in names]
    more = change_between("old", before + others, after + others).changes
    (loop,) = (each for each in more if each.name == "loop")
    assert loop.p_value == 5 * 2 * 0.5**6 and not loop.certain
    assert next(each for each in more if each.name == RIGHT).certain, "one question of its own"


def test_samples_are_paired_in_the_order_of_their_numbers() -> None:
    before = [run("a", "limit" if i == 2 else "loop", i) for i in range(4)]
    after = [run("a", "gave_up" if i == 2 else "loop", i) for i in range(16)]
    (moved,) = change_between("old", before, after).moved
    assert (moved.before, moved.after, moved.runs) == ("limit", "gave_up", 1)
