"""A training that learns nothing names the cause that explains most of its counts."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.training.select.diagnosis import (
    diagnosis,
    failure_counts,
    nothing_got_through,
    totals_of,
)
from hrm_agent.training.select.verdicts import why_nothing_was_learnt
from hrm_agent.trajectory import RunStatus, StopReason, ToolStatus
from tests.support.training.builders import rollout, tool_call, trajectory

ERROR = "16 x KeyError: 'steps' (agent.py:12 in plan)"


def row(**counts: Any) -> dict[str, Any]:
    """A step of 16 rollouts in 2 groups, none of which taught anything."""
    names = (
        "raised",
        "not_scored",
        "tools_lost",
        "failed_by_policy",
        "prompt_too_long",
        "window_full",
    )
    names += ("truncated", "correct")
    groups = ("equal_rewards", "too_small", "failed", "without_gradient")
    given = {f"rollout/{name}": float(counts.get(name, 0.0)) for name in names}
    given |= {f"select/groups_{name}": float(counts.get(name, 0.0)) for name in groups}
    given["select/greedy_calls"] = float(counts.get("greedy_calls", 0.0))
    return {
        "step": 0,
        "stepped": 0.0,
        "rollout/count": 16.0,
        "select/groups_rejected": 1.0,
        **given,
        "errors": ERROR,
    }


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            {"raised": 16, "too_small": 2},
            f"In 16 of 16 rollouts the graph itself raised an error: {ERROR}. Mend the graph",
        ),
        (
            {"raised": 5, "tools_lost": 1, "too_small": 2, "correct": 0.6},
            "In 5 of 16 rollouts the graph itself raised",
        ),
        (
            {"not_scored": 16, "too_small": 2},
            "16 of 16 rollouts have no reward: their rewards or verifiers raised",
        ),
        (
            {"tools_lost": 9, "too_small": 2},
            "In 9 of 16 rollouts tool calls were lost to the environment",
        ),
        (
            {"failed_by_policy": 16, "failed": 2},
            "In 16 of 16 rollouts the graph raised the same error, whatever",
        ),
        (
            {"failed_by_policy": 12, "equal_rewards": 2},
            "In 12 of 16 rollouts the graph could not go on from what the",
        ),
        (
            {"prompt_too_long": 16, "truncated": 1.0, "without_gradient": 2},
            "In 16 of 16 rollouts the prompt is longer",
        ),
        (
            {"prompt_too_long": 3, "window_full": 9, "truncated": 1.0, "equal_rewards": 2},
            (
                "In 12 of 16 rollouts the prompt is longer than the policy's context window:"
                f" {ERROR}. Shorten"
            ),
        ),
        (
            {"truncated": 1.0, "equal_rewards": 2},
            "16 of 16 rollouts ended at a limit before they were done. Raise max",
        ),
        ({"truncated": 0.25, "equal_rewards": 2}, "Almost no answer was right: take easier tasks"),
        (
            {"without_gradient": 2, "greedy_calls": 9, "correct": 0.5},
            "Sample with temperatures above 0",
        ),
        (
            {"without_gradient": 2, "correct": 0.5},
            "The policy was asked for nothing, or each of its calls failed",
        ),
        ({"equal_rewards": 2, "correct": 1.0}, "Almost every answer was right: take harder tasks."),
        ({"equal_rewards": 2, "correct": 0.5}, "Raise group_size"),
    ],
)
def test_the_cause_that_explains_most_is_named(counts: dict[str, Any], said: str) -> None:
    rows = [row(**counts)]
    found = diagnosis(totals_of(rows))
    assert found.startswith(said)
    assert str(why_nothing_was_learnt(rows)).endswith(found)


@pytest.mark.parametrize(
    ("counts", "hopeless"),
    [
        ({"raised": 16}, True),
        ({"not_scored": 10, "raised": 6, "too_small": 2}, True),
        ({"failed_by_policy": 16, "failed": 2}, True),
        ({"failed_by_policy": 16, "failed": 1, "too_small": 1}, False),
        ({"failed_by_policy": 16, "equal_rewards": 2}, False),
        ({"not_scored": 10, "failed_by_policy": 6, "too_small": 2}, False),
        ({"failed_by_policy": 15, "failed": 2}, False),
        ({"tools_lost": 16}, False),
        ({}, False),
    ],
)
def test_a_run_of_which_nothing_gets_through_is_told_from_a_bad_one(
    counts: dict[str, Any], hopeless: bool
) -> None:
    assert nothing_got_through(totals_of([row(**counts)])) is hopeless
    assert not nothing_got_through(totals_of([row(correct=1.0), row(**counts)])), (
        "some have got through before"
    )


def test_each_rollout_is_counted_by_what_became_of_it() -> None:
    failed = {"status": RunStatus.FAILED, "rewards": {}}
    verifier = failed | {"stop_reason": StopReason.VERIFIER_ERROR}
    found = failure_counts(
        [
            rollout(0, 1.0),
            trajectory(
                1, 0.0, status=RunStatus.TRUNCATED, error="The prompt is too long.", calls=()
            ),
            rollout(2, 0.0, status=RunStatus.TRUNCATED, error="The conversation is too long."),
            rollout(
                3,
                0.0,
                **failed,
                stop_reason=StopReason.ERROR,
                error="OSError: away",
                error_at="a.py:1 in f",
            ),
            rollout(
                4,
                0.0,
                **failed,
                stop_reason=StopReason.UNUSABLE_ANSWER,
                error="ValueError: no plan",
            ),
            rollout(
                5,
                0.0,
                **failed,
                stop_reason=StopReason.UNUSABLE_ANSWER,
                error="ValueError: no plan",
            ),
            rollout(6, 0.0, **verifier, error="the verifier failed: KeyError: 'not inferred'"),
            rollout(
                7,
                0.0,
                **verifier,
                error="the verifier failed: ValueError: not_a_number (a reward lies in [0, 1], not nan)",
            ),
            rollout(
                8,
                0.0,
                **verifier,
                error="the verifier failed: ValueError: not_a_number (a reward lies in [0, 1], not -inf)",
            ),
            rollout(
                9,
                0.0,
                **verifier,
                error="the verifier failed: ValueError: out_of_range (a reward lies in [0, 1], not 2)",
            ),
            rollout(
                10,
                0.0,
                rewards={},
                error="the rubric failed: good: raised (KeyError: 1, at r.py:1 in good)",
            ),
            rollout(
                11, 0.0, rewards={}, error="the rubric failed: good: not_a_number (it returned inf)"
            ),
            rollout(12, 0.0, tool_calls=(tool_call("x", ToolStatus.INFRASTRUCTURE),)),
        ]
    )
    assert found.pop("errors").startswith(
        "2 x ValueError: no plan; 1 x OSError: away (a.py:1 in f); "
    )
    assert found == {
        "rollout/raised": 1,
        "rollout/tools_lost": 1,
        "rollout/not_scored": 6,
        "rollout/reward_raised": 2,
        "rollout/reward_not_finite": 3,
        "rollout/failed_by_policy": 2,
        "rollout/prompt_too_long": 1,
        "rollout/window_full": 1,
    }
    assert failure_counts([rollout(0, 1.0)])["errors"] is None
