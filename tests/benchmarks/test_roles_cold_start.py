"""The cold start of the roles that the package ships: its card, and what its roles do."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.small_policy.cards import faults_of_card, figures_of_card
from benchmarks.small_policy.figures import measure_roles
from benchmarks.small_policy.inputs import inputs_of_card, roles_inputs
from hrm_agent.models import load_policy
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.evaluation.evaluate import evaluate
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.small_policy.fault_counts import fault_shares
from hrm_agent.training.small_policy.role_faults import RoleFaults

NAME = "builtin:roles-cold-start"
FAULTS = [field.name for field in fields(RoleFaults)]


@pytest.fixture(scope="module")
def card() -> str:
    return (Path(model_folder(NAME)) / "README.md").read_text(encoding="utf-8")


def test_the_card_has_something_to_learn_in_every_role(card: str) -> None:
    rollouts, correct, _ = figures_of_card(card)["reasoning"]
    assert rollouts == 256 and 0.4 <= correct <= 0.6
    faults = faults_of_card(card)
    assert sorted(faults) == sorted(FAULTS)
    assert all(made >= 5 for made, _ in faults.values())


def test_the_card_tells_the_shares_that_were_demonstrated(card: str) -> None:
    told = [f"{getattr(RoleFaults(), fault):.0%} of" for fault in FAULTS]
    assert [share for share in told if share not in card] == []


def test_the_tool_loop_is_kept(card: str) -> None:
    before = (Path(model_folder("builtin:cold-start")) / "README.md").read_text(encoding="utf-8")
    assert figures_of_card(card)["tool_loop"][1] == pytest.approx(
        figures_of_card(before)["tool_loop"][1], abs=0.1
    )


@pytest.mark.slow
async def test_it_answers_and_errs_by_chance_and_not_for_want_of_knowing(tmp_path: Path) -> None:
    """Problems are mostly solved at temperature 0. At 1, a quarter to three quarters are solved,
    and every role makes errors.
    """
    asked = CollectConfig(policy=NAME, count=60, seed=7, graph="reasoning")
    policy = load_policy(NAME)
    sampled = await collect(asked, tmp_path / "1", backend=policy)
    greedy = await collect(
        asked.model_copy(update={"temperature": 0.0}), tmp_path / "0", backend=policy
    )
    assert evaluate(greedy).pass_at_1 >= 0.85
    assert 0.25 <= evaluate(sampled).pass_at_1 <= 0.75
    made = {fault: share.made for fault, share in fault_shares(sampled).items()}
    roles = {fault.partition("_")[0] for fault, count in made.items() if count}
    assert roles == {"plan", "solve", "critique", "synthesize"}
    assert sum(share.made for share in fault_shares(greedy).values()) < sum(made.values()) / 4


@pytest.mark.whole
def test_the_weights_are_of_the_present_recipe(card: str) -> None:
    """`test_rebuild.py` compares the inputs of the cold start itself."""
    cold = Path(model_folder("builtin:cold-start"))
    made_from = inputs_of_card((cold / "README.md").read_text(encoding="utf-8"))
    said = inputs_of_card(card)
    assert made_from is not None and said is not None
    assert roles_inputs(cold, made_from).agree_with(said)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_figures_are_those_of_the_weights(card: str, tmp_path: Path) -> None:
    found = measure_roles(NAME, tmp_path, samples=1)
    said = figures_of_card(card)
    for graph, figures in found.by_graph.items():
        assert figures.correct == pytest.approx(said[graph][1], abs=0.05)
    for fault, (made, chances) in faults_of_card(card).items():
        assert found.faults[fault].share == pytest.approx(made / chances, abs=0.1)
