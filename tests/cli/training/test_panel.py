"""Lines that a terminal shows during a training."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.cli.training.train import WIDTH, panel, watched
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import TrainingStage

ROW: dict[str, Any] = {
    "step": 3,
    "stage": 1,
    "rollout/correct": 0.8125,
    "rollout/correct_with_tool_error": 0.125,
    "rollout/sampled_tokens": 33.6,
    "rollout/count": 256.0,
    "select/kept": 64.0,
    "select/groups_rejected": 0.25,
    "select/unfilled": 0.0,
    "entropy_estimate": 0.222,
    "learning_rate": 5e-4,
    "eval/correct": 0.828,
    "eval/best": 0.875,
    "skipped": None,
}
STAGED = GrpoConfig.of(
    stages=(TrainingStage(name="short", steps=2), TrainingStage(name="the hard ones", steps=2)),
    refill=4,
)


def test_a_step_with_a_signal_takes_two_lines() -> None:
    assert panel(ROW, GrpoConfig()) == [
        "correct 0.812, held-out 0.828 (best 0.875), tool errors 0.125 of them",
        "tokens 34, kept 64 of 256 rollouts, entropy 0.222, rate 5.0e-04",
    ]
    first, _ = panel({**ROW, "eval/correct": None}, STAGED)
    assert first == "stage 2 of 2 the hard ones; correct 0.812, tool errors 0.125 of them"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {
                "select/groups_rejected": 0.75,
                "select/groups_equal_rewards": 12.0,
                "rollout/correct": 0.97,
            },
            "75% of the groups have no signal. Almost every answer was right: take harder tasks.",
        ),
        ({"select/unfilled": 3.0}, "3 groups are lacking, in spite of 4 refills"),
        (
            {"skipped": "nothing to train: there was no rollout"},
            "skipped: nothing to train: there was no rollout",
        ),
    ],
)
def test_what_is_wrong_has_a_line_and_what_to_do_about_it(
    change: dict[str, Any], said: str
) -> None:
    *_, last = panel({**ROW, **change}, STAGED)
    assert said.startswith(last.removesuffix("…")) and len(last) > WIDTH // 2


def test_a_line_of_a_step_tells_rollouts_from_held_out_problems() -> None:
    row = {
        **ROW,
        "rollout/correct_with_tool_error": None,
        "rollout/reward_mean": 0.8125,
        "loss": -0.0004,
    }
    assert watched(row) == "correct 0.812, groups_rejected 0.250, loss 0.000, held-out 0.828"
    by_rubric = {**row, "rollout/correct": 0.0, "rollout/reward_mean": 0.25, "eval/correct": None}
    assert watched(by_rubric) == "correct 0.000, reward 0.250, groups_rejected 0.250, loss 0.000"


def test_no_line_is_wider_than_a_terminal_of_80_columns() -> None:
    row = {
        **ROW,
        "skipped": "x" * 200,
        "select/groups_rejected": 1.0,
        "rollout/correct_with_tool_error": None,
    }
    assert all(len(line) <= WIDTH for line in panel(row, STAGED))
