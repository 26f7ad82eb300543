"""`kill -9` of a training with all that it may hold: stages, refill, mastered problems,
evaluations, checkpoints, kept versions.
"""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import TrainingStage
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.versions import Versions
from hrm_agent.trajectory import Verdict
from tests.support.training.killed_training import assert_same_weights, forked, sampled_tokens

CONFIG = GrpoConfig.of(
    stages=(
        TrainingStage(name="short", steps=2, rollout_tokens=48, turns=2),
        TrainingStage(
            name="long",
            steps=2,
            rollout_tokens=96,
            turns=3,
            leave_out_solved=2,
            reset_optimizer=True,
        ),
    ),
    prompts_per_step=2,
    group_size=2,
    refill=2,
    problems=8,
    mastered_after=1,
    eval_every=2,
    eval_problems=4,
    stage_models=True,
    keep_versions=1,
    cooldown=0.0,
    seed=3,
)
PHASES = ("rollout", "reward", "select", "update", "evaluation")
FEW, MANY = 1, int(os.environ.get("HRM_AGENT_TEST_KILLS", "8"))
"""Number of kills in the default tests, and in the slow ones."""
SYNCS = 40
"""Number greater than that of the files in the checkpoints of the first steps."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert forked(CONFIG, folder) == 0
    return folder


def facts(folder: Path) -> dict[str, Any]:
    with open_store(folder / "store.db") as store:
        verdicts = {(o.step, o.group_id): o.verdict for o in store.journal.overlays("run")}
    names = (
        "step",
        "stage",
        "rollout/correct",
        "select/refilled",
        "select/unfilled",
        "select/mastered",
        "eval/correct",
    )
    rows = [{name: row[name] for name in names} for row in read_metrics(folder / "metrics.jsonl")]
    return {"tokens": sampled_tokens(folder), "verdicts": verdicts, "rows": rows}


def test_the_undisturbed_run_has_all_that_is_to_be_killed(undisturbed: Path) -> None:
    found = facts(undisturbed)
    rows = found["rows"]
    assert [row["stage"] for row in rows] == [0, 0, 1, 1]
    assert any(row["select/refilled"] for row in rows) and any(
        row["select/mastered"] for row in rows
    )
    assert [row["eval/correct"] is not None for row in rows] == [False, True, False, True]
    assert (
        any("/pool-1/" in thread for thread in found["tokens"]) and (undisturbed / "best").is_dir()
    )
    assert Verdict.GROUP_REJECTED in found["verdicts"].values()


def test_the_page_of_metrics_lists_what_a_row_has(undisturbed: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = read_metrics(undisturbed / "metrics.jsonl")
    assert all(row.keys() == rows[0].keys() for row in rows)
    tables = [
        line.split("|")[1]
        for line in page.split("## Speed")[0].splitlines()
        if line.startswith("| `")
    ]
    listed = {name for cell in tables for name in re.findall(r"`([^`]+)`", cell)}
    times = {f"{phase}_{kind}" for phase in PHASES for kind in ("seconds", "cpu_seconds")}
    of_forks = {name for name in listed if name.startswith("forks/")}  # of runs that make some
    assert listed - of_forks | times | {"roles", "families"} == rows[0].keys()
    (of_role,) = {frozenset(each) for row in rows for each in row["roles"].values()}
    section = page.split("## Roles")[1].split("##")[0]
    assert of_role == set(re.findall(r"`([a-z_]+)` \(", section))


@pytest.mark.parametrize(
    "seed",
    [*range(FEW), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(FEW, MANY))],
)
def test_a_run_that_is_killed_anywhere_comes_to_the_same(
    seed: int, undisturbed: Path, tmp_path: Path
) -> None:
    rng, folder = random.Random(seed), tmp_path / "run"
    rollouts = len(facts(undisturbed)["tokens"])
    event = ("rollout", "rollout", "step", "sync")[seed % 4]
    most = {"rollout": rollouts, "step": CONFIG.steps, "sync": SYNCS}[event]
    assert forked(CONFIG, folder, event, rng.randint(1, most)) in (-signal.SIGKILL, 0)
    assert forked(CONFIG, folder) == 0
    assert facts(folder) == facts(undisturbed)
    assert_same_weights(folder, undisturbed, atol=1e-5)
    assert_same_weights(folder, undisturbed, atol=1e-5, model="stages/1")
    kept = Versions(folder)
    with kept.opened([1, 2, 3, 4]) as versions:
        assert [number for number, _ in versions] == kept.numbers
