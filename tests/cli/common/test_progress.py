"""Progress of a long command, on a terminal of 80 columns and in a log, and remarks on a run's
steps.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.basics.intervals import Estimate
from hrm_agent.cli.common.output import progress
from hrm_agent.training.plots.plots import plot_curves
from hrm_agent.training.select.verdicts import when_learning_stopped

BAR = """
from hrm_agent.cli.common.output import progress
with progress("grpo-roc", 30) as advance:
    for step in range(1, 4):
        advance("correct 0.602, correct_with_tool_error 0.247, groups_rejected 0.000, loss -0.302" * 2, step)
"""


def test_step_and_time_stay_on_a_terminal_of_80_columns() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", BAR], stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            shown += data
        assert process.wait() == 0
    os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]
    last = [line for line in lines if line.startswith("grpo-roc")][-1]
    assert "3/30" in last
    assert re.search(r"0:00:\d\d left", last), last
    assert max(map(len, lines)) <= 80


def test_a_log_says_how_long_it_took_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("eval", 2) as advance:
        advance("1 correct")
        advance("2 correct")
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"eval 1/2 \[0:0\d, about 0:0\d left\] 1 correct", first)
    assert re.fullmatch(r"eval 2/2 \[0:0\d\] 2 correct", last)


def rows(*rejected: float) -> list[dict[str, float | None]]:
    return [
        {
            "step": i,
            "select/groups_rejected": share,
            "select/groups_equal_rewards": 16 * share,
            "rollout/correct": 0.99,
        }
        for i, share in enumerate(rejected)
    ]


def test_a_run_whose_last_steps_taught_nothing_is_remarked() -> None:
    said = when_learning_stopped(rows(0.1, 0.2, 0.8, 0.9, 1.0, 0.8, 0.9))
    assert (
        said
        == "From step 3 on, 80% to 100% of the groups taught nothing: 70 of 70 groups have equal"
        " rewards. Almost every answer was right: take harder tasks."
    )
    assert when_learning_stopped(rows(0.1, 0.9, 0.9, 0.9, 0.9)) is None, "four may be bad luck"
    assert when_learning_stopped(rows(0.9, 0.9, 0.9, 0.9, 0.9, 0.1)) is None


def test_curves_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    plot_curves([], tmp_path / "none.png", "no step")
    plot_curves(
        rows(0.1, 0.2),
        tmp_path / "some.png",
        "two steps",
        {0: Estimate(0.5, 0.4, 0.6), 2: Estimate(0.9, 0.8, 1.0)},
    )
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "some.png").stat().st_size > (tmp_path / "none.png").stat().st_size
