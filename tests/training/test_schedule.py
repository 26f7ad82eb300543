"""The learning rate over the steps."""

import pytest

from hrm_agent.training.schedule import trapezoid


@pytest.mark.parametrize(
    ("steps", "warmup", "cooldown", "shares"),
    [
        (4, 0, 0, [1, 1, 1, 1]),
        (6, 2, 1 / 2, [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
        (3, 0, 1, [3 / 4, 2 / 4, 1 / 4]),  # all of the training
        (3, 3, 2 / 3, [1 / 3, 2 / 3, 1 / 3]),
    ],
)
def test_the_rate_rises_stays_and_falls(steps, warmup, cooldown, shares):
    assert [trapezoid(step, steps, warmup, cooldown) for step in range(steps)] == pytest.approx(shares)
