from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_agent.errors import ConfigError
from hrm_agent.training.select.roc import (
    ALGORITHMS,
    RocOptions,
    penalty_error,
    penalty_format,
    quotas,
    select,
)
from hrm_agent.training.update.advantages import group_advantages
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    Overlay,
    RunStatus,
    ToolStatus,
    Trajectory,
    Verdict,
)
from tests.support.training.builders import call, group, rollout, tool_call, trajectory

TABLE = {
    (1, 31): (1, 15), (2, 30): (2, 14), (3, 29): (2, 14), (5, 27): (2, 14), (6, 26): (3, 13), (8, 24): (4, 12),
    (16, 16): (8, 8), (24, 8): (12, 4), (26, 6): (13, 3), (28, 4): (14, 2), (31, 1): (15, 1),
}  # fmt: skip

rollouts = st.lists(
    st.tuples(
        st.booleans(), st.integers(0, 3), st.integers(0, 3), st.sampled_from(list(RunStatus))
    ),
    min_size=1,
    max_size=24,
)


def build(rows: list[tuple[bool, int, int, RunStatus]]) -> list[Trajectory]:
    return [
        rollout(i, float(ok), bad, bad + good, status=status)
        for i, (ok, bad, good, status) in enumerate(rows)
    ]


def kept(overlays: list[Overlay]) -> set[str]:
    return {overlay.trajectory_id for overlay in overlays if overlay.verdict is Verdict.KEPT}


@pytest.mark.parametrize("shape", TABLE)
def test_quotas_are_those_of_the_released_code(shape):
    assert quotas(*shape, 16) == TABLE[shape]


@pytest.mark.parametrize("shape", TABLE)
@pytest.mark.parametrize("selection", ["inverse", "lowest"])
def test_selection_keeps_its_quotas(shape, selection):
    overlays = select(
        group(*shape), 16, "grpo-roc", seed=1, options=RocOptions(selection=selection)
    )
    assert Counter(o.reward for o in overlays if o.verdict is Verdict.KEPT) == {
        1.0: TABLE[shape][0],
        0.0: TABLE[shape][1],
    }


@given(
    st.integers(1, 60), st.integers(1, 60), st.integers(2, 32), st.integers(0, 5), st.integers(0, 5)
)
def test_quotas_add_up_and_are_possible(positives, negatives, keep, least_p, least_z):
    if positives + negatives > keep:
        p, z = quotas(positives, negatives, keep, least_p, least_z)
        assert p + z == keep
        assert 0 <= p <= positives
        assert 0 <= z <= negatives


@given(
    rollouts,
    st.sampled_from(sorted(ALGORITHMS)),
    st.integers(2, 12),
    st.integers(0, 5),
    st.randoms(),
)
def test_permuting_a_group_changes_nothing(rows, algorithm, keep, seed, shuffler):
    whole = build(rows)
    shuffled = list(whole)
    shuffler.shuffle(shuffled)
    judged = {o.trajectory_id: o for o in select(whole, keep, algorithm, seed=seed)}
    assert {o.trajectory_id: o for o in select(shuffled, keep, algorithm, seed=seed)} == judged


@given(rollouts, st.sampled_from(sorted(ALGORITHMS)), st.integers(2, 12))
def test_every_rollout_gets_a_verdict_and_a_reason(rows, algorithm, keep):
    whole = build(rows)
    overlays = select(whole, keep, algorithm, seed=0)
    assert [o.trajectory_id for o in overlays] == [t.id for t in whole]
    assert all(o.reason for o in overlays)


@given(
    rollouts, st.sampled_from(["grpo-random", "grpo-roc", "grpo-roc-random"]), st.integers(2, 12)
)
def test_exactly_as_many_are_kept_as_can_be(rows, algorithm, keep):
    whole = build(rows)
    ended = [t for t in whole if t.status in (RunStatus.COMPLETED, RunStatus.TRUNCATED)]
    overlays = select(whole, keep, algorithm, seed=0)
    if not any(o.verdict is Verdict.GROUP_REJECTED for o in overlays):
        assert len(kept(overlays)) == min(keep, len(ended))
    assert kept(overlays) <= {t.id for t in ended}


@given(rollouts, st.integers(0, 3))
def test_a_group_of_g_reduces_to_plain_grpo(rows, seed):
    whole = build(rows)
    keep = max(2, len(whole))
    plain = select(whole, keep, "grpo", seed=seed)
    assert select(whole, keep, "grpo-roc", seed=seed) == plain
    assert group_advantages(select(whole, keep, "grpo-roc", seed=seed)) == group_advantages(plain)


def test_without_penalties_positives_are_drawn_uniformly():
    counts: Counter[str] = Counter()
    for seed in range(600):
        counts.update(kept(select(group(8, 8), 8, "grpo-roc", seed=seed)))
    assert all(240 < counts[f"rollout-{i}"] < 360 for i in range(16)), counts


def test_clean_positives_are_preferred_in_inverse_proportion_to_the_penalty():
    # Penalties 1/4 and 1 with one of two kept: the lesser penalty wins four times out of five.
    whole = [rollout(0, 1.0, 1, 4), rollout(1, 1.0, 4, 4), *[rollout(i, 0.0) for i in (2, 3)]]
    options = RocOptions(min_positives=1, min_negatives=1)
    wins = sum(
        "rollout-0" in kept(select(whole, 2, "grpo-roc", seed=seed, options=options))
        for seed in range(2000)
    )
    assert 1520 < wins < 1680


def test_lowest_takes_the_least_penalties_in_stable_order():
    whole = [rollout(i, 1.0, failed, 4) for i, failed in enumerate([2, 0, 1, 0, 2, 1])]
    whole += [rollout(i, 0.0) for i in range(6, 12)]
    overlays = select(whole, 6, "grpo-roc", seed=0, options=RocOptions(selection="lowest"))
    assert {name for name in kept(overlays) if name in {t.id for t in whole[:6]}} == {
        "rollout-1",
        "rollout-2",
        "rollout-3",
    }


def test_negatives_are_kept_whatever_their_penalty():
    whole = [
        *[rollout(i, 0.0, i % 2 * 4, 4) for i in range(8)],
        *[rollout(i, 1.0) for i in range(8, 16)],
    ]
    counts: Counter[str] = Counter()
    for seed in range(400):
        counts.update(kept(select(whole, 8, "grpo-roc", seed=seed)))
    assert all(150 < counts[f"rollout-{i}"] < 250 for i in range(8))


def test_random_control_ignores_rewards_and_penalties():
    counts: Counter[str] = Counter()
    for seed in range(400):
        counts.update(
            kept(
                select(
                    [rollout(i, float(i < 8), i % 2, 1) for i in range(16)],
                    8,
                    "grpo-random",
                    seed=seed,
                )
            )
        )
    assert all(150 < counts[f"rollout-{i}"] < 250 for i in range(16))


def test_the_fair_control_has_the_quotas_of_roc_and_draws_positives_uniformly():
    whole = [rollout(i, float(i < 6), i % 3, 2) for i in range(16)]
    counts: Counter[str] = Counter()
    for seed in range(200):
        roc, control = (
            kept(select(whole, 8, name, seed=seed)) for name in ("grpo-roc", "grpo-roc-random")
        )
        positives = {t.id for t in whole if t.reward > 0.5}
        assert len(control & positives) == len(roc & positives) == 3
        assert control - positives == roc - positives, "the negatives are the same ones"
        counts.update(control & positives)
    assert all(65 < counts[f"rollout-{i}"] < 135 for i in range(6)), counts


def test_the_fair_control_never_loses_the_only_positive():
    def groups_left(algorithm):
        judged = (select(group(1, 15), 8, algorithm, seed=seed) for seed in range(400))
        return sum(overlays[0].verdict is Verdict.KEPT for overlays in judged) / 400

    assert groups_left("grpo-roc-random") == groups_left("grpo-roc") == 1.0
    assert 0.4 < groups_left("grpo-random") < 0.6


def test_the_draw_does_not_depend_on_ids_that_contain_the_time():
    one = select(group(10, 6), 8, "grpo-roc", seed=3)
    other = [
        t.model_copy(update={"id": f"{random.random()}", "thread_id": f"{random.random()}"})
        for t in group(10, 6)
    ]
    again = select(other, 8, "grpo-roc", seed=3)
    assert [o.verdict for o in one] == [o.verdict for o in again]
    assert [o.verdict for o in select(group(10, 6), 8, "grpo-roc", seed=4)] != [
        o.verdict for o in one
    ]
    assert [o.verdict for o in select(group(10, 6), 8, "grpo-roc", seed=3, step=1)] != [
        o.verdict for o in one
    ]


def test_all_equal_groups_are_rejected_with_the_reason():
    overlays = select(group(8, 0), 4, "grpo-roc", seed=0)
    assert {o.verdict for o in overlays} == {Verdict.GROUP_REJECTED}
    assert overlays[0].reason == "group rejected: all 8 rewards are 1"
    assert {o.advantage for o in group_advantages(overlays)} == {None}


def test_a_random_draw_without_contrast_rejects_the_group():
    overlays = [select(group(1, 15), 2, "grpo-random", seed=seed) for seed in range(10)]
    assert any("those drawn are all 0" in o[0].reason for o in overlays)


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.ABORTED, RunStatus.RUNNING])
def test_failures_of_the_infrastructure_are_left_out_and_say_so(status):
    whole = [*group(3, 3), rollout(6, 0.0, status=status, error="OSError: disk gone")]
    overlays = select(whole, 4, "grpo-roc", seed=0)
    assert overlays[-1].verdict is Verdict.DROPPED
    assert overlays[-1].reason.startswith("left out of the selection: the run")
    assert status is not RunStatus.FAILED or "OSError: disk gone" in overlays[-1].reason
    assert len(kept(overlays)) == 4


def test_truncated_rollouts_stay_with_reward_0():
    whole = [rollout(0, 1.0, status=RunStatus.TRUNCATED), rollout(1, 1.0)]
    overlays = select(whole, 2, "grpo", seed=0)
    assert [(o.verdict, o.reward) for o in overlays] == [(Verdict.KEPT, 0.0), (Verdict.KEPT, 1.0)]


def test_a_group_without_any_usable_rollout_is_reported():
    overlays = select(
        [rollout(i, 0.0, status=RunStatus.FAILED) for i in range(3)], 2, "grpo-roc", seed=0
    )
    assert [o.verdict for o in overlays] == [Verdict.DROPPED] * 3
    assert select([], 2, "grpo-roc", seed=0) == []


def test_unknown_algorithms_and_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'grpo-roc'"):
        select(group(2, 2), 2, "grpo-rock", seed=0)
    with pytest.raises(ConfigError, match="2 or more"):
        select(group(2, 2), 1, "grpo", seed=0)


def test_error_penalty_reads_typed_outcomes():
    assert penalty_error([]) == 0.5
    failing = [s for s in ToolStatus if s.is_policy_failure]
    assert len(failing) == 6
    for status in failing:
        assert penalty_error([tool_call("a"), tool_call("b", status)]) == 0.5
        assert penalty_error([tool_call("b", status)]) == 1.0
    talks_of_errors = tool_call("a").model_copy(
        update={"content": "error: Traceback", "stdout": "Error"}
    )
    assert penalty_error([talks_of_errors]) == 0.0


def test_infrastructure_and_unfinished_calls_count_on_neither_side():
    others = [tool_call("x", ToolStatus.INFRASTRUCTURE), tool_call("y", None)]
    assert penalty_error(others) == 0.5
    assert penalty_error([*others, tool_call("a", ToolStatus.ERROR), tool_call("b")]) == 0.5


@given(
    st.lists(st.sampled_from(list(ToolStatus)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.data(),
)
def test_repeating_a_call_never_lowers_the_error_ratio(statuses, repeats, data):
    calls = [tool_call(str(i), status) for i, status in enumerate(statuses)]
    padding = [
        tool_call(
            f"again-{i}",
            data.draw(st.sampled_from(list(ToolStatus))),
            repeated_of=str(i % len(calls)),
        )
        for i in range(repeats)
        if statuses[i % len(calls)] is not ToolStatus.INFRASTRUCTURE
    ]
    assert penalty_error([*calls, *padding]) >= penalty_error(calls)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["<reason>r</reason>", "<answer>1</answer>"], 0.0),
        (["no tag", "none"], 1.0),
        (["<answer>1</answer><answer>2</answer>", "<answer>3</answer>"], 1.0),
        (["<answer>1</answer>", "x", "x", "<answer>2</answer>"], 0.25),
        (["<answer>" * 9], 1.0),
    ],
)
def test_format_penalty_of_one_conversation(texts, expected):
    calls = [
        call(str(i), parent=str(i - 1) if i else None, text=text) for i, text in enumerate(texts)
    ]
    assert penalty_format(calls) == expected


def test_each_solver_may_answer_once():
    answers = [call("a"), call("b"), call("c", text="Answer: 2")]
    assert penalty_format(answers) == 0.0
    broken = call("b2", branch_reason=BranchReason.TEMPLATE, branch_of="b")
    assert penalty_format([*answers, broken]) == 0.25, (
        "a conversation whose tokens broke is still one"
    )


def test_format_penalty_reads_the_policys_own_text_only():
    blocks = [{"type": "text", "text": "<answer>"}, "1</answer>"]
    assert penalty_format([call("a").model_copy(update={"response": {"content": blocks}})]) == 0.0
    with_tool_text = trajectory(
        tool_calls=(tool_call("a").model_copy(update={"content": "<answer><answer>"}),)
    )
    assert select([with_tool_text], 2, "grpo", seed=0)[0].penalty_format == 0.0


def test_what_another_model_did_is_not_held_against_the_policy():
    """Excluded are its turns and tags and the calls it asked for, except calls whose ID the policy
    used too.
    """

    def asking(name: str, *ids: str, **changes: Any) -> Call:
        asked = {
            "content": "<answer>1</answer>",
            "tool_calls": [{"id": id_, "name": "python"} for id_ in ids],
        }
        return call(name, **changes).model_copy(update={"response": asked})

    tools = [
        tool_call("a"),
        tool_call("b", ToolStatus.ERROR),
        tool_call("c", ToolStatus.ERROR),
        tool_call("d"),
    ]
    own, others = asking("1", "a", "b"), asking("2", "b", "c", parent="1", model="critic")
    last = call("3", parent="2", text="done")
    made = trajectory(calls=(own, others, last), tool_calls=tools)
    (judged,) = select([made], 2, "grpo", seed=0)
    assert judged.penalty_error == 1 / 3, (
        "c is the critic's; b is asked for by both, d by the graph itself"
    )
    assert judged.penalty_format == 0.0
    again = last.model_copy(update={"response": own.response})
    assert penalty_format([own, others, again], policy="m") == 1 / 2, (
        "one conversation, of two turns"
    )
    assert penalty_format([others], policy="m") == 1.0


@settings(max_examples=20)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_fractional_rewards_are_split_at_a_half(rewards):
    whole = [rollout(i, reward) for i, reward in enumerate(rewards)]
    overlays = select(whole, max(2, len(whole)), "grpo", seed=0)
    assert [o.reward for o in overlays] == rewards
