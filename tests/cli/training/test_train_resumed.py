"""`hrm-agent train sft` and `train rl` on a run folder: resumed, prolonged, finished."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.config import save_config
from hrm_agent.errors import RunError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.fitted import fit
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from tests.cli.conftest import Command

pytestmark = pytest.mark.slow

QUICK = ("--batch-size", "2", "--learning-rate", "3e-4", "--cooldown", "0", "--warmup-steps", "0")
KILLED = """
import os, signal, sys
from hrm_agent.cli.main import main
from hrm_agent.training import metrics
append = metrics.MetricsLog.append
def killing(self, row):
    append(self, row)
    if row["step"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
metrics.MetricsLog.append = killing
main(sys.argv[1:])
"""


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{n}?"},
                {"role": "assistant", "content": f"{n}"},
            ]
        }
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def test_a_fine_tuning_is_killed_resumed_prolonged_and_then_done(
    hrm: Command, chats: Path, tmp_path: Path
) -> None:
    def train(folder: str, steps: int, *more: str) -> list[str]:
        return [
            "train",
            "sft",
            str(chats),
            "--steps",
            str(steps),
            *QUICK,
            "--out",
            str(tmp_path / folder),
            *more,
        ]

    assert hrm(*train("whole", 5)).code == 0
    words = train("run", 4, "--checkpoint-every", "2")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *words],
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == -signal.SIGKILL
    run = tmp_path / "run"
    assert not (run / "model").exists() and len(read_metrics(run / "metrics.jsonl")) == 3
    assert hrm("resume", str(run)).code == 0
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3, 4]
    prolonged = hrm(*train("run", 5, "--checkpoint-every", "2"))
    assert prolonged.code == 0, prolonged.err
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert weights(run) == weights(tmp_path / "whole")
    assert rows[-1]["loss"] < rows[0]["loss"]
    again = hrm(*train("run", 5))
    assert (again.code, "has taken its 5 steps already: nothing was done" in again.out) == (0, True)
    assert read_metrics(run / "metrics.jsonl") == rows
    refused = hrm(*train("run", 6, "--weight-decay", "0.5"))
    assert refused.code == 2 and "weight_decay: 0.01 there, 0.5 now" in refused.err
    shorter = hrm(*train("run", 3))
    assert shorter.code == 2 and "has taken 5 steps: it cannot end after 3" in shorter.err


def test_a_run_whose_rates_would_be_others_is_refused_and_its_configuration_left(
    hrm: Command, chats: Path, tmp_path: Path
) -> None:
    words = ["train", "sft", str(chats), "--batch-size", "2", "--out", str(tmp_path / "run")]
    assert hrm(*words, "--steps", "2").code == 0
    before = (tmp_path / "run" / "config.toml").read_bytes()
    refused = hrm(*words, "--steps", "9")
    assert (
        refused.code == 2
        and "learning rate of step 0" in refused.err
        and "--cooldown 0" in refused.err
    )
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


@pytest.mark.parametrize("named", [[], ["nowhere.jsonl"]])
def test_without_a_file_nothing_is_begun(hrm: Command, tmp_path: Path, named: list[str]) -> None:
    done = hrm("train", "sft", *named, "--out", str(tmp_path / "run"))
    assert done.code == 2 and "Name a JSONL file" in done.err
    assert not (tmp_path / "run").exists()


RL = GrpoConfig.of(
    algorithm="grpo",
    steps=4,
    prompts_per_step=1,
    group_size=2,
    cooldown=0.5,
    checkpoint_every=4,
    max_tokens=16,
)
"""Configuration whose rate falls in the second half of the steps."""


class Killed(Exception):
    """Exception with which a test ends a run."""


def taken_until(step: int, config: GrpoConfig, folder: Path) -> None:
    """Start or resume the run, and end it in this step, before its checkpoint."""

    def end(row: dict[str, Any]) -> None:
        if row["step"] == step:
            raise Killed

    with pytest.raises(Killed):
        asyncio.run(train(config, folder, on_step=end))


def test_rollouts_after_the_newest_checkpoint_count_where_a_run_is_prolonged(
    hrm: Command, tmp_path: Path
) -> None:
    """Rollouts after the checkpoint were sampled from weights trained at the old rates, and are not
    sampled again.
    """
    folder = tmp_path / "run"
    begun, longer = (fit(RL.model_copy(update={"steps": steps})) for steps in (8, 16))
    config = save_config(begun, "train rl", folder)
    before = config.read_bytes()
    # steps 4 and 5 were taken at lower rates, and no checkpoint is after them
    taken_until(6, begun, folder)
    refused = hrm("train", "rl", "--config", str(config), "--steps", "16", "--out", str(folder))
    assert refused.code == 2 and "learning rate of step 4" in refused.err
    assert config.read_bytes() == before
    with pytest.raises(RunError, match="learning rate of step 4"):
        asyncio.run(train(longer, folder))


def test_a_run_that_was_prolonged_goes_on_between_checkpoints(hrm: Command, tmp_path: Path) -> None:
    """The newest checkpoint is from the shorter run, and the rollouts after it are from the longer
    one.
    """
    folder, longer = tmp_path / "run", RL.model_copy(update={"steps": 8})
    taken_until(2, RL, folder)
    taken_until(6, longer, folder)
    with pytest.raises(RunError, match="has taken 6 steps: it cannot end after 4"):
        asyncio.run(train(RL, folder))
    asyncio.run(train(longer, folder))
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == list(range(8))


@pytest.mark.parametrize(
    ("begun", "second"),
    [
        (("train", "rl"), ("--steps", "40", "--concurrency", "3")),
        (("demo",), ("--train.concurrency", "3")),
        (("collect",), ("--count", "2", "--concurrency", "3")),
    ],
    ids=["train rl", "demo", "collect"],
)
def test_a_second_start_on_a_run_under_way_leaves_its_configuration(
    begun: tuple[str, ...], second: tuple[str, ...], hrm: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process would
        refused = hrm(*begun, *second, "--out", str(folder))
    assert refused.code == 2 and "Another process is using" in refused.err
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_run_with_the_defaults_is_prolonged_and_says_what_its_objective_is(
    hrm: Command, tmp_path: Path
) -> None:
    small = (
        "--prompts-per-step",
        "2",
        "--group-size",
        "2",
        "--max-tokens",
        "32",
        "--objective",
        "gspo",
    )
    words = ["train", "rl", *small, "--out", str(tmp_path / "run")]
    begun = hrm(*words, "--steps", "1")
    assert begun.code == 0, begun.err
    assert (
        begun.err.count("objective = gspo has the gradient of clipped with aggregation = sequence")
        == 1
    )
    kept = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert "clip_low = 0.0003" in kept and 'aggregation = "sequence"' in kept
    prolonged = hrm(*words, "--steps", "2")
    assert prolonged.code == 0, prolonged.err
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1]
    assert len({row["learning_rate"] for row in rows}) == 1
