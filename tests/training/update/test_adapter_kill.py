"""`kill -9` of a training of an adapter, on whole weights and on weights in 4 bits: the adapter is
the same.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from tests.support.training.killed_training import assert_same_weights, killed_runs

pytestmark = pytest.mark.slow

PLAIN = GrpoConfig.of(
    steps=2,
    prompts_per_step=2,
    group_size=4,
    seed=0,
    algorithm="grpo",
    cooldown=0.0,
    lora_rank=4,
    lora_dropout=0.1,
    learning_rate=2e-3,
    kl_coef=0.01,
    context={"max_turns": 4, "max_tokens": 96},
)
CONFIGS = {
    "lora": PLAIN,
    "qlora": PLAIN.but(policy="builtin:cold-start?load=nf4", optimizer="adamw8bit"),
    "roles": PLAIN.but(
        policy="builtin:roles-cold-start",
        graph="reasoning",
        context={"max_tokens": 768},
        lora_roles=("plan", "solve", "synthesize"),
        frozen_roles=("plan",),
        lora_dropout=0.0,
        seed=1,
    ),
}
WEIGHTS = "adapter_model.safetensors"
KILLS = {"after step 1": ("step", 1), "inside step 2": ("rollout", 8 + 3)}


@pytest.fixture(scope="module", params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def undisturbed(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(kind) / "run"
    asyncio.run(train(CONFIGS[kind], folder))
    return folder


@pytest.fixture(scope="module")
def killed(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that killed themselves when they had ended so many steps or rollouts, by name."""
    return killed_runs(CONFIGS[kind], tmp_path_factory.mktemp("killed"), KILLS)


@pytest.mark.parametrize("name", KILLS)
def test_a_resumed_run_comes_to_the_adapter_of_an_undisturbed_one(
    kind: str, name: str, undisturbed: Path, killed: Path
) -> None:
    folder = killed / name / "run"
    asyncio.run(train(CONFIGS[kind], folder))
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1] and all(row["stepped"] for row in rows)
    # Rollouts that went on together after the kill are batched otherwise than they were before; and
    # solvers that run side by side end in any order, in which their tokens are summed.
    atol = 0.0 if name.startswith("after") and kind != "roles" else 1e-4
    files = sorted(path.relative_to(folder / "model") for path in (folder / "model").rglob(WEIGHTS))
    assert len(files) == 1 + len(CONFIGS[kind].adapter.lora_roles)
    ours = [assert_same_weights(folder, undisturbed, atol=atol, file=str(file)) for file in files]
    grown = [weights for each in ours for tensor, weights in each.items() if "lora_B" in tensor]
    assert any(weights.abs().max() > 1e-3 for weights in grown)
