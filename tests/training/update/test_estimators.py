from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.errors import ConfigError
from hrm_agent.training.update.advantages import ADVANTAGES, by_group, group_advantages, normalised
from hrm_agent.trajectory import Overlay, Verdict

REWARDS = st.floats(-5, 5)
GROUPS = st.lists(st.lists(REWARDS, min_size=1, max_size=8), min_size=1, max_size=5)


def judged(groups: list[list[float]], verdict: Verdict = Verdict.KEPT) -> list[Overlay]:
    return [
        Overlay(
            run_id="r",
            step=0,
            trajectory_id=f"{g}-{i}",
            group_id=str(g),
            reward=reward,
            verdict=verdict,
            reason="x",
            penalty_error=0,
            penalty_format=0,
        )
        for g, group in enumerate(groups)
        for i, reward in enumerate(group)
    ]


def estimated(groups: list[list[float]], name: str, eps: float = 1e-6) -> list[list[float]]:
    found = iter(by_group(judged(groups), name, eps))
    return [[float(next(found).advantage or 0.0) for _ in group] for group in groups]


@given(GROUPS)
def test_grpo_is_the_default_and_what_it_was_to_the_last_bit(groups: list[list[float]]) -> None:
    expected = [normalised(group) for group in groups]
    assert estimated(groups, "grpo") == expected
    assert (
        group_advantages(judged(groups))
        == by_group(judged(groups))
        == by_group(judged(groups), "grpo", 1e-6)
    )


@given(GROUPS)
def test_dr_grpo_takes_the_mean_off_and_no_more(groups: list[list[float]]) -> None:
    for group, advantages in zip(groups, estimated(groups, "dr_grpo"), strict=True):
        assert advantages == pytest.approx(
            [reward - statistics.fmean(group) for reward in group], abs=1e-12
        )


@given(GROUPS)
def test_rloo_leaves_each_out_of_its_own_baseline(groups: list[list[float]]) -> None:
    for group, advantages in zip(groups, estimated(groups, "rloo"), strict=True):
        others = [group[:i] + group[i + 1 :] for i in range(len(group))]
        expected = [
            r - statistics.fmean(o) if o else 0.0 for r, o in zip(group, others, strict=True)
        ]
        assert advantages == pytest.approx(expected, abs=1e-9)
        assert math.fsum(advantages) == pytest.approx(0, abs=1e-9)


@given(GROUPS)
def test_reinforce_plus_plus_normalises_over_the_whole_batch(groups: list[list[float]]) -> None:
    centred = [each for group in estimated(groups, "dr_grpo") for each in group]
    found = [each for group in estimated(groups, "reinforce_plus_plus") for each in group]
    if len(centred) < 2:
        assert found == [0.0]
        return
    deviation = statistics.stdev(centred) + 1e-6
    assert found == pytest.approx([each / deviation for each in centred], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", ADVANTAGES)
@given(groups=GROUPS, shift=st.floats(-3, 3), data=st.data())
def test_a_shift_of_a_groups_rewards_and_the_order_of_rollouts_change_nothing(
    name: str, groups: list[list[float]], shift: float, data: st.DataObject
) -> None:
    eps = 1e-3  # rounding of a group with equal rewards is not to be blown up
    expected = estimated(groups, name, eps)
    shifted = [[reward + shift for reward in groups[0]], *groups[1:]]
    for ours, theirs in zip(estimated(shifted, name, eps), expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    overlays = data.draw(st.permutations(judged(groups)))
    by_id = {o.trajectory_id: o.advantage for o in by_group(overlays, name, eps)}
    found = [by_id[o.trajectory_id] for o in judged(groups)]
    assert found == pytest.approx([each for group in expected for each in group], abs=1e-9)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_only_what_was_kept_counts(name: str) -> None:
    kept = judged([[1.0, 0.0, 0.0], [1.0, 0.5]])
    dropped = [
        o.model_copy(update={"trajectory_id": f"{o.trajectory_id}x", "reward": 9.0}) for o in kept
    ]
    dropped = [o.model_copy(update={"verdict": Verdict.DROPPED}) for o in dropped]
    found = by_group([*dropped, *kept], name)
    assert found[len(dropped) :] == by_group(kept, name)
    assert all(o.advantage is None for o in found[: len(dropped)])


@pytest.mark.parametrize("name", ADVANTAGES)
def test_nothing_and_a_single_rollout_have_no_advantage(name: str) -> None:
    assert by_group([], name) == []
    assert estimated([[1.0]], name) == [[0.0]]


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'rlo' is an unknown value of advantages.*rloo"):
        by_group([], "rlo")
