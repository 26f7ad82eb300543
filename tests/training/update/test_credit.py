"""Credit of calls: by role among siblings, for rollouts of different lengths, and for frozen roles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.errors import ConfigError
from hrm_agent.training.select.roc import RocOptions, select
from hrm_agent.training.update.advantages import (
    ADVANTAGES,
    CREDITS,
    TurnOptions,
    by_group,
    credit_by_name,
    credited,
    normalised,
    whole_trajectory,
)
from hrm_agent.training.update.batch import build_batches, kept_rows
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from hrm_agent.trajectory import Call, ForkRef, Overlay, RunStatus, Trajectory, Verdict
from tests.support.training.builders import place, sampled_call, tiny_model, tool_call, trajectory


def of_role(
    role: str, name: str, tokens: Sequence[int], inserted: int, parent: str | None = None
) -> Call:
    made = sampled_call(name, tokens, inserted, parent)
    return made.model_copy(update={"identity": place("t", name, role)})


def planned(index: int, reward: float, plan: int, calls: int = 1) -> Trajectory:
    """A planner that writes one token, and a solver that is given it, and then `calls` times a
    tool's result.
    """
    solver = [of_role("solve", f"solve-{index}-0", [4, plan, 20 + index], 2)]
    for i in range(1, calls):
        solver.append(of_role("solve", f"solve-{index}-{i}", [5, 30 + index], 1, solver[-1].id))
    return trajectory(
        index, reward, calls=(of_role("plan", f"plan-{index}", [3, plan], 1), *solver)
    )


def kept(trajectories: Sequence[Trajectory], advantages: str = "grpo") -> list[Overlay]:
    return by_group(select(trajectories, len(trajectories), "grpo", seed=0), advantages)


def test_solvers_of_one_plan_are_compared_among_themselves() -> None:
    rewards = (1.0, 0.0, 1.0, 1.0, 0.0)
    plans = (10, 10, 11, 11, 12)
    group = [planned(i, r, p, calls=2) for i, (r, p) in enumerate(zip(rewards, plans, strict=True))]
    overlays = kept(group)
    weights = credit_by_name("per_role")(group, overlays)
    whole = whole_trajectory(group, overlays)
    assert {name: w for name, w in weights.items() if name.startswith("plan")} == {
        name: w for name, w in whole.items() if name.startswith("plan")
    }, "planners saw the same prompt in each rollout: their siblings are the whole group"
    first, second = normalised([1.0, 0.0])
    for call in range(2):
        assert weights[f"solve-0-{call}"] == first and weights[f"solve-1-{call}"] == second
        for index in (2, 3, 4):
            assert weights[f"solve-{index}-{call}"] == whole[f"solve-{index}-{call}"], (
                "equal rewards, or no sibling"
            )


def test_siblings_are_compared_by_the_advantages_that_were_chosen() -> None:
    group = [planned(0, 1.0, 10), planned(1, 0.0, 10), planned(2, 0.0, 11)]
    weights = credit_by_name("per_role", advantages="rloo")(group, kept(group, "rloo"))
    assert (weights["solve-0-0"], weights["solve-1-0"]) == (1.0, -1.0)
    assert (weights["plan-0"], weights["plan-1"]) == (1.0, -0.5)


def test_other_groups_roles_and_contexts_are_no_siblings() -> None:
    group = [planned(0, 1.0, 10), planned(1, 0.0, 11)]
    other = [
        t.model_copy(update={"group_id": "other", "id": f"o{t.id}"}) for t in (planned(2, 1.0, 10),)
    ]
    overlays = [
        *kept(group),
        kept(group)[0].model_copy(update={"group_id": "other", "trajectory_id": "orollout-2"}),
    ]
    weights = credit_by_name("per_role")([*group, *other], overlays)
    assert weights == whole_trajectory([*group, *other], overlays)


def test_forks_of_one_run_are_siblings_at_the_call_where_they_part() -> None:
    plan = of_role("plan", "plan", [3, 10], 1)
    inherited = plan.model_copy(update={"identity": place("origin", "plan", "plan")})
    forks = [
        planned(i, float(i == 0), 10).model_copy(
            update={
                "thread_id": "t",
                "forked_from": ForkRef(trajectory_id="origin", checkpoint_id="c"),
                "calls": (inherited, of_role("plan", f"again-{i}", [7, 40 + i], 1, "plan")),
            }
        )
        for i in range(2)
    ]
    weights = credit_by_name("per_role")(forks, kept(forks))
    assert weights == dict(zip(("again-0", "again-1"), normalised([1.0, 0.0]), strict=True))


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=2, max_size=6))
def test_under_even_credit_each_rollout_weighs_alike(shape: list[tuple[int, bool]]) -> None:
    group = [planned(i, float(right), 10 + i, calls) for i, (calls, right) in enumerate(shape)]
    overlays = [
        o.model_copy(update={"advantage": 1.0 if r else -2.0, "verdict": Verdict.KEPT})
        for o, (_, r) in zip(select(group, 9, "grpo", seed=0), shape, strict=True)
    ]
    weights = credit_by_name("even")(group, overlays)
    tokens = [[call.sampled_tokens for call in each.own_calls] for each in group]
    sums = [
        sum(abs(weights[c.id]) * n for c, n in zip(each.own_calls, counts, strict=True))
        / abs(float(o.advantage or 0))
        for each, counts, o in zip(group, tokens, overlays, strict=True)
    ]
    assert sums == pytest.approx([sums[0]] * len(sums))
    scales = [
        weights[c.id] / float(o.advantage or 0) * n
        for each, counts, o in zip(group, tokens, overlays, strict=True)
        for c, n in zip(each.own_calls, counts, strict=True)
    ]
    assert sum(scales) == pytest.approx(sum(map(sum, tokens))), (
        "the mean scale of the batch's tokens is 1"
    )


def gradient(
    trajectories: Sequence[Trajectory],
    overlays: Sequence[Overlay],
    options: LossOptions | None = None,
) -> dict[str, torch.Tensor]:
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = build_batches(trajectories, overlays, token_budget=16)
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    policy_update(model, descent, batches, loss=options, optim=OptimOptions(max_grad_norm=1e9))
    return {name: before[name] - p.detach() for name, p in model.named_parameters()}


def turns(index: int, reward: float, worth: Sequence[float]) -> Trajectory:
    """Rollout of a solver with a call for each number of `worth`. The first call sees the same tokens
    in all rollouts.
    """
    calls = list[Call]()
    for turn in range(len(worth)):
        parent = calls[-1].id if calls else None
        tokens = [5 + turn, 20 + index, 30 + turn]
        calls.append(of_role("solve", f"turn-{index}-{turn}", tokens, 1, parent))
    by_call = {call.id: value for call, value in zip(calls, worth, strict=True) if value}
    return trajectory(
        index, reward, calls=tuple(calls), rewards_by_call={"own": by_call, "reward": by_call}
    )


UNEQUAL = [turns(0, 1.0, [0.0, -1.0, 0.0]), turns(1, 0.0, [0.5]), turns(2, 0.0, [-0.5, 1.0])]
"""Three rollouts of three, one and two turns."""


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        # returns at discount 1/2: (-1/2, -1, 0), (1/2), (0, 1); the means by place are 0
        ("position", [[-0.5, -1.0, 0.0], [0.5], [0.0, 1.0]]),
        # second calls saw different answers, and have no sibling
        ("anchor", [[-0.5, 0.0, 0.0], [0.5], [0.0, 0.0]]),
    ],
)
def test_credit_per_turn_equals_a_computation_by_hand(
    baseline: str, expected: list[list[float]]
) -> None:
    overlays = kept(UNEQUAL, "dr_grpo")
    options = TurnOptions(weight=3.0, discount=0.5, baseline=baseline)  # type: ignore[arg-type]
    credit = credit_by_name("per_turn", advantages="dr_grpo", turns=options)
    outcome = [2 / 3, -1 / 3, -1 / 3]
    by_hand = {
        call.id: whole + 3.0 * turn
        for each, whole, of_turns in zip(UNEQUAL, outcome, expected, strict=True)
        for call, turn in zip(each.own_calls, of_turns, strict=True)
    }
    assert credit(UNEQUAL, overlays) == pytest.approx(by_hand)

    model = tiny_model().double()
    loss = torch.zeros((), dtype=torch.float64)
    for each in UNEQUAL:
        tokens = [token for call in each.own_calls for token in call.token_ids]
        sampled = [flag for call in each.own_calls for flag in call.mask]
        weights = [by_hand[call.id] for call in each.own_calls for _ in call.mask]
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        for i in range(1, len(tokens)):
            if sampled[i]:
                loss = loss - weights[i] * logprobs[i - 1, tokens[i]] / 12
    loss.backward()
    found = gradient(UNEQUAL, credited(UNEQUAL, overlays, credit))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            found[name].double(), parameter.grad, rtol=1e-4, atol=1e-6, msg=name
        )


@pytest.mark.parametrize("advantages", ADVANTAGES)
def test_without_rewards_of_calls_the_update_is_that_of_the_outcome_bit_for_bit(
    advantages: str,
) -> None:
    bare = [each.model_copy(update={"rewards_by_call": {}}) for each in UNEQUAL]
    overlays = kept(bare, advantages)
    credit = credit_by_name("per_turn", advantages=advantages)
    found = gradient(bare, credited(bare, overlays, credit))
    for name, expected in gradient(bare, overlays).items():
        assert torch.equal(found[name], expected), name


def test_the_reward_of_a_tool_call_is_that_of_the_call_that_asked_for_it() -> None:
    asked = {"tool_calls": [{"id": "t-1", "name": "python", "args": {}}]}
    first, second = turns(0, 1.0, [0.0, 0.0]).own_calls
    calls = (first.model_copy(update={"response": {**first.response, **asked}}), second)
    by_call = {"reward": {"t-1": -1.0, second.id: 0.25}}
    whole = trajectory(0, 1.0, calls=calls, tool_calls=(tool_call("t-1"),), rewards_by_call=by_call)
    other = turns(1, 0.0, [0.0, 0.0])
    overlays = kept([whole, other], "dr_grpo")
    weights = credit_by_name("per_turn", advantages="dr_grpo")([whole, other], overlays)
    assert [weights[call.id] for call in calls] == [0.5 - 0.75 / 2, 0.5 + 0.25 / 2]


def test_equal_outcomes_are_kept_where_the_rewards_of_calls_differ() -> None:
    group = [each.model_copy(update={"rewards": {"correct": 1.0}}) for each in UNEQUAL]
    bare = [each.model_copy(update={"rewards_by_call": {}}) for each in group]
    alike = [turns(index, 1.0, [-1.0]) for index in range(3)]
    for rollouts, by_turn, verdict in (
        (group, TurnOptions(), Verdict.KEPT),
        (group, None, Verdict.GROUP_REJECTED),
        (bare, TurnOptions(), Verdict.GROUP_REJECTED),
        (alike, TurnOptions(), Verdict.GROUP_REJECTED),
    ):
        options = RocOptions(turns=by_turn)
        judged = select(rollouts, 3, "grpo", seed=0, options=options)
        assert {o.verdict for o in judged} == {verdict}


def test_a_rollout_that_the_policy_made_fail_has_the_lowest_return_at_each_place() -> None:
    failed = turns(3, 0.0, [0.0, 0.0]).model_copy(
        update={"status": RunStatus.FAILED, "rewards": {}, "rewards_by_call": {}}
    )
    group = [*UNEQUAL, failed]
    overlays = by_group(
        [
            overlay.model_copy(update={"verdict": Verdict.KEPT, "reward": 0.0})
            for overlay in select(group, 4, "grpo", seed=0)
        ],
        "dr_grpo",
    )
    weights = credit_by_name("per_turn", advantages="dr_grpo")(group, overlays)
    for turn in range(2):
        others = [each.own_calls[turn] for each in UNEQUAL if len(each.own_calls) > turn]
        lowest = min(weights[call.id] for call in others)
        assert weights[failed.own_calls[turn].id] == pytest.approx(lowest)


def test_own_advantages_are_for_rewards_of_rollouts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "def own(rewards, eps):\n    assert min(map(min, rewards)) >= 0\n    return rewards"
    Path("mine.py").write_text(code)
    overlays = kept(UNEQUAL, "./mine.py:own")
    own = credit_by_name("per_turn", advantages="./mine.py:own")(UNEQUAL, overlays)
    usual = credit_by_name("per_turn", advantages="grpo")(UNEQUAL, overlays)
    assert own == usual


def test_even_credit_under_a_mean_over_tokens_is_the_mean_over_rollouts() -> None:
    group = [planned(0, 1.0, 10, 4), planned(1, 0.0, 11, 1), planned(2, 0.0, 12, 2)]
    overlays = kept(group)
    even = gradient(group, credited(group, overlays, credit_by_name("even")))
    for name, expected in gradient(group, overlays, LossOptions(aggregation="sequence")).items():
        torch.testing.assert_close(even[name], expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", CREDITS)
def test_a_frozen_role_is_context_and_no_more(name: str) -> None:
    """Frozen calls have weight 0. The gradient equals that of rollouts without these calls."""
    group = [planned(0, 1.0, 10, 3), planned(1, 0.0, 10, 1), planned(2, 0.0, 12, 2)]
    overlays = credited(group, kept(group), credit_by_name(name, frozen={"plan"}))
    given_by_id = {call: w for overlay in overlays for call, w in (overlay.credit or {}).items()}
    assert given_by_id and not any(call.startswith("plan") for call in given_by_id)
    rows = kept_rows(group, overlays)
    trained = {int(t) for row in rows for t in row.token_ids[row.loss_mask]}
    assert trained and not trained & {10, 11, 12}, "no token of a plan is trained"
    without = [t.model_copy(update={"calls": t.calls[1:]}) for t in group]
    expected = gradient(without, credited(without, kept(without), credit_by_name(name)))
    frozen = gradient(group, overlays)
    assert all(torch.equal(frozen[parameter], each) for parameter, each in expected.items())
    free = gradient(group, credited(group, kept(group), credit_by_name(name)))
    assert any(not torch.equal(frozen[parameter], each) for parameter, each in free.items())


def test_a_frozen_role_within_a_conversation_is_read_and_not_trained() -> None:
    calls = (of_role("plan", "a", [1, 2], 1), of_role("solve", "b", [3, 4], 1, "a"))
    group = [trajectory(0, 1.0, calls=calls), trajectory(1, 0.0)]
    overlays = credited(group, kept(group), credit_by_name("whole_trajectory", frozen={"plan"}))
    row = kept_rows(group, overlays)[0]
    assert row.token_ids.tolist() == [1, 2, 3, 4]
    assert row.loss_mask.tolist() == [False, False, False, True]


def test_what_was_credited_stands_in_the_overlay_unless_it_follows_from_the_advantage() -> None:
    group = [planned(0, 1.0, 10), planned(1, 0.0, 10), planned(2, 0.0, 11)]
    overlays = kept(group)
    dropped = overlays[2].model_copy(update={"verdict": Verdict.DROPPED, "advantage": None})
    overlays = [*overlays[:2], dropped]
    assert credited(group, overlays, credit_by_name("whole_trajectory")) == overlays
    found = credited(group, overlays, credit_by_name("per_role"))
    assert [o.credit and sorted(o.credit) for o in found] == [
        ["plan-0", "solve-0-0"],
        ["plan-1", "solve-1-0"],
        None,
    ]
    by_record = kept_rows(group, found)
    directly = kept_rows(group, overlays, credit_by_name("per_role"))
    assert [row.weights.tolist() for row in by_record] == [row.weights.tolist() for row in directly]


def test_names_are_looked_up() -> None:
    assert credit_by_name("whole_trajectory") is whole_trajectory
    with pytest.raises(ConfigError, match=r"'per_rol' is an unknown value of credit.*per_role"):
        credit_by_name("per_rol")
    with pytest.raises(ConfigError, match="is an unknown value of advantages"):
        credit_by_name("per_role", advantages="gae")
