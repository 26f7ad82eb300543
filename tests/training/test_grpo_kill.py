"""`kill -9` of training: with one seed the weights are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hrm_agent.errors import RunError
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.trajectory.lint import lint
from tests.support.training.kill_moments import asked_for, moments
from tests.support.training.killed_training import assert_same_weights, killed_runs, sampled_tokens

pytestmark = pytest.mark.whole

CONFIG = GrpoConfig.of(
    steps=3,
    prompts_per_step=2,
    group_size=2,
    seed=5,
    cooldown=0.0,
    context={"max_turns": 4, "max_tokens": 96},
)
ROLLOUTS = 2 * CONFIG.rollout.group_size * CONFIG.rollout.prompts_per_step
"""Number of rollouts of one step."""
KILLS = {
    "after step 1": ("step", 1),
    "after step 2": ("step", 2),
    "inside step 1": ("rollout", ROLLOUTS // 2),
    "inside step 3": ("rollout", 2 * ROLLOUTS + 3),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    asyncio.run(train(CONFIG, folder))
    return folder


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that killed themselves at the moment when they had ended so many steps or rollouts, by
    name.
    """
    return killed_runs(CONFIG, tmp_path_factory.mktemp("killed"), asked_for(KILLS, request))


@pytest.mark.parametrize("name", moments(KILLS, "after step 1", "inside step 3"))
def test_resumed_training_equals_an_undisturbed_run(
    name: str, undisturbed: Path, killed: Path
) -> None:
    folder = killed / name / "run"
    asyncio.run(train(CONFIG, folder))
    assert sampled_tokens(folder) == sampled_tokens(undisturbed)
    assert_same_weights(folder, undisturbed, atol=0.0 if name.startswith("after") else 1e-5)
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [0, 1, 2]


def test_a_prolonged_run_and_one_with_a_damaged_checkpoint_equal_an_undisturbed_one(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    asyncio.run(train(CONFIG.model_copy(update={"steps": 2}), folder))
    newest = folder / "checkpoints" / "step-000002" / "optimizer.pt"
    newest.write_bytes(newest.read_bytes()[:100])
    rollouts: list[str] = []
    asyncio.run(train(CONFIG, folder, on_rollout=lambda each: rollouts.append(each.thread_id)))
    assert "optimizer.pt has 100 bytes" in capsys.readouterr().err
    assert len(rollouts) == 2 * ROLLOUTS, "the second step is taken again, from the record"
    assert sampled_tokens(folder) == sampled_tokens(undisturbed)
    assert (folder / "model" / "model.safetensors").read_bytes() == (
        undisturbed / "model" / "model.safetensors"
    ).read_bytes()
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [0, 1, 2]
    with pytest.raises(RunError, match="has taken 3 steps: it cannot end after 2"):
        asyncio.run(train(CONFIG.model_copy(update={"steps": 2}), folder))


def test_rollouts_of_other_tasks_on_record_are_not_trained_on(
    undisturbed: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(RunError, match="step would draw"):
        asyncio.run(train(CONFIG.model_copy(update={"tasks": "reasoning_gym:gcd"}), folder))


def test_what_was_trained_on_passes_the_linter(undisturbed: Path) -> None:
    with open_store(undisturbed / "store.db") as store:
        trajectories = list(store.journal.trajectories())
        overlays = store.journal.overlays("run")
    assert len(trajectories) == len(overlays) == CONFIG.steps * ROLLOUTS
    assert [finding for t in trajectories for finding in lint(t)] == []
    assert all(t.trainable for t in trajectories)
    assert {t.policy_version for t in trajectories} == {0, 1, 2}


def test_training_moves_the_weights(undisturbed: Path) -> None:
    from hrm_agent.models.loading.policy_loader import model_folder

    before = load_file(Path(model_folder(CONFIG.policy)) / "model.safetensors")
    after = load_file(undisturbed / "model" / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.isfinite(weights).all() for weights in after.values())
