"""Shipped policies match their sources. They are rebuilt if the sources changed, and otherwise
compared with their cards.
"""

from __future__ import annotations

import sys
import warnings
from math import sqrt
from pathlib import Path

import pytest

from benchmarks.small_policy.build import main
from benchmarks.small_policy.cards import figures_of_card, read_spread
from benchmarks.small_policy.figures import measure
from benchmarks.small_policy.inputs import (
    cold_start_inputs,
    inputs_of_card,
    stale,
    trained_digest,
)
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.training.small_policy.trained import REINFORCEMENT, card_of

POLICIES = ("cold-start", "trained")


def shipped(name: str) -> Path:
    return Path(model_folder(f"builtin:{name}"))


def card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.whole
def test_cards_say_what_the_weights_were_made_from() -> None:
    """A stale card does not fail here, since `test_the_shipped_policies_are_what_their_cards_say`
    rebuilds them.
    """
    said = {name: inputs_of_card(card(shipped(name))) for name in POLICIES}
    assert all(said.values()), "A card names no inputs: build the policies with `make policy`."
    if not cold_start_inputs().agree_with(said["cold-start"]):
        told = (
            "The shipped policies are not what the sources would make now: build them with `make"
            " policy`."
        )
        sys.stdout.write(told + "\n")
        warnings.warn(told, stacklevel=1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_shipped_policies_are_what_their_cards_say(tmp_path: Path) -> None:
    folder = shipped("trained").parent
    old = [name for name in stale(folder) if name in POLICIES]
    if old:
        folder = tmp_path / "built"
        main(["--out", str(folder), "--runs", str(tmp_path / "runs")])
        found = {name: figures_of_card(card(folder / name)) for name in POLICIES}
    else:
        measured = {name: measure(f"builtin:{name}", tmp_path / name) for name in POLICIES}
        found = {
            name: {graph: (f.rollouts, f.correct, f.tool_errors) for graph, f in graphs.items()}
            for name, graphs in measured.items()
        }
    for name in POLICIES:
        said = figures_of_card(card(shipped(name)))
        assert found[name].keys() == said.keys() == {"tool_loop", "reasoning"}
        for graph, (rollouts, correct, errors) in found[name].items():
            _, card_correct, card_errors = said[graph]
            # Rebuilt weights are other weights: two draws from the builds. The same weights differ
            # by rounding at most.
            allowed = (
                0.1 if old else max(0.01, 2 * sqrt(card_correct * (1 - card_correct) / rollouts))
            )
            assert correct == pytest.approx(card_correct, abs=allowed), f"{name}, {graph}"
            assert errors == pytest.approx(card_errors, abs=allowed), (
                f"{name}, {graph}, tool errors"
            )
    cold, trained = (found[name]["tool_loop"] for name in POLICIES)
    assert 0.5 <= cold[1] <= 0.65
    assert trained[1] >= 0.80 and trained[2] <= cold[2] / 5


def test_the_card_of_a_build_is_written_from_the_configuration() -> None:
    text = card_of(REINFORCEMENT)
    assert (
        "30 steps of grpo-roc" in text and "16 rollouts each" in text and "clip 0.2 / 0.28" in text
    )


def test_where_a_key_stands_makes_no_weights_stale() -> None:
    said = {name: inputs_of_card(card(shipped(name))) for name in POLICIES}
    cold, trained = said["cold-start"], said["trained"]
    assert cold is not None and trained is not None
    assert trained_digest(cold, REINFORCEMENT) == trained.digest
    assert trained_digest(cold, REINFORCEMENT.but(oversampling=2.5)) != trained.digest


@pytest.mark.parametrize("policy", POLICIES)
def test_the_spread_is_of_the_shipped_recipe(policy: str) -> None:
    found, said = (
        inputs_of_card(read_spread()[policy]["inputs"]),
        inputs_of_card(card(shipped(policy))),
    )
    assert found is not None and said is not None and found.agree_with(said)


@pytest.mark.parametrize("graph", ["tool_loop", "reasoning"])
@pytest.mark.parametrize("policy", POLICIES)
def test_builds_from_any_seed_on_any_cpu_are_alike(policy: str, graph: str) -> None:
    found = read_spread()[policy]["figures"][f"{graph}, correct"]
    assert max(found["largest"] - found["mean"], found["mean"] - found["smallest"]) <= 0.05


def test_every_cold_start_has_something_to_learn_in_the_tool_loop() -> None:
    found = read_spread()["cold-start"]["figures"]["tool_loop, correct"]
    assert found["smallest"] >= 0.5 and found["largest"] <= 0.65
