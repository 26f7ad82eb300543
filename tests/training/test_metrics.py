"""`metrics.jsonl` over kills and full disks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hrm_agent.training.metrics import MetricsLog, read_metrics
from tests.support.disk import files_of_at_most


def test_a_step_that_is_taken_again_stands_there_once(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(3):
        log.append({"step": step, "loss": math.nan})
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    MetricsLog(path, before_step=2).append({"step": 2, "loss": 0.5})
    assert read_metrics(path) == [
        {"step": 0, "loss": None},
        {"step": 1, "loss": None},
        {"step": 2, "loss": 0.5},
    ]


def test_a_disk_that_is_full_leaves_the_metrics_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(3):
        log.append({"step": step})
    before = path.read_bytes()
    with files_of_at_most(16), pytest.raises(OSError, match="File too large"):
        MetricsLog(path, before_step=2)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]
