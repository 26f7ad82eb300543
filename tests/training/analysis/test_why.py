"""Pushes of a step and its rollouts, against direct computations and planted behaviours."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from operator import mul
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.why.planted import planted
from hrm_agent.errors import ConfigError, ModelError, RunError
from hrm_agent.training.analysis.behaviours import answer_to, tool_called, turn_of
from hrm_agent.training.analysis.why import Behaviour, course, logprob_at, proof, pushes
from hrm_agent.training.analysis.why import _rates as rates_from
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import TrainingStage
from hrm_agent.training.grpo import train
from hrm_agent.training.records.retrace import RecordedTraining, opened_training
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.optimizers import moments_of

CONFIG = GrpoConfig.of(
    steps=4, prompts_per_step=4, group_size=4, keep_versions=1, checkpoints=1, seed=3
)
MARKER = " banana"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why") / "run"
    asyncio.run(train(CONFIG, folder))
    return folder


@pytest.fixture
def training(folder: Path) -> Iterator[RecordedTraining]:
    with opened_training(folder, CONFIG) as training:
        yield training


def first_turn(training: RecordedTraining) -> Behaviour:
    return turn_of(training, "run/step-2/0/0", 1, None)


def test_probabilities_are_those_of_the_policy_that_sampled(training: RecordedTraining) -> None:
    call = training.store.journal.trajectory("run/step-2/0/0").calls[0]
    recorded = sum(p for p, sampled in zip(call.logprobs, call.mask, strict=True) if sampled)
    found = list(course(training, first_turn(training)))
    assert [point.version for point in found] == [0, 1, 2, 3, 4]
    assert found[2].logprob == pytest.approx(recorded, abs=1e-3)
    assert found[0].taught is None and all(each.taught is not None for each in found[1:])
    training.load(2)
    assert logprob_at(training, first_turn(training)) == found[2].logprob


def test_a_step_s_pushes_sum_up_to_what_it_taught(training: RecordedTraining) -> None:
    behaviour = first_turn(training)
    taught = {point.version: point.taught for point in course(training, behaviour)}
    for number in range(4):
        step = training.step(number)
        found = pushes(training, behaviour, step)
        assert {each.trajectory_id for each in found} <= {each.id for each in step.trained}
        assert [each.push for each in found] == sorted((e.push for e in found), reverse=True)
        assert sum(each.push for each in found) == pytest.approx(taught[number + 1], rel=0.02)
        for each in found:
            assert each.push == pytest.approx(math.fsum(t.push for t in each.tokens))


def test_a_tool_call_is_the_sum_of_its_known_beginnings(training: RecordedTraining) -> None:
    journal = training.store.journal
    first_calls = [
        (header.task.prompt, journal.with_calls(header).calls[0])
        for header in journal.headers("run_id = ?", (training.run_id,))
    ]
    prompt = next(prompt for prompt, call in first_calls if call.response["tool_calls"])
    behaviour = asyncio.run(tool_called(training, prompt, "python"))
    ids = (behaviour.token_ids, *behaviour.others)
    calling = {
        training.learner.codec.decode(
            [t for t, own in zip(c.token_ids, c.mask, strict=True) if own]
        )
        for p, c in first_calls
        if p == prompt and c.response["tool_calls"]
    }
    texts = {training.learner.codec.decode(each[behaviour.start :]) for each in ids}
    # the answers name the tool in their reasoning, too
    known = {each[: each.index('"name": "python') + len('"name": "python')] for each in calling}
    assert len(texts) > 1 and "I compute it with python." in "".join(known)
    assert {next(k for k in known if each.startswith(k)) for each in texts} == known

    before, after = course(training, behaviour, training.versions([2, 3]))
    single = [
        [*course(training, Behaviour(each, behaviour.start), training.versions([2, 3]))]
        for each in ids
    ]
    for number, point in enumerate((before, after)):
        total = sum(math.exp(points[number].logprob) for points in single)
        assert math.exp(point.logprob) == pytest.approx(total)
    shares = [math.exp(points[0].logprob - before.logprob) for points in single]
    taught = [points[1].taught or 0.0 for points in single]
    assert after.taught == pytest.approx(sum(map(mul, shares, taught)), rel=1e-3)
    assert after.taught != pytest.approx(sum(taught), rel=0.1)

    with pytest.raises(ConfigError, match=r"Did you mean .python.\?"):
        asyncio.run(tool_called(training, prompt, "pyton"))


@pytest.mark.parametrize(
    "settings",
    [
        {"lora_rank": 4},
        pytest.param({"mini_batches": 2, "epochs": 2}, marks=pytest.mark.slow),
        pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param({"optimizer": "adamw8bit", "forward": "tree"}, marks=pytest.mark.slow),
        pytest.param({"objective": "gspo", "kl_coef": 0.1}, marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_so_they_do_in_trainings_of_other_kinds(settings: dict[str, Any], tmp_path: Path) -> None:
    config = GrpoConfig.of(
        steps=3, prompts_per_step=3, group_size=4, keep_versions=1, seed=3, **settings
    )
    asyncio.run(train(config, tmp_path / "run"))
    with opened_training(tmp_path / "run", config) as training:
        behaviour = turn_of(training, "run/step-2/0/0", 1, None)
        taught = {point.version: point.taught for point in course(training, behaviour)}
        for number in range(3):
            found = pushes(training, behaviour, training.step(number))
            total = sum(each.push for each in found)
            size = sum(abs(each.push) for each in found)
            # the later of several optimiser steps have other weights, and other gradients
            share = 0.5 if "epochs" in settings else 0.1
            assert abs(total - (taught[number + 1] or 0)) < share * size, number


@pytest.mark.slow
def test_a_gradient_is_forgotten_when_the_optimizer_begins_afresh(tmp_path: Path) -> None:
    stages = (
        TrainingStage(name="first", steps=2),
        TrainingStage(name="second", steps=2, reset_optimizer=True),
    )
    config = GrpoConfig.of(stages=stages, prompts_per_step=2, group_size=4, keep_versions=1, seed=3)
    asyncio.run(train(config, tmp_path / "run"))
    with opened_training(tmp_path / "run", config) as training:
        rates = [float(row["learning_rate"]) for row in training.rows if row["stepped"]]
        assert len(rates) == 4
        assert [rates_from(training, number) for number in range(4)] == [
            rates[:2],
            rates[1:2],
            rates[2:],
            rates[3:],
        ]
        behaviour = turn_of(training, "run/step-2/0/0", 1, None)
        taught = {point.version: point.taught for point in course(training, behaviour)}
        for number in (1, 2):
            found = pushes(training, behaviour, training.step(number))
            total = sum(each.push for each in found)
            assert total == pytest.approx(taught[number + 1], rel=0.1)


def test_a_rollout_s_push_is_that_of_its_own_gradient(training: RecordedTraining) -> None:
    """The loss of one rollout alone, by automatic differentiation, along the same direction."""
    behaviour = first_turn(training)
    step = training.step(1)
    found = {each.trajectory_id: each for each in pushes(training, behaviour, step)}
    chosen = max(found.values(), key=lambda each: abs(each.push))
    training.load(1)
    model: Any = training.learner.model
    weights = [each for each in model.parameters() if each.requires_grad]
    wanted = torch.autograd.grad(token_logprobs(model, behaviour.batches()[0]).sum(), weights)
    (batches,) = training.batches(step)
    tokens = sum(batch.trained_tokens for batch in batches)
    own = step.trained_by_part[0].index(chosen.trajectory_id)
    loss = torch.zeros(())
    for batch in batches:
        # at a ratio of 1 the slope of the clipped loss is minus the weight
        here = batch.sequences_K == own
        loss = loss - (token_logprobs(model, batch) * batch.weights_K)[here].sum() / tokens
    gradient = torch.autograd.grad(loss, weights)
    row = training.take(step)
    roots = [each.root for each in moments_of(training.learner.optimizer) if each is not None]
    assert len(roots) == len(weights)
    along = sum(
        float((a * b / root).double().sum())
        for a, b, root in zip(gradient, wanted, roots, strict=True)
    )
    beta1 = CONFIG.optim.adam_beta1
    rates = [float(each["learning_rate"]) for each in training.rows[1:]]
    factor = sum(
        rate * beta1**later * (1 - beta1) / (1 - beta1 ** (2 + later))
        for later, rate in enumerate(rates)
    )
    clip = min(1.0, 1 / (row["grad_norm"] + 1e-6))
    assert chosen.push == pytest.approx(-factor * clip * along, rel=0.01)


def test_the_planted_step_and_rollouts_are_found(training: RecordedTraining) -> None:
    step = training.step(1)
    codec: Any = training.learner.codec
    sources = [each for each in step.overlays if (each.advantage or 0) > 0.2][:2]
    ids = {each.trajectory_id for each in sources}
    assert len(ids) == 2
    with planted(training, 1, ids, codec.encode_text(MARKER)) as changed:
        behaviour = turn_of(changed, "run/step-3/1/1", None, MARKER)
        points = list(course(changed, behaviour))
        assert max(points, key=lambda each: each.taught or -math.inf).version == 2
        step = changed.step(1)
        found = pushes(changed, behaviour, step)
        assert {each.trajectory_id for each in found[:2]} == ids
        shown = max(found[0].tokens, key=lambda each: each.push)
        assert shown.token_id in codec.encode_text(MARKER)
        proved = proof(changed, behaviour, step, ids, following=2)
        assert proved.steps == 3 and proved.before == points[1].logprob
        assert proved.recorded == points[4].logprob
        without = proved.without - proved.before
        assert without < 0.5 * (proved.recorded - proved.before)


def test_a_text_is_found_in_a_turn_or_put_at_its_end(training: RecordedTraining) -> None:
    codec: Any = training.learner.codec
    whole = turn_of(training, "run/step-2/0/0", 1, None)
    said = codec.decode(whole.token_ids[whole.start :])
    inside = turn_of(training, "run/step-2/0/0", 1, said[3:9])
    assert whole.token_ids[: inside.start] + inside.token_ids[inside.start :] == inside.token_ids
    assert said[3:9] in codec.decode(inside.token_ids[inside.start :])
    after = turn_of(training, "run/step-2/0/0", 1, "zebra")
    assert codec.decode(after.token_ids[after.start :]) == "zebra"
    assert after.token_ids[: after.start] == whole.token_ids[:-1]


async def test_an_answer_to_a_task_follows_its_first_request(training: RecordedTraining) -> None:
    codec: Any = training.learner.codec
    recorded = training.store.journal.trajectory("run/step-0/0/0")
    on_record = await answer_to(training, recorded.task.prompt, "<reason>")
    first = recorded.calls[0]
    assert on_record.token_ids[: on_record.start] == first.token_ids[: first.mask.index(True)]
    new = await answer_to(training, "What is 3 * 4?", "<reason>")
    context = codec.decode(new.token_ids[: new.start])
    assert "What is 3 * 4?" in context and context.endswith("assistant\n")
    assert codec.decode(new.token_ids[new.start :]) == "<reason>"


def test_what_cannot_be_asked_is_said(training: RecordedTraining) -> None:
    with pytest.raises(RunError, match=r"'run/step-9' is missing"):
        turn_of(training, "run/step-9", None, None)
    with pytest.raises(ConfigError, match=r"no call 9"):
        turn_of(training, "run/step-0/0/0", 9, None)
    with pytest.raises(ConfigError, match="has no token"):
        turn_of(training, "run/step-0/0/0", 1, "")
    with pytest.raises(ModelError, match="but the policy takes at most"):
        turn_of(training, "run/step-0/0/0", 1, "zebra " * 5000)
