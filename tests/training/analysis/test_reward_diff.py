"""Comparison of two rewards, against the recorded step and automatic differentiation."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hrm_agent.training.analysis.reward_diff import PredictedChange, reward_difference
from hrm_agent.training.analysis.reward_diff.judged import Scores, judged, scores_by
from hrm_agent.training.analysis.reward_diff.measures import Measured, changes_of, measured
from hrm_agent.training.analysis.reward_diff.updates import updates_of
from hrm_agent.training.analysis.reward_diff.warnings import warnings_of
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.records.retrace import RecordedTraining, opened_training
from hrm_agent.training.update.optimizers import moments_of
from hrm_agent.trajectory import RunStatus, StopReason
from tests.support.trajectory.samples import make_call, make_trajectory

CONFIG = GrpoConfig.of(steps=2, prompts_per_step=3, group_size=4, keep_versions=1, seed=3)
REWARDS = "tests.support.training.compared_rewards"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff") / "run"
    asyncio.run(train(CONFIG, folder))
    return folder


@pytest.fixture
def training(folder: Path) -> Iterator[RecordedTraining]:
    with opened_training(folder, CONFIG) as training:
        yield training


def test_the_training_s_own_reward_gives_its_verdicts_and_its_gradient(
    training: RecordedTraining,
) -> None:
    step = training.step(1)
    scores = asyncio.run(scores_by(training, [step], "verifier"))
    again = judged(step, scores, training.run_id)
    assert again.overlays == step.overlays
    found = updates_of(training, step, again)
    assert found.inner == pytest.approx(found.old.norm**2) == pytest.approx(found.new.norm**2)
    # AdamW's own step, without its momentum
    beta1 = CONFIG.optim.adam_beta1
    training.load(1)
    before = [each and each.mean.clone() for each in moments_of(training.learner.optimizer)]
    row = training.take(step)
    assert row["grad_norm"] == pytest.approx(training.rows[1]["grad_norm"])
    after = moments_of(training.learner.optimizer)
    for mean, moment, ours in zip(before, after, found.old.direction, strict=True):
        assert mean is not None and moment is not None
        theirs = -step.rate * (moment.mean - beta1 * mean) / (1 - beta1) / moment.root
        large = moment.root > 0.02 * moment.root.mean()  # smaller ones are damped
        assert (ours - theirs)[large].norm() < 0.01 * theirs[large].norm()


def test_changes_of_log_probs_are_those_along_the_update(training: RecordedTraining) -> None:
    step = training.step(1)
    found = updates_of(training, step, step)
    call = step.rollouts[0].calls[0]
    training.load(1)
    model: Any = training.learner.model
    weights = [each for each in model.parameters() if each.requires_grad]
    ids = torch.tensor([list(call.token_ids)])
    logprobs = model(ids).logits[0, :-1].log_softmax(-1)
    own = torch.tensor(call.mask)[1:]
    chosen = logprobs.gather(-1, ids[0, 1:, None])[:, 0][own]
    for place in (0, len(chosen) - 1):
        gradient = torch.autograd.grad(chosen[place], weights, retain_graph=True)
        along = sum(
            float((g * u).sum()) for g, u in zip(gradient, found.old.direction, strict=True)
        )
        assert found.old.changes[call.id][place] == pytest.approx(along, rel=0.02, abs=1e-4)


def test_a_reward_that_pays_for_no_tool(training: RecordedTraining) -> None:
    found = reward_difference(training, "verifier", f"{REWARDS}:no_tool", [0, 1])
    rollouts = [each for number in (0, 1) for each in training.step(number).rollouts]
    right = {each.id: each.outcome == 1 for each in rollouts}
    unaided = {each.id: not each.own_tool_calls for each in rollouts}
    assert found.flips.rollouts == len(rollouts) == len(found.rollouts)
    assert found.flips.right_by_old == sum(right[id_] and not unaided[id_] for id_ in right)
    assert found.flips.right_by_new == sum(unaided[id_] and not right[id_] for id_ in right)
    for each in found.rollouts:
        assert each.new.reward == unaided[each.trajectory_id]
        assert each.old.reason == f"correct {right[each.trajectory_id]:g}"
    assert found.roles == {"reason": (1.0, 1.0)}
    assert found.cosine < 0.5
    assert found.changes["tool_use"].old > 0 > found.changes["tool_use"].new
    assert {"no_tool"} <= {each.kind for each in found.warnings}
    assert found.up[0].new > 0 > found.up[0].old and found.down[0].new < 0 < found.down[0].old
    texts = "".join(each.text for each in found.rollouts[0].tokens)
    assert texts.startswith("<reason>") and found.rollouts[-1].tokens == ()
    assert training.store.scorings.rubrics() == []  # nothing is written


def test_a_reward_of_the_same_order_teaches_the_same(training: RecordedTraining) -> None:
    found = reward_difference(training, "verifier", f"{REWARDS}:scaled", [1])
    assert found.cosine == pytest.approx(1, abs=1e-4)
    assert all(
        abs(each.difference) <= 0.01 * abs(each.old) + 1e-6 for each in found.changes.values()
    )
    assert (found.flips.down, found.flips.up, found.warnings) == (0, 0, ())


def test_a_constant_reward_has_no_update(training: RecordedTraining) -> None:
    found = reward_difference(training, "verifier", f"{REWARDS}:constant", [1])
    assert found.norms[1] == 0 and math.isnan(found.cosine)
    assert all(each.new == 0 for each in found.changes.values())
    assert "no_signal" in {each.kind for each in found.warnings}


def two_choices(answers: Sequence[tuple[int, int]], changes: Mapping[int, float]) -> list[Measured]:
    """Rollouts that sample two tokens. The first one decides about `accuracy`."""
    found: list[Measured] = []
    for number, tokens in enumerate(answers):
        call = make_call(f"task-{number}", token_ids=(5, *tokens), mask=(False, True, True))
        rollout = make_trajectory(calls=(call,), sample_index=number)
        along = {call.id: [changes[each] for each in tokens]}
        right = float(tokens[0] == 1)
        found.append(Measured(rollout, 0, right, right, 2.0, 0.0, along, along))
    return found


def test_a_reward_that_fails_for_some_rollouts_is_reported(training: RecordedTraining) -> None:
    found = reward_difference(training, "verifier", f"{REWARDS}:half", [1])
    without = sum(not each.own_tool_calls for each in training.step(1).rollouts)
    assert 0 < without == found.flips.missing_by_new
    assert found.flips.missing_by_old == 0
    warning = next(each for each in found.warnings if each.kind == "no_value")
    assert f"for {without} of" in warning.text and "no tool" in warning.text
    assert not any(each.new.kept for each in found.rollouts)
    assert [each.kind for each in found.warnings][:2] == ["no_value", "trains_nothing"]
    assert not any(each.kind == "accuracy" for each in found.warnings)


def test_a_predicted_change_is_exact_for_a_known_policy() -> None:
    """All answers of a policy with two choices, each as often as it is probable."""
    answers = list(itertools.product((1, 1, 1, 2), (3, 4)))
    # the log-probs of a softmax over logits change so if logit 1 rises by 1 and logit 3 by 5
    changes = {1: 0.25, 2: -0.75, 3: 2.5, 4: -2.5}
    found = changes_of(two_choices(answers, changes))["accuracy"]
    # n / (n - 1) of p (1 - p), as of a sample's variance
    assert found.new == pytest.approx(0.75 * 0.25 * 8 / 7)
    assert isinstance(found, PredictedChange) and math.isnan(found.new_error)


def test_changes_after_the_choice_do_not_disturb_the_prediction() -> None:
    answers = [(1, 3), (1, 4), (2, 5), (2, 6)]
    quiet = dict.fromkeys((3, 4, 5, 6), 0.0) | {1: 0.5, 2: -0.5}
    loud = quiet | {3: 9.0, 4: -2.0, 5: 7.0, 6: 1.0}
    calm, wild = (changes_of(two_choices(answers, each))["accuracy"].new for each in (quiet, loud))
    assert calm == pytest.approx(wild) == pytest.approx(0.25 * 4 / 3)


def test_accuracy_is_left_out_without_a_verifier_and_zero_for_what_the_policy_made_fail() -> None:
    failed = make_trajectory(
        status=RunStatus.FAILED, stop_reason=StopReason.UNUSABLE_ANSWER, rewards={}
    )
    known, unknown = (
        measured(0, [make_trajectory(), failed], Scores("verifier", scores), {}, {})
        for scores in (None, {})
    )
    assert [each.accuracy for each in known] == [1.0, 0.0]
    assert [each.accuracy for each in unknown] == [None, 0.0]
    assert changes_of(unknown).keys() == {"tool_use", "length", "tool_errors"}


def test_no_warning_without_rollouts() -> None:
    assert warnings_of([], {}, {}, {}, {}, str) == []


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"lora_roles": ("plan", "solve"), "lora_rank": 4}, {}])
def test_roles_share_the_update(settings: dict[str, Any], tmp_path: Path) -> None:
    config = GrpoConfig.of(
        policy="builtin:roles-cold-start",
        graph="reasoning",
        steps=1,
        prompts_per_step=2,
        group_size=3,
        keep_versions=1,
        seed=5,
        **settings,
    )
    asyncio.run(train(config, tmp_path / "run"))
    with opened_training(tmp_path / "run", config) as training:
        found = reward_difference(training, "verifier", f"{REWARDS}:no_tool", [0])
        assert len(found.roles) > 1
        for shares in zip(*found.roles.values(), strict=True):
            assert sum(shares) == pytest.approx(1) or all(map(math.isnan, shares))
        step = training.step(0)
        scores = asyncio.run(scores_by(training, [step], f"{REWARDS}:no_tool"))
        updates = updates_of(training, step, judged(step, scores, training.run_id))
        calls = {call.id: call for each in step.rollouts for call in each.own_calls}
        assert updates.new.changes.keys() <= calls.keys()
        for id_, changes in updates.old.changes.items():
            assert len(changes) == sum(calls[id_].mask)
