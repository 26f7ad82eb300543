"""Facts encoded in the names of threads and groups."""

from __future__ import annotations

import pytest

from hrm_agent.trajectory import step_in_name


@pytest.mark.parametrize(
    ("name", "run", "step"),
    [
        ("run/step-7/3/0", "run", 7),
        ("runs/a/step-12/3", "runs/a", 12),
        ("run/step-7", "run", 7),
        ("run/eval-after/3/0", "run", None),
        ("run/step-7b/3/0", "run", None),
        ("run/step-\N{ARABIC-INDIC DIGIT SEVEN}/3", "run", None),
        ("step-7/3/0", "", None),
        ("other/step-7/3/0", "run", None),
    ],
)
def test_the_step_is_read_from_a_name_of_the_run_alone(
    name: str, run: str, step: int | None
) -> None:
    assert step_in_name(name, run) == step
