from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.builders import tiny_model
from tests.training.test_loss import random_rows
from training.batch import micro_batches
from training.update import policy_update

PROJECT = Path(__file__).resolve().parents[2]


def test_two_ranks_with_unequal_shares_equal_one_process(tmp_path):
    output = tmp_path / "result.pt"
    worker = [str(PROJECT / "tests" / "training" / "ddp_worker.py"), str(output)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *worker]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = torch.load(output)

    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    expected = policy_update(model, optimizer, micro_batches(random_rows(0), token_budget=10_000))
    assert result["metrics"]["trained_tokens"] == expected["trained_tokens"]
    assert (result["metrics"]["micro_batches"], result["none"]["stepped"]) == (5, 0)
    for name in expected.keys() - {"micro_batches"}:
        assert result["metrics"][name] == pytest.approx(expected[name], abs=1e-5), name
    for name, weight in model.state_dict().items():
        assert torch.allclose(result["weights"][name], weight, atol=1e-6), name
