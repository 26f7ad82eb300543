"""When a rollout, or a whole group, is left out because a machine failed."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from hrm_agent.training.advantages import group_advantages
from hrm_agent.training.eligibility import fault_of, needed_of, needs_second_attempt
from hrm_agent.training.roc import select
from hrm_agent.trajectory import DropReason, RunStatus, ToolStatus, Trajectory, Verdict
from tests.support.training.builders import rollout, tool_call

LOST: dict[str, Any] = {"tool_calls": (tool_call("a"), tool_call("x", ToolStatus.INFRASTRUCTURE))}


def group(able: int, size: int) -> list[Trajectory]:
    """Of `size` rollouts `able` can take part, every other one right; the rest failed in turn in each way."""
    return [one(i, able=i < able) for i in range(size)]


@cache
def one(index: int, *, able: bool) -> Trajectory:
    faults: tuple[dict[str, Any], ...] = ({"status": RunStatus.FAILED}, LOST, {"status": RunStatus.ABORTED})
    return rollout(index, float(index % 2), **({} if able else faults[index % len(faults)]))


@pytest.mark.parametrize("share", ["0.75", "1"])
def test_a_group_is_trained_on_exactly_if_enough_of_it_can_take_part(share: str) -> None:
    for size in range(2, 33):
        for able in range(size + 1):
            overlays = group_advantages(select(group(able, size), size, "grpo", seed=0, min_group=float(share)))
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
        ({"status": RunStatus.ABORTED}, DropReason.ABORTED, False),
        ({"status": RunStatus.RUNNING}, DropReason.NOT_ENDED, False),
        ({"tool_calls": (tool_call("a", ToolStatus.TIMEOUT),)}, None, False),
    ],
)
def test_what_is_a_fault_and_what_is_run_again(facts: dict[str, Any], reason: DropReason | None, again: bool) -> None:
    whole = rollout(0, 1.0, **facts)
    fault = fault_of(whole)
    assert (fault and fault[0], needs_second_attempt(whole)) == (reason, again)


def test_the_overlay_names_what_was_lost() -> None:
    lost = tool_call("x", ToolStatus.INFRASTRUCTURE).model_copy(update={"stderr": "the slot died"})
    overlays = select([*group(4, 4), rollout(4, 1.0, tool_calls=(lost,))], 4, "grpo", seed=0, min_group=0.75)
    assert (overlays[-1].verdict, overlays[-1].drop_reason) == (Verdict.DROPPED, DropReason.INFRASTRUCTURE)
    assert "python: the slot died" in overlays[-1].reason
    assert sum(o.verdict is Verdict.KEPT for o in overlays) == 4
