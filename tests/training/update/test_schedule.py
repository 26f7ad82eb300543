"""The learning rate over the steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.errors import RunError
from hrm_agent.training.update.schedule import (
    Schedule,
    dropout_seed,
    refuse_other_course,
    trapezoid,
)


@pytest.mark.parametrize(
    ("steps", "warmup", "cooldown", "shares"),
    [
        (4, 0, 0, [1, 1, 1, 1]),
        (6, 2, 1 / 2, [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
        (3, 0, 1, [3 / 4, 2 / 4, 1 / 4]),  # all of the training
        (3, 3, 2 / 3, [1 / 3, 2 / 3, 1 / 3]),
        (2, 30, 1 / 2, [1 / 2, 1 / 2]),  # the warm-up is bounded by the steps
    ],
)
def test_the_rate_rises_stays_and_falls(steps, warmup, cooldown, shares):
    assert [trapezoid(step, steps, warmup, cooldown) for step in range(steps)] == pytest.approx(
        shares
    )


@given(st.integers(1, 60), st.integers(0, 90), st.floats(0, 1))
def test_no_step_has_the_rate_0(steps, warmup, cooldown):
    assert all(0 < trapezoid(step, steps, warmup, cooldown) <= 1 for step in range(steps))


@pytest.mark.parametrize(
    ("before", "now", "taken", "cooldown", "fault"),
    [
        (4, 6, 4, 0.0, None),
        (30, 60, 8, 0.5, None),  # its cool-down has not begun
        (6, 4, 4, 0.0, None),
        (6, 3, 4, 0.0, "has taken 4 steps: it cannot end after 3"),
        (4, 6, 4, 0.5, "the learning rate of step 2, which it has taken, was 0.667"),
    ],
)
def test_a_run_is_prolonged_where_its_steps_are_the_first_of_the_longer_one(
    before, now, taken, cooldown, fault
):
    if fault is None:
        refuse_other_course(Schedule(now, 2, cooldown), before, taken, "runs/x")
    else:
        with pytest.raises(RunError, match=fault):
            refuse_other_course(Schedule(now, 2, cooldown), before, taken, "runs/x")


def test_dropout_follows_from_the_seed_and_leaves_the_global_state_alone():
    def drawn(seed):
        with dropout_seed(seed):
            return torch.rand(4).tolist()

    before = torch.get_rng_state()
    assert drawn(1) == drawn(1) != drawn(2)
    assert torch.equal(torch.get_rng_state(), before)
