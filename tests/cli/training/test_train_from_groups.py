"""`hrm-agent train rl --from`: training on recorded groups, its reports, resuming and prolonging."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.training.metrics import read_metrics
from tests.cli.conftest import Command

SMALL = ("--prompts-per-step", "2", "--group-size", "4", "--seed", "5", "--cooldown", "0")
KILLED = """
import os, signal, sys
from hrm_agent.cli.main import main
from hrm_agent.training import keeper
keep = keeper.Keeper.keep
def killing(self, row, progress):
    if row["step"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    keep(self, row, progress)
keeper.Keeper.keep = killing
main(sys.argv[1:])
"""


def weights(folder: str) -> bytes:
    return Path(folder, "model", "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_record_is_learned_from_killed_resumed_and_prolonged(
    hrm: Command, tmp_path: Path
) -> None:
    sampled = hrm("train", "rl", *SMALL, "--steps", "2", "--out", "sampled")
    assert sampled.code == 0, sampled.err
    words = ["train", "rl", "--from", "sampled", "--out", "again", *SMALL]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *words], capture_output=True, text=True, check=False
    )
    assert killed.returncode < 0
    assert (
        "4 groups of 32 rollouts on record: 2 steps a pass, as they were recorded; 2 steps are 1"
        " pass." in (killed.stdout)
    )
    done = hrm("resume", "again")
    assert done.code == 0, done.err
    assert weights("again") == weights("sampled")
    assert hrm(*words).out.startswith("The run in again has taken its 2 steps already")
    more = hrm(*words, "--steps", "4")
    assert "4 steps are 2 passes." in more.out
    assert [row["step"] for row in read_metrics(tmp_path / "again" / "metrics.jsonl")] == [
        0,
        1,
        2,
        3,
    ]
    assert (
        "was started with another configuration"
        in hrm(*words, "--steps", "4", "--clip-high", "0.3").err
    )
    other = hrm("train", "rl", "--from", "sampled/store.db", "--out", "again", *SMALL)
    assert "learns from" in other.err and other.code != 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "nowhere"), "nowhere"),
        (("--from", "runs.txt"), "runs.txt"),
        (("--by", "x"), "by has no effect here: no runs on record are learned from"),
    ],
)
def test_what_is_no_record_begins_nothing(
    words: tuple[str, ...], said: str, hrm: Command, tmp_path: Path
) -> None:
    done = hrm("train", "rl", *words, "--out", "run")
    assert done.code != 0 and said in done.err
    assert not (tmp_path / "run").exists()


def test_runs_of_one_rollout_each_are_told_to_teach_nothing(
    hrm: Command, store: str, tmp_path: Path
) -> None:
    done = hrm("train", "rl", "--from", store, "--out", "run")
    assert "1 rollout left out: alone in its group" in done.err
    assert not (tmp_path / "run").exists()
