"""Exclusion of rollouts or whole groups because a machine failed."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.rollout.eligibility import fault_of, needed_of, needs_second_attempt
from hrm_agent.training.select.roc import select
from hrm_agent.training.select.verdicts import judge_group
from hrm_agent.training.update.advantages import group_advantages
from hrm_agent.trajectory import DropReason, RunStatus, StopReason, ToolStatus, Trajectory, Verdict
from tests.support.training.builders import rollout, tool_call

VERIFIER: dict[str, Any] = {"status": RunStatus.FAILED, "stop_reason": StopReason.VERIFIER_ERROR}
LOST: dict[str, Any] = {"tool_calls": (tool_call("a"), tool_call("x", ToolStatus.INFRASTRUCTURE))}


def group(able: int, size: int) -> list[Trajectory]:
    """Group of `size` rollouts, of which the first `able` can take part. Every other one of these
    is right. The rest failed, in each way in turn.
    """
    return [one(i, able=i < able) for i in range(size)]


@cache
def one(index: int, *, able: bool) -> Trajectory:
    faults: tuple[dict[str, Any], ...] = (
        {"status": RunStatus.FAILED},
        LOST,
        {"status": RunStatus.ABORTED},
    )
    return rollout(index, float(index % 2), **({} if able else faults[index % len(faults)]))


@pytest.mark.parametrize("share", ["0.75", "1"])
def test_a_group_is_trained_on_exactly_if_enough_of_it_can_take_part(share: str) -> None:
    for size in range(2, 33):
        for able in range(size + 1):
            overlays = group_advantages(
                select(group(able, size), size, "grpo", seed=0, min_group=float(share))
            )
            trained = [o for o in overlays if o.advantage is not None]
            enough = able >= Fraction(share) * size
            assert len(trained) == (able if enough and able > 1 else 0), (able, size)
            assert all(o.drop_reason is None for o in trained)
            assert all(o.drop_reason is not None and o.reason for o in overlays if o not in trained)
            if not enough:
                assert all(o.verdict is not Verdict.KEPT for o in overlays)
                assert {o.drop_reason for o in overlays[:able]} <= {DropReason.SMALL_GROUP}
                assert all(f"{able} rollouts can take part" in o.reason for o in overlays[:able])


def test_what_is_needed_is_exact_where_floats_are_not() -> None:
    assert 0.28 * 25 > 7
    assert needed_of(25, 0.28) == 7
    assert [needed_of(size, 0.75) for size in (2, 3, 4, 8, 16, 32)] == [2, 3, 3, 6, 12, 24]


@pytest.mark.parametrize(
    ("facts", "reason", "again"),
    [
        ({}, None, False),
        ({"status": RunStatus.TRUNCATED}, None, False),
        (LOST, DropReason.INFRASTRUCTURE, True),
        ({"status": RunStatus.TRUNCATED, **LOST}, DropReason.INFRASTRUCTURE, True),
        ({"status": RunStatus.FAILED}, DropReason.RUN_FAILED, True),
        ({"status": RunStatus.FAILED, **LOST}, DropReason.INFRASTRUCTURE, True),
        (
            {"status": RunStatus.FAILED, "stop_reason": StopReason.ERROR},
            DropReason.RUN_FAILED,
            True,
        ),
        ({"status": RunStatus.FAILED, "stop_reason": StopReason.UNUSABLE_ANSWER}, None, False),
        (
            {"status": RunStatus.FAILED, "stop_reason": StopReason.UNUSABLE_ANSWER, "rewards": {}},
            None,
            False,
        ),
        ({**VERIFIER, "rewards": {}}, DropReason.NOT_SCORED, True),
        ({"rewards": {}}, DropReason.NOT_SCORED, False),
        ({"status": RunStatus.ABORTED}, DropReason.ABORTED, False),
        ({"status": RunStatus.RUNNING}, DropReason.NOT_ENDED, False),
        ({"tool_calls": (tool_call("a", ToolStatus.TIMEOUT),)}, None, False),
    ],
)
def test_what_is_a_fault_and_what_is_run_again(
    facts: dict[str, Any], reason: DropReason | None, again: bool
) -> None:
    whole = rollout(0, 1.0, **facts)
    fault = fault_of(whole)
    assert (fault and fault[0], needs_second_attempt(whole)) == (reason, again)


def test_the_overlay_names_what_was_lost() -> None:
    lost = tool_call("x", ToolStatus.INFRASTRUCTURE).model_copy(update={"stderr": "the slot died"})
    overlays = select(
        [*group(4, 4), rollout(4, 1.0, tool_calls=(lost,))], 4, "grpo", seed=0, min_group=0.75
    )
    assert (overlays[-1].verdict, overlays[-1].drop_reason) == (
        Verdict.DROPPED,
        DropReason.INFRASTRUCTURE,
    )
    assert "python: the slot died" in overlays[-1].reason
    assert sum(o.verdict is Verdict.KEPT for o in overlays) == 4


UNUSABLE: dict[str, Any] = {
    "status": RunStatus.FAILED,
    "stop_reason": StopReason.UNUSABLE_ANSWER,
    "error": "ValueError: no plan in 'x'",
    "error_at": "agent.py:7 in plan",
}


def test_a_rollout_whose_answer_the_graph_could_not_use_is_a_negative() -> None:
    overlays = select(
        [rollout(0, 1.0), rollout(1, 1.0), *(rollout(i, 0.0, **UNUSABLE) for i in (2, 3))],
        4,
        "grpo",
        seed=0,
    )
    assert [o.advantage for o in group_advantages(overlays)] == pytest.approx(
        [0.75**0.5, 0.75**0.5, -(0.75**0.5), -(0.75**0.5)], abs=1e-5
    )
    assert all(o.verdict is Verdict.KEPT for o in overlays)


def test_nobody_gains_by_writing_what_cannot_be_read() -> None:
    """An unreadable answer gets the lowest reward of its group, and at most 0."""
    graded = [
        rollout(i, float(i == 0), rewards={"correct": float(i == 0), "reward": -0.5 * i})
        for i in range(3)
    ]
    overlays = select([*graded, rollout(3, 0.0, **UNUSABLE, rewards={})], 4, "grpo", seed=0)
    assert [o.reward for o in overlays] == [0.0, -0.5, -1.0, -1.0]
    above = [rollout(i, 1.0, rewards={"correct": 1.0, "reward": 2.0 + i}) for i in range(2)]
    assert select([*above, rollout(2, 1.0, **UNUSABLE)], 3, "grpo", seed=0)[-1].reward == 0.0


def test_what_every_rollout_raises_is_the_graphs_own_doing() -> None:
    same = [rollout(i, 0.0, **UNUSABLE) for i in range(4)]
    overlays = select(same, 4, "grpo", seed=0, min_group=0.75)
    assert {(o.verdict, o.drop_reason) for o in overlays} == {
        (Verdict.GROUP_REJECTED, DropReason.RUN_FAILED)
    }
    assert (
        "all 4 rollouts raised ValueError: no plan in 'x' (agent.py:7 in plan)"
        in overlays[0].reason
    )
    other = select(
        [*same, rollout(4, 0.0, **{**UNUSABLE, "error_at": "agent.py:9 in act"})], 5, "grpo", seed=0
    )
    assert {o.drop_reason for o in other} == {DropReason.EQUAL_REWARDS}, (
        "some have got past that line"
    )


CUT: dict[str, Any] = {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_TOKENS}


def test_truncated_rollouts_are_wrong_or_left_out_or_keep_their_reward() -> None:
    whole = [rollout(0, 1.0), rollout(1, 0.0), rollout(2, 0.25, **CUT)]

    def judged(**keys: Any) -> list[Any]:
        config = GrpoConfig.of(group_size=3, algorithm="grpo", **keys)
        return sorted(
            judge_group([(each,) for each in whole], 0, "run", config),
            key=lambda o: o.trajectory_id,
        )

    assert [o.reward for o in judged()] == [1.0, 0.0, 0.0]
    assert [o.reward for o in judged(truncated="keep_reward")] == [1.0, 0.0, 0.25]
    kept, wrong, out = judged(truncated="leave_out")
    assert (kept.verdict, wrong.verdict) == (Verdict.KEPT, Verdict.KEPT)
    assert (out.verdict, out.drop_reason) == (Verdict.DROPPED, DropReason.TRUNCATED)
    assert "max_tokens" in out.reason
    advantages = [o.advantage for o in group_advantages([kept, wrong, out])]
    assert advantages == pytest.approx([0.5**0.5, -(0.5**0.5), None], abs=1e-5), (
        "it is no part of the mean either"
    )
    with pytest.raises(ValidationError):
        GrpoConfig.of(truncated="maybe")
