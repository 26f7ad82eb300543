from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_agent.errors import ModelError
from hrm_agent.training.select.roc import select
from hrm_agent.training.update.advantages import group_advantages, normalised
from hrm_agent.training.update.batch import (
    Row,
    build_batches,
    kept_rows,
    left_out,
    linearise,
    micro_batches,
)
from hrm_agent.training.update.logprobs.padded import side_by_side
from hrm_agent.trajectory import Call, LogprobKind, Overlay, Trajectory, Verdict
from tests.support.training.builders import call, group, sampled_call, trajectory


@st.composite
def forests(draw: st.DrawFn) -> Trajectory:
    """A trajectory with up to ten calls; every token id names its call and its place, so that
    copies are recognised.
    """
    calls: list[Call] = []
    for i in range(draw(st.integers(1, 10))):
        parent = draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None
        inserted = draw(st.integers(0 if parent is not None else 1, 4))
        sampled = draw(st.integers(0, 4))
        tokens = [100 * i + place for place in range(inserted + sampled)]
        calls.append(
            sampled_call(f"c{i}", tokens, inserted, None if parent is None else f"c{parent}")
        )
    return trajectory(calls=tuple(calls))


def sampled_tokens(whole: Trajectory) -> Counter[int]:
    return Counter(
        t for c in whole.calls for t, sampled in zip(c.token_ids, c.mask, strict=True) if sampled
    )


def trained_tokens(rows: list[Row]) -> Counter[int]:
    return Counter(int(t) for row in rows for t in row.token_ids[row.loss_mask])


@given(forests())
def test_each_sampled_token_is_trained_exactly_once_and_no_inserted_one(whole):
    assert trained_tokens(linearise(whole, {c.id: 1.0 for c in whole.own_calls})) == sampled_tokens(
        whole
    )


@given(forests())
def test_each_token_stands_after_exactly_what_the_model_saw(whole):
    by_id = {c.id: c for c in whole.calls}
    for row in linearise(whole, {c.id: 1.0 for c in whole.own_calls}):
        last = by_id[f"c{row.token_ids[-1] // 100}"]
        seen: list[int] = []
        while last is not None:
            seen = [*last.token_ids, *seen]
            last = by_id.get(last.parent or "")
        assert row.token_ids.tolist() == seen


@given(forests(), st.integers(1, 40))
def test_micro_batches_lose_and_repeat_nothing(whole, budget):
    rows = linearise(whole, {c.id: -0.5 for c in whole.own_calls})
    batches = micro_batches(rows, token_budget=budget)
    assert Counter(
        t for b in batches for t in b.token_ids_N[b.loss_indices_K].tolist()
    ) == sampled_tokens(whole)
    assert sum(len(b.token_ids_N) for b in batches) == sum(len(row) for row in rows)
    for batch in batches:
        token_ids_BT, _ = side_by_side(batch)
        assert token_ids_BT.numel() <= budget or len(token_ids_BT) == 1
        assert (batch.parents_N[batch.loss_indices_K] >= 0).all()
        assert (batch.weights_K == -0.5).all()
        assert (batch.lengths_K == sum(sampled_tokens(whole).values())).all()
        assert batch.trained_tokens == len(batch.loss_indices_K) == len(batch.versions_K)


@given(st.lists(forests(), min_size=1, max_size=4), st.integers(1, 40))
def test_a_micro_batch_has_all_rows_of_a_trajectory_if_that_is_asked_for(wholes, budget):
    rows = [
        row
        for i, t in enumerate(wholes)
        for row in linearise(t, {c.id: 1.0 for c in t.own_calls}, i)
    ]
    batches = micro_batches(rows, token_budget=budget, whole_trajectories=True)
    found = [set(b.sequences_K.tolist()) for b in batches]
    assert sum(len(each) for each in found) == len(set().union(*found)), "none is in two"
    assert sum(b.trained_tokens for b in batches) == sum(
        sum(sampled_tokens(t).values()) for t in wholes
    )


def test_a_tokens_version_is_that_of_its_call():
    calls = (
        sampled_call("a", [1, 2], 1),
        sampled_call("b", [3, 4, 5], 1, "a").model_copy(update={"policy_version": 7}),
    )
    (batch,) = micro_batches(
        linearise(trajectory(calls=calls), {"a": 1.0, "b": 1.0}, 3), token_budget=99
    )
    assert batch.versions_K.tolist() == [0, 7, 7]
    assert batch.sequences_K.tolist() == [3, 3, 3]
    assert batch.lengths_K.tolist() == [3, 3, 3]
    assert batch.positions_N.tolist() == [0, 1, 2, 3, 4] and batch.parents_N.tolist() == [
        -1,
        0,
        1,
        2,
        3,
    ]


def test_a_shared_prefix_is_context_in_the_second_branch():
    calls = (
        sampled_call("a", [1, 2], 1),
        sampled_call("b", [3, 4], 1, "a"),
        sampled_call("c", [5, 6], 1, "a"),
    )
    rows = linearise(trajectory(calls=calls), {"a": 1.0, "b": 2.0, "c": 3.0})
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert [row.loss_mask.tolist() for row in rows] == [
        [False, True, False, True],
        [False, False, False, True],
    ]
    assert [row.weights.tolist() for row in rows] == [[0, 1, 0, 2], [0, 0, 0, 3]]


def test_logprobs_stand_at_their_tokens():
    (row,) = linearise(trajectory(calls=(call("a"),)), {"a": 1.0})
    assert row.old_logprobs.tolist() == [0.0, 0.0, -1.0, -2.0]


def test_credit_decides_which_calls_are_trained():
    calls = (sampled_call("a", [1, 2], 1), sampled_call("b", [3, 4], 1, "a"))
    whole = trajectory(calls=calls)
    (row,) = linearise(whole, {"a": 1.0})
    assert row.token_ids.tolist() == [
        1,
        2,
    ], "what follows the last trained call is nobody's context"
    (row,) = linearise(whole, {"b": 1.0})
    assert row.loss_mask.tolist() == [False, False, False, True]
    assert linearise(whole, {}) == []


def test_untrainable_calls_are_context_only():
    silent = sampled_call("a", [1, 2], 1).model_copy(update={"untrainable": "log-probs are none"})
    (row,) = linearise(
        trajectory(calls=(silent, sampled_call("b", [3, 4], 1, "a"))), {"a": 1.0, "b": 1.0}
    )
    assert row.loss_mask.tolist() == [False, False, False, True]


def test_a_policy_that_cannot_be_trained_is_refused_with_the_reason():
    mute = call(
        "a",
        token_ids=(),
        mask=(),
        logprobs=(),
        logprob_kind=LogprobKind.NONE,
        untrainable="no token ids",
    )
    kept = select(
        [trajectory(0, 1.0, calls=(mute,)), trajectory(1, 0.0, calls=(mute,))], 2, "grpo", seed=0
    )
    both = [trajectory(0, 1.0, calls=(mute,)), trajectory(1, 0.0, calls=(mute,))]
    with pytest.raises(ModelError, match="no token ids"):
        kept_rows(both, group_advantages(kept))


def test_a_sequence_cannot_begin_with_a_sampled_token():
    with pytest.raises(ValueError, match="begins with a sampled token"):
        linearise(trajectory(calls=(sampled_call("a", [1, 2], 0),)), {"a": 1.0})


def test_only_what_is_kept_is_batched():
    whole = group(6, 6)
    overlays = group_advantages(select(whole, 6, "grpo-roc", seed=0))
    batches = build_batches(whole, overlays, token_budget=8)
    assert sum(b.trained_tokens for b in batches) == 6 * 2
    assert (
        build_batches(whole, group_advantages(select(whole[:6], 6, "grpo", seed=0)), token_budget=8)
        == []
    )


def test_advantages_are_demanded():
    whole = group(1, 1)
    with pytest.raises(ValueError, match="no advantage"):
        build_batches(whole, select(whole, 2, "grpo", seed=0), token_budget=8)


def test_longest_rows_come_first_and_are_padded_on_the_right():
    rows = [
        linearise(trajectory(calls=(sampled_call("a", range(1, n), 1),)), {"a": 1.0})[0]
        for n in (3, 6, 4)
    ]
    batches = micro_batches(rows, token_budget=10)
    assert [side_by_side(b, pad_id=9)[0].tolist() for b in batches] == [
        [[1, 2, 3, 4, 5], [1, 2, 3, 9, 9]],
        [[1, 2]],
    ]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=16))
def test_advantages_are_centred_and_use_the_unbiased_deviation(rewards):
    advantages = np.array(normalised(rewards))
    expected = (torch.tensor(rewards, dtype=torch.float64) - np.mean(rewards)) / (
        np.std(rewards, ddof=1) + 1e-6
    )
    assert np.allclose(advantages, expected.numpy(), atol=1e-6)


def test_a_single_rollout_has_no_advantage():
    assert normalised([1.0]) == [0.0]
    assert normalised([]) == []


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=12)
)
def test_groups_are_told_apart_and_only_those_kept_count(rows):
    overlays = [
        Overlay(
            run_id="r",
            step=0,
            trajectory_id=str(i),
            group_id=str(g),
            reward=float(ok),
            verdict=Verdict.KEPT if keep else Verdict.DROPPED,
            reason="x",
            penalty_error=0,
            penalty_format=0,
        )
        for i, (g, ok, keep) in enumerate(rows)
    ]
    credited = group_advantages(overlays)
    assert [o.trajectory_id for o in credited] == [o.trajectory_id for o in overlays]
    for g in range(3):
        kept = [o for o in credited if o.group_id == str(g) and o.verdict is Verdict.KEPT]
        assert [o.advantage for o in kept] == normalised([o.reward for o in kept])
    assert all(o.advantage is None for o in credited if o.verdict is not Verdict.KEPT)


def test_other_models_and_constrained_calls_are_context_without_a_gradient():
    calls = (
        call("plan"),
        call(
            "judge",
            model="hf:judge",
            token_ids=(5, 6, 7),
            mask=(False, True, True),
            logprobs=(0.0, -1.0, -1.0),
        ),
        call(
            "held", parent="plan", constrained=True, untrainable="a schema chose among the tokens"
        ),
        call("last", parent="held"),
    )
    mixed, plain = trajectory(0, calls=calls), trajectory(1, reward=0.0)
    overlays = group_advantages(select([mixed, plain], 2, "grpo", seed=0, run_id="r", step=0))
    rows = linearise(mixed, {c.id: 1.0 for c in mixed.own_calls})
    assert [row.loss_mask.tolist() for row in rows] == [
        [False, False, True, True, *[False] * 6, True, True]
    ]
    counted = {name: count for name, count in left_out([mixed, plain], overlays).items() if count}
    assert counted == {"select/calls_of_other_models": 1.0, "select/constrained_calls": 1.0}
    foreign = trajectory(2, policy="m2")
    with pytest.raises(ModelError, match="its calls are of 'm', the policy is 'm2'"):
        kept_rows([foreign], [overlays[0].model_copy(update={"trajectory_id": foreign.id})])
