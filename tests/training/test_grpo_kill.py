"""`kill -9` of training: with one seed the weights are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hrm_agent.store import open_store
from hrm_agent.trajectory.lint import lint
from training.configs import GrpoConfig
from training.grpo import train
from training.metrics import read_metrics

CONFIG = GrpoConfig(steps=3, prompts_per_step=4, group_size=4, seed=5, context={"max_turns": 4, "max_tokens": 96})
PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.training.test_grpo_kill import CONFIG
from training.grpo import train
asyncio.run(train(CONFIG, Path(sys.argv[1]), on_step=lambda row: print("step", flush=True),
                  on_rollout=lambda t: print("rollout", flush=True)))
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    asyncio.run(train(CONFIG, folder))
    return folder


def killed_after(folder: Path, what: str, count: int) -> None:
    """Train in another process and kill it when it has said `what` so many times."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        count -= line.strip() == what
        if count == 0:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()


def tokens(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    with open_store(folder / "store.db") as store:
        return {t.thread_id: [call.token_ids for call in t.calls] for t in store.journal.trajectories()}


@pytest.mark.parametrize(
    ("what", "count", "tolerance"),
    [("step", 1, 0.0), ("step", 2, 0.0), ("rollout", 17, 1e-5), ("rollout", 70, 1e-5)],
    ids=["after step 1", "after step 2", "inside step 1", "inside step 3"],
)
def test_resumed_training_equals_an_undisturbed_run(
    what: str, count: int, tolerance: float, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    killed_after(folder, what, count)
    assert not (folder / "model").exists(), "the kill came too late to test anything"
    asyncio.run(train(CONFIG, folder))
    assert tokens(folder) == tokens(undisturbed)
    ours, theirs = (load_file(f / "model" / "model.safetensors") for f in (folder, undisturbed))
    assert ours.keys() == theirs.keys()
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=0, atol=tolerance)
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [0, 1, 2]


def test_what_was_trained_on_passes_the_linter(undisturbed: Path) -> None:
    with open_store(undisturbed / "store.db") as store:
        trajectories = list(store.journal.trajectories())
        overlays = store.journal.overlays("run")
    assert len(trajectories) == len(overlays) == 3 * 4 * 8
    assert [finding for t in trajectories for finding in lint(t)] == []
    assert all(t.trainable for t in trajectories)
    assert {t.policy_version for t in trajectories} == {0, 1, 2}


def test_training_moves_the_weights(undisturbed: Path) -> None:
    from hrm_agent.models.load import model_folder

    before = load_file(Path(model_folder(CONFIG.policy)) / "model.safetensors")
    after = load_file(undisturbed / "model" / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.isfinite(weights).all() for weights in after.values())
