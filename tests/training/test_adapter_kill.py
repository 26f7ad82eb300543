"""`kill -9` of a training of an adapter, on whole weights and on weights in 4 bits: it comes to the same adapter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hrm_agent.training.configs import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics

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
KILLS = {"after step 1": ("step", 1), "inside step 2": ("rollout", 8 + 3)}
PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.training.test_adapter_kill import CONFIGS, KILLS
from hrm_agent.training.grpo import train

def run(kind, name):
    what, count = KILLS[name]
    def happened(event):
        nonlocal count
        count -= event == what
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    on = {f"on_{event}": lambda _, event=event: happened(event) for event in ("step", "rollout")}
    asyncio.run(train(CONFIGS[kind], Path(sys.argv[1], name, "run"), **on))

for name in KILLS:
    if (child := os.fork()) == 0:
        run(sys.argv[2], name)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, name
"""


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
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), kind], check=True)
    return folder


@pytest.mark.parametrize("name", KILLS)
def test_a_resumed_run_comes_to_the_adapter_of_an_undisturbed_one(
    kind: str, name: str, undisturbed: Path, killed: Path
) -> None:
    folder = killed / name / "run"
    asyncio.run(train(CONFIGS[kind], folder))
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1] and all(row["stepped"] for row in rows)
    ours, theirs = (_weights(each / "model") for each in (folder, undisturbed))
    assert ours.keys() == theirs.keys()
    # Rollouts that went on together after the kill are batched otherwise than they were before; and solvers that run
    # side by side end in any order, in which their tokens are summed.
    tolerance = 0.0 if name.startswith("after") and kind != "roles" else 1e-4
    for tensor, weights in ours.items():
        torch.testing.assert_close(weights, theirs[tensor], rtol=0, atol=tolerance)
    assert any(weights.abs().max() > 1e-3 for tensor, weights in ours.items() if "lora_B" in tensor)


def _weights(model: Path) -> dict[str, torch.Tensor]:
    """Those of all adapters in a folder."""
    files = sorted(model.rglob("adapter_model.safetensors"))
    return {f"{file.parent.name}/{name}": weight for file in files for name, weight in load_file(file).items()}
