"""A real server split over two workers, in half precision: even the smallest missing step is
detected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hrm_agent.errors import ModelError
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.vllm.weights import EXTENSION_FOLDER
from tests.models.vllm.fleet_checks import POLICY, asked, end_of
from tests.support.vllm.fleet import FAULTY, IN_SERVER, opened_fleet, set_fault
from tests.support.vllm.server import MISSING, VllmServer, find_python

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


def changed(model: Any, seed: int) -> dict[str, torch.Tensor]:
    """Change each weight by 1e-6 up or down, and return the weights by name."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1e-6 * torch.randn(weight.shape, generator=generator).sign()
    return dict(model.named_parameters())


def test_a_publish_that_one_worker_or_all_ignore_is_noticed_and_so_is_a_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, policy = find_python(), model_folder(POLICY)
    if python is None:
        pytest.fail(MISSING, pytrace=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model, tokenizer = load_pretrained(policy, dtype="float32")
    split = ("--dtype", "bfloat16", "--tensor-parallel-size", "2", *FAULTY)
    server = VllmServer(python, policy, tmp_path, *split, path=f"{EXTENSION_FOLDER}:{IN_SERVER}")
    try:
        with opened_fleet(
            server, python, tmp_path, policy, model, tokenizer, own=0, assign="least_requests"
        ) as fleet:
            for version, fault in enumerate(("stale", "half"), 1):
                fleet.publish(10 * version, changed(model, 10 * version))
                set_fault(server, fault)
                with pytest.raises(
                    ModelError, match=r"allowed in bfloat16\. It differs in: .*model\.layers\.0"
                ):
                    fleet.publish(10 * version + 1, changed(model, version))
                set_fault(server, "none")
            fleet.publish(30, changed(model, 30))
            assert asked(fleet, 1, max_tokens=4)[0].result(300).policy_version == 30
            end_of(fleet, 1)
            fleet.vouch()
            set_fault(server, "nudged")
            asked(fleet, 1, max_tokens=4)[0].result(300)
            with pytest.raises(ModelError, match="Something has written over its weights"):
                fleet.vouch()
    finally:
        server.stop()
