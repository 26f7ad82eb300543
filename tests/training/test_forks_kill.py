"""Training on forks: killed, or with worker processes, it has the weights of an undisturbed run, and
trains each sampled token once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.trajectory.lint import lint
from tests.support.training.kill_moments import asked_for, moments
from tests.support.training.killed_training import assert_same_weights, killed_runs, sampled_tokens

pytestmark = pytest.mark.whole

CONFIG = GrpoConfig.of(
    steps=2,
    prompts_per_step=2,
    group_size=6,
    seed=5,
    algorithm="grpo",
    credit="forks",
    forward="tree",
    policy="builtin:roles-cold-start",
    graph="reasoning",
    cooldown=0.0,
)
ROLLOUTS = CONFIG.samples * CONFIG.rollout.prompts_per_step
"""Number of rollouts of one step, forks included."""
KILLS = {
    "before the forks of step 1": ("rollout", 4),
    "amid the forks of step 1": ("rollout", ROLLOUTS - 2),
    "after step 1": ("step", 1),
    "amid the forks of step 2": ("rollout", 2 * ROLLOUTS - 3),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    asyncio.run(train(CONFIG, folder))
    return folder


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_runs(CONFIG, tmp_path_factory.mktemp("killed"), asked_for(KILLS, request))


@pytest.mark.parametrize("name", moments(KILLS, "amid the forks of step 1"))
def test_resumed_training_equals_an_undisturbed_run(
    name: str, undisturbed: Path, killed: Path
) -> None:
    folder = killed / name / "run"
    asyncio.run(train(CONFIG, folder))
    assert sampled_tokens(folder) == sampled_tokens(undisturbed)
    assert_same_weights(folder, undisturbed, atol=0.0 if name.startswith("after") else 1e-5)


def test_with_worker_processes_the_same_tokens_are_sampled(
    undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    asyncio.run(train(CONFIG.but(steps=1, processes=2), folder))
    found = sampled_tokens(folder)
    assert found == {
        name: tokens for name, tokens in sampled_tokens(undisturbed).items() if name in found
    }
    assert len(found) == ROLLOUTS


def test_half_of_each_group_are_forks_and_each_token_is_trained_once(undisturbed: Path) -> None:
    with open_store(undisturbed / "store.db") as store:
        rollouts = list(store.journal.trajectories(run_id="run"))
        overlays = {each.trajectory_id: each for each in store.journal.overlays("run")}
    by_id = {each.id: each for each in rollouts}
    for each in rollouts:
        assert (each.forked_from is not None) == (each.sample_index >= CONFIG.samples // 2)
        if each.forked_from is not None:
            origin = by_id[each.forked_from.trajectory_id]
            shared = [call.id for call in each.calls if call not in each.own_calls]
            assert origin.group_id == each.group_id
            assert shared and shared == [call.id for call in origin.calls[: len(shared)]]
    trained = Counter(id_ for each in overlays.values() for id_ in each.credit or {})
    assert trained and set(trained.values()) == {1}
    assert [finding for each in rollouts for finding in lint(each)] == []
    rows = read_metrics(undisturbed / "metrics.jsonl")
    assert [row["forks/count"] for row in rows] == [ROLLOUTS // 2] * 2
    assert [row["rollout/count"] for row in rows] == [ROLLOUTS // 2] * 2
