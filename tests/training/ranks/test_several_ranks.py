"""Trainings of several ranks, held against the same training in one process. Few, because each rank
imports torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hrm_agent.cli.main import main
from hrm_agent.errors import ConfigError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.ranks.learner import shared_out
from hrm_agent.training.ranks.processes import require_ranks
from hrm_agent.training.update.batch import MicroBatch, micro_batches
from tests.support.postgres import free_port
from tests.training.update.test_loss import random_rows
from tests.training.update.test_optimizer_step import numbered

PROJECT = Path(__file__).resolve().parents[3]
KEYS = {
    "steps": 3,
    "prompts_per_step": 4,
    "group_size": 4,
    "refill": 2,
    "cooldown": 0,
    "micro_batch_tokens": 512,
    "eval_every": 3,
    "eval_problems": 8,
}
PATIENCE_SECONDS = 280.0


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(PROJECT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def command(folder: Path, sharding: str, **other: int | str) -> list[str]:
    keys = {**KEYS, **other}
    flags = [
        word for name, value in keys.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return ["-m", "hrm_agent", "train", "rl", *flags, "--sharding", sharding, "--out", str(folder)]


def one_process(folder: Path, **other: int | str) -> None:
    assert main(command(folder, "none", **other)[2:]) == 0


@contextmanager
def ranks(words: Sequence[str]) -> Generator[list[subprocess.Popen[str]]]:
    """Two, as torchrun starts them, without torchrun,
    which would end the one when the other does.
    """
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    started = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**environment(), **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield started
    finally:
        for rank in started:
            rank.kill()
            rank.communicate()


def finished(words: Sequence[str]) -> None:
    with ranks(words) as started:
        for rank in started:
            said, _ = rank.communicate(timeout=PATIENCE_SECONDS)
            assert rank.returncode == 0, said[-3000:]


def by_torchrun(words: Sequence[str]) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with subprocess.Popen(
        [sys.executable, *launcher, *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as launched:
        try:
            said, _ = launched.communicate(timeout=PATIENCE_SECONDS)
        finally:
            if launched.poll() is None:
                os.killpg(launched.pid, signal.SIGKILL)
    assert launched.returncode == 0, said[-3000:]
    assert said.count("The run has 3 steps") == 1  # rank 0 alone says it


def assert_equal(ours: Path, theirs: Path) -> None:
    rows, expected = read_metrics(ours / "metrics.jsonl"), read_metrics(theirs / "metrics.jsonl")
    assert len(rows) == len(expected) == KEYS["steps"]
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        for name in ("trained_tokens", "select/refilled"):
            assert row[name] == other[name]
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-6)
    assert rows[-1]["eval/correct"] == expected[-1]["eval/correct"]
    weights, whole = (
        load_file(folder / "model" / "model.safetensors") for folder in (ours, theirs)
    )
    assert weights.keys() == whole.keys()
    for name, weight in whole.items():
        assert torch.allclose(weights[name], weight, rtol=0, atol=1e-5), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    one_process(folder)
    return folder


@pytest.mark.whole
@pytest.mark.slow
def test_ddp_leads_to_the_weights_of_one_process_though_a_rank_was_killed(
    alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with ranks(command(folder, "ddp")) as (first, second):
        given_up = time.monotonic() + PATIENCE_SECONDS
        while not (folder / "checkpoints" / "step-000001").exists() and time.monotonic() < given_up:
            assert first.poll() is None and second.poll() is None
            time.sleep(0.02)
        second.kill()
        said, _ = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 2, said[-3000:]
    assert "Rank 1 has ended without an error" in said and "Traceback" not in said
    assert not (folder / "model").exists()
    by_torchrun(command(folder, "ddp"))
    assert_equal(folder, alone)


@pytest.mark.whole
@pytest.mark.slow
def test_fsdp2_leads_to_the_weights_of_one_process_which_may_take_a_step_between(
    alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    finished(command(folder, "fsdp2", steps=1))
    assert (folder / "checkpoints" / "step-000001" / "sharded").is_dir()
    one_process(folder, steps=2)
    assert not (folder / "checkpoints" / "step-000002" / "sharded").exists()
    finished(command(folder, "fsdp2"))
    assert_equal(folder, alone)


@pytest.mark.whole
@pytest.mark.slow
def test_a_teacher_whose_weights_ranks_share_teaches_as_one_of_one_process(tmp_path: Path) -> None:
    taught = {"steps": 1, "teacher": "builtin:trained", "outcome_coef": "0.5"}
    told = "The answer is {answer}."
    one_process(tmp_path / "alone", **taught, teacher_prompt=told)
    finished(command(tmp_path / "shared", "fsdp2", **taught, teacher_prompt=told))
    (row,), (expected,) = (
        read_metrics(tmp_path / name / "metrics.jsonl") for name in ("shared", "alone")
    )
    assert row["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert row["kl_teacher"] == pytest.approx(expected["kl_teacher"], abs=1e-5) != 0


def test_micro_batches_are_shared_out_and_trajectories_kept_together() -> None:
    rows = numbered(random_rows(1, 8))
    step = micro_batches(rows, token_budget=1)
    shares = shared_out([step, step[:1]], 3)
    assert [[len(part) for part in share] for share in shares] == [[3, 1], [3, 0], [2, 0]]
    assert [batch for share in shares for batch in share[0]] == [
        step[i] for r in range(3) for i in range(r, 8, 3)
    ]
    assert shared_out(step, 3) == [[share[0]] for share in shares]

    kept = [set(map(id, share[0])) for share in shared_out(step, 2, whole=True)]
    assert sum(map(len, kept)) == len(step)
    sequences = [
        {number for batch in step if id(batch) in own for number in _sequences(batch)}
        for own in kept
    ]
    assert not sequences[0] & sequences[1] and all(sequences)


def _sequences(batch: MicroBatch) -> list[int]:
    return batch.sequences_K.tolist()


JOINED = {
    "WORLD_SIZE": "2",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("sharding", "set_to", "refused"),
    [
        ("none", {"WORLD_SIZE": "2"}, "runs in one process, but 2 were started"),
        ("none", {"OMPI_COMM_WORLD_SIZE": "2"}, "runs in one process, but 2 were started"),
        ("ddp", {}, "this one was started alone"),
        ("ddp", {"ACCELERATE_USE_CPU": "True"}, "`accelerate launch` starts one"),
        ("ddp", {"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun started these 2 processes"),
        (
            "fsdp2",
            {"WORLD_SIZE": "2", "RANK": "0"},
            "LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set",
        ),
        (
            "fsdp2",
            {**JOINED, "ACCELERATE_USE_FSDP": "true"},
            "configured to share the weights in another way",
        ),
    ],
)
def test_processes_that_were_started_otherwise_are_refused(
    sharding: str, set_to: dict[str, str], refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*JOINED, "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=refused):
        require_ranks(sharding)


def test_processes_that_were_started_as_they_have_to_be_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in JOINED.items():
        monkeypatch.setenv(name, value)
    assert require_ranks("ddp") == 2
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert require_ranks("fsdp2") == 1
    assert require_ranks("none") == 1


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"sharding": "ddp", "processes": 2}, "does not go with processes"),
        ({"sharding": "ddp", "source": ("runs/a",)}, "does not go with --from"),
        ({"sharding": "fsdp2", "lora_rank": 4}, "does not go with lora_rank"),
        ({"sharding": "fsdp2", "optimizer": "adamw8bit"}, "does not go with optimizer = adamw8bit"),
    ],
)
def test_what_ranks_cannot_do_is_refused(keys: dict[str, object], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        GrpoConfig.of(**keys)
