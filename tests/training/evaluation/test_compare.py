"""Counts of an evaluation beside its score, and comparisons of two evaluations."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.errors import ConfigError, RunError
from hrm_agent.training.evaluation.compare import compare
from hrm_agent.training.evaluation.evaluate import evaluate
from hrm_agent.training.evaluation.prices import read_prices
from hrm_agent.training.evaluation.reports import summary
from hrm_agent.training.evaluation.roles import role_counts
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.trajectory import FinishReason, RunStatus, StopReason, TaskRef, Trajectory
from tests.support.training.builders import ANSWER, call, place, rollout, trajectory


def answered(problem: str, index: int, answer: str, right: bool, **changes: Any) -> Trajectory:
    task = TaskRef(id=problem, family="f", prompt=f"p{problem}")
    facts = {
        "id": f"{problem}-{index}",
        "thread_id": f"{problem}/{index}",
        "group_id": problem,
        "task": task,
    }
    return trajectory(
        index, float(right), answer=f"<answer>\\boxed{{{answer}}}</answer>", **(facts | changes)
    )


def test_curves_are_means_over_problems_and_equal_answers_are_one_vote() -> None:
    easy = [
        answered("1", i, text, text != "7") for i, text in enumerate(["0.5", "1/2", "7", ".50"])
    ]
    hard = [answered("2", i, str(i % 3), i % 3 == 1) for i in range(5)]
    found = evaluate([*easy, *hard])
    assert found.samples == 4 and found.pass_at.keys() == found.majority_at.keys() == {1, 2, 3, 4}
    assert (
        found.pass_at_1
        == found.pass_at[1].value
        == found.majority_at[1].value
        == pytest.approx((3 / 4 + 2 / 5) / 2)
    )
    assert found.pass_at[4].value == 1
    assert found.majority_at[3].value > found.pass_at_1
    assert all(
        e.low <= e.value <= e.high for e in (*found.pass_at.values(), *found.majority_at.values())
    )


def test_a_truncated_run_has_no_vote_and_its_right_answer_is_told_apart() -> None:
    cut = {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_TOKENS}
    found = evaluate([answered("1", 0, "1", True, **cut), answered("1", 1, "2", False)])
    assert (found.pass_at[2].value, found.majority_at[2].value, found.truncated_correct) == (
        0,
        0,
        1,
    )
    assert found.stop_reasons == {"": 1, "max_tokens": 1}


def test_two_samples_of_which_one_answers_are_a_majority_of_one() -> None:
    cut = {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_TOKENS}
    found = evaluate([answered("1", 0, "1", False, **cut), answered("1", 1, "2", True)])
    assert (found.pass_at_1, found.majority_at[2].value) == (0.5, 1)
    assert "majority@2" in dict(summary(found))


def test_candidates_are_no_samples_but_their_cost_counts() -> None:
    """A choice on thread T among the runs of group T, and a fork made by hand."""
    choice = answered("1", 0, "1", True, thread_id="T", group_id="g", calls=())
    candidates = [rollout(i, 0.0, i, 2, group_id="T", thread_id=f"T/{i}") for i in range(2)]
    fork = answered("1", 9, "3", False, forked_from={"trajectory_id": "x", "checkpoint_id": "c"})
    found = evaluate([candidates[0], choice, fork, candidates[1]])
    assert (found.trajectories, found.pass_at_1) == (1, 1.0)
    assert (found.mean_sampled_tokens, found.mean_tool_calls) == (4, 4)
    assert (found.tool_error_share, found.correct_with_tool_error) == (0.25, 1.0)
    assert found.roles["reason"]["runs"] == 2


def at(thread: str, *nodes: str, **changes: Any) -> Any:
    """A call made in `nodes`, outermost first, each `node:task`."""
    identity = place(thread, nodes[-1]).model_copy(update={"checkpoint_ns": "|".join(nodes)})
    return call(f"{nodes}-{changes.get('call_index', 0)}", identity=identity, **changes)


def test_failures_are_counted_by_role_as_the_record_shows_them() -> None:
    asked = {
        "content": "",
        "tool_calls": [],
        "invalid_tool_calls": [{"id": "t"}],
        "usage_metadata": {"input_tokens": 9},
    }
    calls = (
        at("t", "plan:1", text="no plan at all"),
        at("t", "plan:1", call_index=1, text="Sorry: {'subgoals': [{'goal': 'add'}]}"),
        at("t", "solve:2", "reason:3", response=asked),
        at("t", "solve:2", "reason:4", text=ANSWER),
        at("t", "solve:5", "reason:6", text="I wond", finish_reason=FinishReason.LENGTH),
        at("t", "critique:7", text="fine, I think"),
        at("t", "synthesize:8", text="Answer: 3"),
    )
    tool = rollout(0, 1.0, 1).tool_calls[0].model_copy(update={"tool_call_id": "t"})
    whole = trajectory(calls=calls, tool_calls=(tool,), graph="reasoning")
    roles = {
        name: {k: v for k, v in counts.items() if v} for name, counts in role_counts(whole).items()
    }
    assert list(roles) == ["plan", "solve", "critique", "synthesize"]
    assert roles["plan"] == {"runs": 1, "calls": 2, "asked_again": 1, "sampled_tokens": 4}
    assert (roles["solve"]["runs"], roles["solve"]["failed"], roles["solve"]["truncated"]) == (
        2,
        1,
        1,
    )
    assert (
        roles["solve"]["undecodable"],
        roles["solve"]["tool_errors"],
        roles["solve"]["read_tokens"],
    ) == (1, 1, 9)
    assert roles["critique"]["failed"] == 1 and "failed" not in roles["synthesize"]
    plain = role_counts(whole.model_copy(update={"graph": "own:graph"}))
    assert not any(counts["failed"] for counts in plain.values()), (
        "of a graph of one's own nothing is demanded"
    )


def test_cost_is_by_model_and_unknown_without_a_price() -> None:
    usage = {"usage_metadata": {"input_tokens": 1000, "output_tokens": 500}, "content": "x"}
    calls = tuple(
        call(f"c{m}", model=m, response=usage, token_ids=(), mask=(), logprobs=())
        for m in ("a", "b")
    )
    priced = {"response_metadata": {"token_usage": {"cost": 0.25}}, **usage}
    runs = [
        trajectory(0, calls=calls),
        trajectory(1, calls=(call("d", model="a", response=priced),)),
    ]
    assert evaluate(runs).cost is None and evaluate(runs).reported_cost == 0.25
    assert evaluate(runs, prices=read_prices(["a=1,2"])).cost is None, "b has no price"
    assert evaluate(runs[:1], prices=read_prices(["1,2", "b=10,0"])).cost == pytest.approx(
        0.002 + 0.01
    )
    for wrong in ("1", "a=1", "1,-2", "a,b", "=1;2"):
        with pytest.raises(ConfigError, match="is not a price"):
            read_prices([wrong])


def test_a_comparison_pairs_problems_and_names_what_it_leaves_out() -> None:
    a = [answered(str(p), 0, "1", p % 2 == 0) for p in range(20)]
    b = [answered(str(p), i, "1", p != 1) for p in range(2, 24) for i in range(2)]
    other = answered("0", 0, "1", True, task=TaskRef(id="0", family="f", prompt="another"))
    found = compare(samples_of(a), samples_of([*b, other]), ("A", "B"))
    assert (
        found.problems == 18
        and found.only_b == ("0", "20", "21", "22", "23")
        and found.only_a == ("0", "1")
    )
    assert found.difference.value == 0.5 and found.difference.low > 0 and found.certain
    assert found.test.startswith("paired permutation") and found.p_value == pytest.approx(2 / 2**9)
    assert len(found.better) == 9 and found.worse == ()
    mirrored = compare(samples_of(b), samples_of(a), ("B", "A"))
    assert (mirrored.difference.value, mirrored.p_value, mirrored.worse) == (
        -0.5,
        found.p_value,
        found.better,
    )
    same = compare(samples_of(a), samples_of(a), ("A", "A"))
    assert (same.p_value, same.test, same.certain) == (1.0, "McNemar, exact", False)
    assert same.difference.low < 0 < same.difference.high, (
        "20 problems do not prove that nothing differs"
    )


def test_what_cannot_be_compared_is_said() -> None:
    one, two = answered("1", 0, "1", True), answered("2", 0, "1", True)
    renamed = one.model_copy(update={"task": TaskRef(id="1", family="f", prompt="other")})
    running = one.model_copy(update={"status": RunStatus.RUNNING})
    for a, b, message in (
        (one, two, "A and B have no problem in common."),
        (one, renamed, "no problem in common: 1 ids are in both, with other prompts"),
        (one, running, "B has no trajectory that ended."),
    ):
        with pytest.raises(RunError, match=message):
            compare(samples_of([a]), samples_of([b]), ("A", "B"))
