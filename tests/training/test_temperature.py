"""Tokens sampled at a temperature are trained at it. Tokens not sampled from the policy have no
gradient.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.select.verdicts import judge
from hrm_agent.training.update.batch import build_batches, kept_rows, left_out, micro_batches
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from hrm_agent.trajectory import (
    Call,
    DropReason,
    LogprobKind,
    Overlay,
    Sampling,
    Trajectory,
    Verdict,
)
from tests.support.training.builders import call, tiny_model, trajectory

TEMPERATURES = (0.5, 1.0, 2.0)
SAMPLED = 9


def sampled(temperatures: Sequence[float], **sampling: Any) -> list[Call]:
    """A conversation of one call at each temperature, sampled by the engine of this process."""
    calls: list[Call] = []
    tokens: list[int] = []
    with TransformersEngine(tiny_model(), ByteCodec(), name="m") as engine:
        for i, temperature in enumerate(temperatures):
            asked = Sampling(temperature=temperature, seed=i, max_tokens=SAMPLED, **sampling)
            inserted = [3 + i, 7, 11]
            done = engine.submit(GenerationRequest((*tokens, *inserted), asked)).result(60)
            made = call(
                f"c{i}",
                parent=f"c{i - 1}" if i else None,
                token_ids=(*inserted, *done.token_ids),
                mask=(False,) * 3 + (True,) * len(done.token_ids),
                logprobs=(0.0,) * 3 + done.logprobs,
                logprob_kind=LogprobKind.RAW if temperature in (0, 1) else LogprobKind.TEMPERED,
                sampling=asked,
            )
            calls.append(made)
            tokens += made.token_ids
    return calls


def kept(advantage: float, index: int = 0) -> Overlay:
    return Overlay(
        run_id="r",
        step=0,
        trajectory_id=f"rollout-{index}",
        group_id="group",
        reward=1.0,
        verdict=Verdict.KEPT,
        reason="x",
        penalty_error=0,
        penalty_format=0,
        advantage=advantage,
    )


def gradient(
    calls: Sequence[Call], advantage: float, **options: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Gradient and metrics of one whole update. With plain descent at rate 1, the weights move by
    the gradient.
    """
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = build_batches(
        [trajectory(calls=tuple(calls))], [kept(advantage)], token_budget=10_000
    )
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    loss, optim = LossOptions(**options), OptimOptions(max_grad_norm=1e9)
    metrics = policy_update(model, descent, batches, loss=loss, optim=optim)
    return {name: before[name] - p.detach() for name, p in model.named_parameters()}, metrics


def by_hand(calls: Sequence[Call], advantage: float) -> dict[str, torch.Tensor]:
    """Gradient in double precision, computed token by token. At ratio 1 it is the gradient of -A
    log p / N.
    """
    model = tiny_model().double()
    tokens = [token for each in calls for token in each.token_ids]
    logits = model(input_ids=torch.tensor([tokens])).logits[0]
    total, count, place = torch.zeros((), dtype=torch.float64), 0, 0
    for each in calls:
        for token, trained in zip(each.token_ids, each.mask, strict=True):
            if trained:
                scaled = logits[place - 1] / each.sampling.temperature
                total = total + scaled[token] - scaled.exp().sum().log()
                count += 1
            place += 1
    (-advantage * total / count).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("temperatures", [*((t, t) for t in TEMPERATURES), TEMPERATURES], ids=str)
def test_the_gradient_is_that_of_the_distribution_that_was_sampled(
    temperatures: tuple[float, ...],
) -> None:
    calls = sampled(temperatures)
    ours, metrics = gradient(calls, 0.7)
    assert metrics["trained_tokens"] == sum(each.sampled_tokens for each in calls)
    assert metrics["engine_difference"] < 1e-5
    for name, expected in by_hand(calls, 0.7).items():
        torch.testing.assert_close(ours[name].double(), expected, atol=2e-6, rtol=1e-4)
    if set(temperatures) != {1.0}:
        untempered = [each.model_copy(update={"sampling": Sampling()}) for each in calls]
        other, _ = gradient(untempered, 0.7)
        assert max(float((ours[n] - other[n]).abs().max()) for n in ours) > 1e-3, (
            "the case must tell them apart"
        )


def test_recorded_log_probs_are_compared_with_their_like() -> None:
    """An older record, or a vLLM server, has raw log-probs of a call at another temperature."""
    tempered = sampled((0.5, 2.0))
    raw = [each.model_copy(update={"logprob_kind": LogprobKind.RAW, "logprobs": raw_of(tempered, i)})
           for i, each in enumerate(tempered)]  # fmt: skip
    assert gradient(raw, 1.0)[1]["engine_difference"] < 1e-5
    called_raw = [each.model_copy(update={"logprob_kind": LogprobKind.RAW}) for each in tempered]
    assert gradient(called_raw, 1.0)[1]["engine_difference"] > 0.05
    ours, theirs = gradient(tempered, 1.0)[0], gradient(raw, 1.0)[0]
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def raw_of(calls: Sequence[Call], index: int) -> tuple[float, ...]:
    tokens = [token for each in calls for token in each.token_ids]
    with torch.no_grad():
        logprobs = tiny_model()(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    start = sum(len(each.token_ids) for each in calls[:index])
    placed = enumerate(zip(calls[index].token_ids, calls[index].mask, strict=True), start)
    return tuple(
        float(logprobs[i - 1, token]) if trained else 0.0 for i, (token, trained) in placed
    )


def test_off_policy_a_ratio_takes_log_probs_of_what_was_sampled_and_no_others() -> None:
    calls = sampled((0.5, 1.0))
    _, metrics = gradient(calls, 1.0, old_logprobs="engine")
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-4)
    raw = [each.model_copy(update={"logprob_kind": LogprobKind.RAW}) for each in calls]
    with pytest.raises(
        ModelError, match=r"sampled at temperature 0\.5 have raw log-probs.*processed_logprobs"
    ):
        gradient(raw, 1.0, old_logprobs="engine")
    assert gradient(
        [raw[1].model_copy(update={"parent": None, "branch_reason": "root"})],
        1.0,
        old_logprobs="engine",
    )


@pytest.mark.parametrize(
    ("sampling", "name"),
    [({"temperature": 0.0}, "select/greedy_calls"), ({"top_p": 0.9}, "select/nucleus_calls")],
)
def test_calls_that_are_no_sample_of_the_policy_are_counted_and_have_no_gradient(
    sampling: dict[str, float], name: str
) -> None:
    free, cut, last = sampled((1.0, 1.0, 0.5))
    cut = cut.model_copy(update={"sampling": Sampling(**sampling)})
    assert not cut.trainable and cut.untrainable is None, "older records give no reason"
    mixed = trajectory(calls=(free, cut, last))
    (row,) = kept_rows([mixed], [kept(1.0)])
    assert row.loss_mask.sum() == free.sampled_tokens + last.sampled_tokens
    assert not row.loss_mask[len(free.token_ids) :][: len(cut.token_ids)].any()
    counted = left_out([mixed], [kept(1.0)])
    assert {key: count for key, count in counted.items() if count} == {name: 1.0}
    masked = cut.model_copy(
        update={"mask": (False,) * len(cut.mask), "logprobs": (0.0,) * len(cut.mask)}
    )
    ours, expected = gradient((free, cut, last), 1.0)[0], by_hand((free, masked, last), 1.0)
    for parameter, gradients in expected.items():
        torch.testing.assert_close(ours[parameter].double(), gradients, atol=2e-6, rtol=1e-4)


def test_a_group_of_which_nothing_was_sampled_is_rejected_and_says_why() -> None:
    greedy = call("c", sampling=Sampling(temperature=0.0))
    config = GrpoConfig.of(algorithm="grpo", group_size=2)
    for rewards in ((1.0, 0.0), (1.0, 1.0)):
        group = [trajectory(i, reward, calls=(greedy,)) for i, reward in enumerate(rewards)]
        overlays = judge([(each,) for each in group], 0, "r", config)
        assert {(o.verdict, o.drop_reason) for o in overlays} == {
            (Verdict.GROUP_REJECTED, DropReason.NO_GRADIENT)
        }
        assert "2 greedy calls" in overlays[0].reason
        assert left_out(group, overlays)["select/greedy_calls"] == 2
        assert micro_batches(kept_rows(group, overlays), token_budget=100) == []
    sampled_too = trajectory(1, 0.0, calls=(greedy, call("d", parent="c")))
    overlays = judge([(trajectory(0, 1.0, calls=(greedy,)),), (sampled_too,)], 0, "r", config)
    assert {o.verdict for o in overlays} == {Verdict.KEPT}


@pytest.mark.whole
def test_a_run_whose_roles_have_temperatures_of_their_own(tmp_path: Path) -> None:
    temperatures = {"planner": 0.0, "solver": 1.4, "critic": 0.7}
    config = GrpoConfig.of(
        graph="reasoning",
        steps=1,
        prompts_per_step=1,
        group_size=2,
        seed=1,
        context={"temperatures": temperatures},
    )
    asyncio.run(train(config, tmp_path / "run"))
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    with open_store(tmp_path / "run" / "store.db") as store:
        trajectories = list(store.journal.trajectories())
        kept_ids = {
            o.trajectory_id for o in store.journal.overlays("run") if o.verdict is Verdict.KEPT
        }
    calls = [each for t in trajectories if t.id in kept_ids for each in t.calls]
    greedy = [each for each in calls if each.sampling.temperature == 0]
    assert row["stepped"] == 1 and row["engine_difference"] < 1e-5
    assert row["select/greedy_calls"] == len(greedy) > 0
    assert row["trained_tokens"] == sum(each.sampled_tokens for each in calls if each not in greedy)
    assert {each.logprob_kind for each in calls if each.sampling.temperature in (0.7, 1.4)} == {
        LogprobKind.TEMPERED
    }
    assert all("temperature 0" in str(each.untrainable) for each in greedy)


def test_older_trajectories_are_seen_alike_by_whoever_exports_them() -> None:
    old: Trajectory = trajectory(calls=(call("c", sampling=Sampling(temperature=0.0)),))
    assert old.policy_calls == () and not old.trainable
