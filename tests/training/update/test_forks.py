"""Credit by forks: each call gets the difference of the values of its neighbouring moments."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.errors import ConfigError
from hrm_agent.runtime.episode import Episode
from hrm_agent.store import RunStore
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.rollout.forks import fork_count, forked_episodes
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.training.select.roc import select
from hrm_agent.training.update.advantages import by_group, credit_by_name, whole_trajectory
from hrm_agent.trajectory import ForkRef, Overlay, Trajectory
from tests.support.training.builders import place, sampled_call, trajectory


def run(index: int, reward: float, calls: int = 3) -> Trajectory:
    """A rollout whose calls follow each other, each from a checkpoint of its own."""
    made = []
    for number in range(calls):
        call = sampled_call(f"{index}-{number}", [3, 10 + index], 1, made[-1].id if made else None)
        made.append(call.model_copy(update={"identity": place(f"t{index}", call.id, "node")}))
    return trajectory(index, reward, calls=tuple(made)).model_copy(
        update={"thread_id": f"t{index}"}
    )


def fork_of(
    origin: Trajectory, index: int, reward: float, before: int, calls: int = 1
) -> Trajectory:
    """A fork that leaves `origin` before its call number `before`."""
    own = run(index, reward, calls)
    return own.model_copy(
        update={
            "forked_from": ForkRef(trajectory_id=origin.id, checkpoint_id=f"{origin.id}@{before}"),
            "calls": (*origin.calls[:before], *own.calls),
        }
    )


def kept(group: list[Trajectory], advantages: str = "dr_grpo") -> list[Overlay]:
    return by_group(select(group, len(group), "grpo", seed=0), advantages)


def test_weights_are_differences_of_values() -> None:
    first, second = run(0, 0.0), run(1, 1.0)
    group = [
        first,
        second,
        fork_of(first, 2, 1.0, 1),
        fork_of(first, 3, 0.0, 1, 2),
        fork_of(first, 4, 1.0, 2),
    ]
    weights = credit_by_name("forks", advantages="dr_grpo")(group, kept(group))
    late = fmean([0.0, 1.0])  # the rollout's own end and the fork before its last call
    early = fmean([late, 1.0, 0.0])
    whole = fmean([early, 1.0])
    assert weights == pytest.approx(
        {
            "0-0": early - whole,
            "0-1": late - early,
            "0-2": 0.0 - late,
            **{f"1-{number}": 1.0 - whole for number in range(3)},
            "2-0": 1.0 - early,
            "3-0": 0.0 - early,
            "3-1": 0.0 - early,
            "4-0": 1.0 - late,
        }
    )
    divided = credit_by_name("forks", advantages="grpo", eps=0.5)(group, kept(group))
    scale = stdev([0.0, 1.0, 1.0, 0.0, 1.0]) + 0.5
    assert divided == pytest.approx({name: value / scale for name, value in weights.items()})


def test_a_fork_whose_origin_is_out_of_the_group_is_compared_with_the_other_forks() -> None:
    origin, other = run(0, 0.0), run(1, 1.0)
    group = [other, fork_of(origin, 2, 1.0, 1), fork_of(origin, 3, 0.0, 1)]
    weights = credit_by_name("forks", advantages="dr_grpo")(group, kept(group))
    assert weights == {**{f"1-{n}": 0.0 for n in range(3)}, "2-0": 0.5, "3-0": -0.5}


@pytest.mark.parametrize("advantages", ["grpo", "dr_grpo"])
def test_without_forks_it_is_the_credit_of_whole_rollouts(advantages: str) -> None:
    group = [run(0, 0.0), run(1, 1.0), run(2, 0.25)]
    overlays = kept(group, advantages)
    weights = credit_by_name("forks", advantages=advantages)(group, overlays)
    assert weights == pytest.approx(whole_trajectory(group, overlays))


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.floats(0, 1)), max_size=8),
)
def test_weights_along_a_rollout_sum_to_its_reward_less_the_value_of_the_prompt(
    rewards: list[float], forks: list[tuple[int, int, float]]
) -> None:
    begun = [run(index, reward, 4) for index, reward in enumerate(rewards)]
    left = [
        fork_of(begun[origin % len(begun)], 10 + index, reward, before)
        for index, (origin, before, reward) in enumerate(forks)
    ]
    group = [*begun, *left]
    weights = credit_by_name("forks", advantages="dr_grpo")(group, kept(group))
    apart = []
    for each in begun:
        inner = [weights[call.id] for call in each.own_calls]
        moments = sorted(
            {before for origin, before, _ in forks if begun[origin % len(begun)] is each}
        )
        starts = [0, *moments]
        apart.append(sum(inner[start] for start in starts) - each.reward)
    assert apart == pytest.approx([apart[0]] * len(apart)), "less the value of the prompt"


FORKS: dict[str, Any] = {"credit": "forks", "algorithm": "grpo", "group_size": 8}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"algorithm": "grpo-roc"}, "does not go with algorithm = grpo-roc"),
        ({"advantages": "rloo"}, "does not go with advantages = rloo"),
        ({"group_quorum": 0.5}, "does not go with group_quorum"),
        ({"versions_behind": 1, "correction": "token"}, "does not go with versions_behind"),
        ({"share_memory": True}, "does not go with share_memory"),
        ({"group_size": 3}, "does not go with fork_share = 0.5 of 3 rollouts"),
        ({"forks_of_moment": 5}, "does not go with forks_of_moment = 5, where a prompt has 4"),
        ({"credit": "even"}, "fork_at has no effect here: the credit is even"),
        ({"source": ("runs/x",)}, "fork_at has no effect with --from"),
    ],
)
def test_what_does_not_go_with_forks_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        GrpoConfig.of(**{**FORKS, "fork_at": "uncertain", **keys})
    assert fork_count(8, GrpoConfig.of(**FORKS).loss) == 4
    assert fork_count(8, GrpoConfig.of().loss) == 0


@pytest.mark.parametrize("part", ["calls", "tool_calls", "trajectory", "group"])
async def test_a_rubric_that_sees_only_the_end_of_a_fork_is_refused(
    part: str, tmp_path: Path, store: RunStore
) -> None:
    (tmp_path / "r.py").write_text(f"def tidy({part}):\n    return 1.0\n")
    config = GrpoConfig.of(**FORKS, rewards=f"{tmp_path}/r.py:tidy")
    with pytest.raises(ConfigError, match=f"whose rewards read {part}"):
        async with scoring_by(config, store, forks=True):
            pass


def test_moments_are_chosen_by_the_record_and_the_seed_alone() -> None:
    origins = [placed(run(index, 0.0)) for index in range(2)]
    episodes = [
        Episode(origins[0].task, f"fork-{index}", sample_index=index, seed=index + 1)
        for index in range(4)
    ]
    loss = GrpoConfig.of(**FORKS).loss
    found = forked_episodes(episodes, origins, loss)
    assert found == forked_episodes(episodes, origins, loss)
    left = [each.forked_from for each in found]
    assert left[0] == left[1] != left[2] == left[3], "two forks of each moment"
    before = {at.checkpoint_id for at in left if at is not None}
    assert before <= {f"{each.thread_id}@{n}" for each in origins for n in (1, 2)}
    unsure = [each.model_copy(update={"logprobs": (0.0, -9.0)}) for each in origins[1].calls[2:]]
    origins[1] = origins[1].model_copy(update={"calls": (*origins[1].calls[:2], *unsure)})
    uncertain = GrpoConfig.of(**FORKS, fork_at="uncertain").loss
    first = forked_episodes(episodes, origins, uncertain)[0].forked_from
    assert first is not None and first.checkpoint_id == "t1@2"
    lone = [placed(run(0, 0.0, calls=1))]
    assert forked_episodes(episodes, lone, loss) == episodes, (
        "a run with a single decision is not forked"
    )


def placed(origin: Trajectory) -> Trajectory:
    """A run each of whose calls began at a checkpoint of its own."""
    calls = [
        each.model_copy(
            update={
                "identity": each.identity.model_copy(
                    update={"checkpoint_id": f"{origin.thread_id}@{number}"}
                )
            }
        )
        for number, each in enumerate(origin.calls)
    ]
    return origin.model_copy(update={"calls": tuple(calls)})
