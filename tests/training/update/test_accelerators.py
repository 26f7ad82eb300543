"""Settings of accelerate that would change the numbers of a training are refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAININGS = (
    ["train", "rl", "--steps", "1"],
    ["train", "sft", "lessons.jsonl", "--policy", "builtin:cold-start", "--steps", "1"],
)


@pytest.mark.parametrize("command", TRAININGS, ids=["rl", "sft"])
def test_settings_of_accelerate_launch_are_refused(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "lessons.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}\n'
    )
    settings = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}
    ended = subprocess.run(
        [sys.executable, "-m", "hrm_agent", *command, "--out", str(tmp_path / "run")],
        env=os.environ | settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    told = " ".join(ended.stderr.split())
    assert ended.returncode == 2, told
    assert "mixed_precision = bf16, gradient_accumulation_steps = 4, which would change" in told
    assert "Traceback" not in told
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_a_state_that_another_trainer_left_is_refused() -> None:
    program = (
        "from accelerate import Accelerator\n"
        "from hrm_agent.training.update.accelerators import exact_accelerator\n"
        "exact_accelerator()\n"
        "Accelerator()\n"
        "from accelerate.state import AcceleratorState\n"
        "AcceleratorState._reset_state()\n"
        "Accelerator(mixed_precision='bf16')\n"
        "exact_accelerator()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert re.search(r"ConfigError: Accelerate is set to mixed_precision = bf16", ended.stderr)
