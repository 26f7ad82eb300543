from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hrm_agent.training.update.batch import micro_batches
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import policy_update
from tests.support.postgres import free_port
from tests.support.training.builders import model_with_unused_parts, tiny_model
from tests.support.training.ddp_worker import SEVERAL_STEPS, unused_parts, update_unused_parts
from tests.training.update.test_loss import random_rows
from tests.training.update.test_optimizer_step import numbered

pytestmark = [pytest.mark.whole, pytest.mark.slow]

ENGINE = LossOptions(old_logprobs="engine")
PROJECT = Path(__file__).resolve().parents[3]


def run_ranks(count: int, *arguments: str) -> None:
    """Start the ranks as torchrun would,
    on the loopback interface whatever name this machine has.
    """
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
    command = [
        sys.executable,
        str(PROJECT / "tests" / "support" / "training" / "ddp_worker.py"),
        *arguments,
    ]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=PROJECT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=280)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in ranks:
            rank.kill()


def test_two_ranks_with_unequal_shares_equal_one_process(tmp_path):
    output = tmp_path / "result.pt"
    run_ranks(2, str(output))
    result = torch.load(output)

    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    expected = policy_update(
        model, optimizer, micro_batches(random_rows(0), token_budget=10_000), loss=ENGINE
    )
    assert result["metrics"]["trained_tokens"] == expected["trained_tokens"]
    assert (result["metrics"]["micro_batches"], result["none"]["stepped"]) == (5, 0)
    for name in expected.keys() - {"micro_batches"}:
        assert result["metrics"][name] == pytest.approx(expected[name], abs=1e-5, nan_ok=True), name
    assert_equal(result["first"], model.state_dict())

    rows = numbered(random_rows(1, 8))
    parts = [
        micro_batches([r for r in rows if r.sequence in part], token_budget=1)
        for part in ((0, 1, 2), (3,))
    ]
    expected = policy_update(model, optimizer, parts, **SEVERAL_STEPS)
    assert (expected["optimizer_steps"], expected["staleness_mean"]) == (4, 1)
    for name in expected.keys() - {"micro_batches", "skipped"}:
        assert result["several"][name] == pytest.approx(expected[name], abs=1e-4, nan_ok=True), name
    assert_equal(result["weights"], model.state_dict())


def test_parts_that_a_rank_or_all_ranks_do_not_use_are_those_of_one_process(tmp_path):
    run_ranks(2, str(tmp_path / "result"), "unused")
    expected = update_unused_parts([row for part in unused_parts() for row in part], None)
    start = model_with_unused_parts().state_dict()
    assert torch.equal(expected["weights"]["tower.weight"], start["tower.weight"]), (
        "not even its weight decays"
    )
    for rank in range(2):
        result = torch.load(tmp_path / f"result.{rank}")
        assert_equal(result["weights"], expected["weights"])
        assert result["with_state"] == expected["with_state"]
        for ours, theirs in zip(result["metrics"], expected["metrics"], strict=True):
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
    rare = "model.layers.0.mlp.expert.weight"
    assert (expected["weights"][rare] - start[rare]).abs().max() > 5e-3
    assert "tower.weight" not in expected["with_state"]


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name, weight in theirs.items():
        assert torch.allclose(ours[name], weight, atol=2e-6), name
