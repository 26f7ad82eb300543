"""The cold start that the package ships, through the graphs, the engine and the sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.models import load_policy
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.runtime.episode import Episode
from hrm_agent.runtime.settings import RunSettings
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.evaluation.evaluate import evaluate
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.rollout.rollout import open_run
from hrm_agent.training.tasks.word_problems import problem
from hrm_agent.trajectory import TaskRef

pytestmark = pytest.mark.whole

COLD_START = "builtin:cold-start"


@pytest.fixture(scope="module")
def policy():
    return load_policy(COLD_START)


def test_the_files_are_small_and_complete():
    folder = Path(model_folder(COLD_START))
    assert (folder / "model.safetensors").stat().st_size < 5_000_000
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    assert "Figures" in (folder / "README.md").read_text()
    assert (folder / "tokenizer.json").exists()
    assert "generation" in (folder / "chat_template.jinja").read_text()


async def test_the_tool_loop_is_half_right_and_sloppy(policy, tmp_path):
    """Sloppy by construction: at most seven in ten traces use the tool, of which four in ten fail
    first.
    """
    asked = CollectConfig(
        policy=COLD_START, count=128, seed=11, context={"max_turns": 6, "max_tokens": 256}
    )
    found = evaluate(await collect(asked, tmp_path, backend=policy))
    assert 0.4 <= found.pass_at_1 <= 0.72
    assert 0.2 <= found.correct_with_tool_error <= 0.6


async def test_the_roles_solve_held_out_problems_together(policy, tmp_path):
    asked = CollectConfig(policy=COLD_START, count=30, seed=12, graph="reasoning", temperature=0)
    found = evaluate(await collect(asked, tmp_path, backend=policy))
    assert found.pass_at_1 >= 0.75


async def test_the_tank_comes_out_to_the_cent(policy, tmp_path):
    tank = problem("tank", (1200, 2, 3, 150))
    assert tank is not None
    task = TaskRef(id="tank", family="word_problems", prompt=tank.prompt("exact"))
    async with open_run(tmp_path, COLD_START, RunSettings(temperature=0), backend=policy) as runner:
        run = await runner.run(Episode(task, "tank", graph="reasoning"))
    assert run.answer == "Answer: 1279.43"
