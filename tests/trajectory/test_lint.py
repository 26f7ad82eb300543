"""Each invariant is broken once, and the linter names exactly that one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from hrm_agent.trajectory import (
    BranchReason,
    ForkRef,
    GraphIdentity,
    LogprobKind,
    RunStatus,
    StopReason,
    Trajectory,
    call_id,
)
from hrm_agent.trajectory.call_facts import RaisedError
from hrm_agent.trajectory.lint import INVARIANTS, Finding, lint
from tests.support.trajectory.samples import (
    THREAD,
    identity,
    make_call,
    make_tool_call,
    make_trajectory,
)

Corruption = Callable[[], Trajectory]


def with_call(position: int, **changes: Any) -> Trajectory:
    """The sound trajectory with one call changed."""
    sound = make_trajectory()
    calls = list(sound.calls)
    calls[position] = calls[position].model_copy(update=changes)
    return sound.model_copy(update={"calls": tuple(calls)})


def with_calls(*calls: Any) -> Trajectory:
    return make_trajectory(calls=calls)


def with_tool_call(**changes: Any) -> Trajectory:
    sound = make_trajectory()
    return sound.model_copy(update={"tool_calls": (make_tool_call().model_copy(update=changes),)})


def moved(task_id: str, where: GraphIdentity) -> Trajectory:
    """Trajectory with a single call, moved elsewhere under a matching ID."""
    return with_calls(make_call(task_id, identity=where))


def cycle() -> Trajectory:
    first, second = call_id(THREAD, "a", 0), call_id(THREAD, "b", 0)
    return with_calls(make_call("a", parent=second), make_call("b", parent=first))


def swapped() -> Trajectory:
    calls = make_trajectory().calls
    return with_calls(calls[1], calls[0], calls[2])


CORRUPTIONS: list[tuple[str, str, Corruption]] = [
    ("alignment", "a log-prob is missing", lambda: with_call(0, logprobs=(0.0, 0.0, -0.5))),
    ("token-range", "a negative token id", lambda: with_call(0, token_ids=(5, -1, 7, 2))),
    ("token-range", "a token id beyond 32 bits", lambda: with_call(0, token_ids=(5, 2**31, 7, 2))),
    (
        "mask-shape",
        "inserted after sampled",
        lambda: with_call(0, mask=(False, True, False, True), logprobs=(0.0, -0.5, 0.0, -0.25)),
    ),
    ("root-prompt", "no prompt", lambda: with_call(2, mask=(True,) * 4)),
    (
        "sampled-limit",
        "more than allowed",
        lambda: with_call(0, sampling=make_call("x").sampling.model_copy(update={"max_tokens": 1})),
    ),
    ("logprob-finite", "not a number", lambda: with_call(0, logprobs=(0.0, 0.0, nan, -0.25))),
    ("logprob-finite", "minus infinity", lambda: with_call(0, logprobs=(0.0, 0.0, -inf, -0.25))),
    (
        "logprob-nonpositive",
        "a probability above 1",
        lambda: with_call(0, logprobs=(0.0, 0.0, 0.5, -0.25)),
    ),
    (
        "logprob-inserted",
        "an inserted token has one",
        lambda: with_call(0, logprobs=(0.0, -0.1, -0.5, -0.25)),
    ),
    (
        "unique-ids",
        "a tool call twice",
        lambda: make_trajectory(tool_calls=(make_tool_call(), make_tool_call())),
    ),
    ("unique-ids", "a call twice", lambda: with_calls(make_call("a"), make_call("a"))),
    ("call-id", "another id", lambda: with_call(2, id="0" * 32)),
    (
        "call-id",
        "the id of another sample",
        lambda: with_call(2, id=call_id(THREAD, "task-c", 1, 1)),
    ),
    ("tool-record-id", "another id", lambda: with_tool_call(id="0" * 32)),
    (
        "forest-thread",
        "a call of another thread",
        lambda: moved("a", identity("a", thread_id="thread-2")),
    ),
    (
        "forest-thread",
        "a tool call of another thread",
        lambda: make_trajectory(
            tool_calls=(make_tool_call(identity=identity("b", thread_id="thread-2")),)
        ),
    ),
    (
        "namespace-task",
        "the namespace of another task",
        lambda: moved("a", identity("a").model_copy(update={"checkpoint_ns": "reason:other"})),
    ),
    (
        "call-index-gapless",
        "a call is missing",
        lambda: with_calls(make_call("a"), make_call("a", 2)),
    ),
    (
        "failed-apart",
        "a failed call among the answered ones",
        lambda: with_call(0, error=RaisedError(kinds=("builtins:ValueError",), message="429")),
    ),
    (
        "failed-apart",
        "an answer among the failed ones",
        lambda: make_trajectory(failed_calls=(make_call("z"),)),
    ),
    (
        "sample-index-gapless",
        "a sample is missing",
        lambda: with_calls(make_call("a"), make_call("a", sample_index=2)),
    ),
    (
        "call-once",
        "sampled again under another task",
        lambda: with_calls(make_call("a"), make_call("b", request_hash="request-a-0")),
    ),
    ("parent-known", "an unknown parent", lambda: with_calls(make_call("a", parent="0" * 32))),
    ("parent-known", "branched off an unknown call", lambda: with_call(2, branch_of="0" * 32)),
    ("parent-acyclic", "two calls extend each other", cycle),
    ("parent-earlier", "the child first", swapped),
    ("root-named", "a root without a reason", lambda: with_call(0, branch_reason=None)),
    (
        "root-named",
        "a reason beside a parent",
        lambda: with_call(1, branch_reason=BranchReason.TEMPLATE),
    ),
    (
        "trainable-kind",
        "renormalised log-probs",
        lambda: with_call(0, logprob_kind=LogprobKind.SAMPLED),
    ),
    (
        "trainable-kind",
        "nothing sampled",
        lambda: with_call(0, mask=(False,) * 4, logprobs=(0.0,) * 4),
    ),
    (
        "constrained-context",
        "held to a schema, and trainable",
        lambda: with_call(0, constrained=True),
    ),
    ("trainable-kind", "untrainable without a reason", lambda: with_call(0, untrainable=" ")),
    ("policy-version", "older than the run", lambda: with_call(0, policy_version=2)),
    ("policy-version", "older than its parent", lambda: with_call(0, policy_version=5)),
    ("reward-range", "above 1", lambda: make_trajectory(rewards={"correct": 2.0})),
    ("reward-range", "not a number", lambda: make_trajectory(rewards={"correct": nan})),
    ("tool-status-final", "still under way", lambda: with_tool_call(status=None)),
    ("tool-repeat", "repeats an unknown call", lambda: with_tool_call(repeated_of="0" * 32)),
    (
        "status-reason",
        "completed at a limit",
        lambda: make_trajectory(stop_reason=StopReason.MAX_TURNS),
    ),
    (
        "status-reason",
        "an answer in a truncated run",
        lambda: make_trajectory(status=RunStatus.TRUNCATED),
    ),
    (
        "status-reason",
        "failed without an error",
        lambda: make_trajectory(status=RunStatus.FAILED, stop_reason=StopReason.ERROR),
    ),
    (
        "times",
        "a call that ends before it starts",
        lambda: with_call(0, ended_at=99.5, queue_seconds=0.0),
    ),
    ("times", "waits longer than it lasts", lambda: with_call(0, queue_seconds=60.0)),
    ("times", "ended without an end", lambda: make_trajectory(ended_at=None)),
    ("times", "ended before it started", lambda: make_trajectory(ended_at=1.0)),
]


@pytest.mark.parametrize(
    ("name", "what", "corrupt"), CORRUPTIONS, ids=[f"{n}: {w}" for n, w, _ in CORRUPTIONS]
)
def test_a_corruption_is_named_exactly(name: str, what: str, corrupt: Corruption) -> None:
    findings = lint(corrupt())
    assert {finding.name for finding in findings} == {name}
    assert all(finding.where and finding.message for finding in findings)


def test_every_invariant_has_its_corruption_and_states_itself() -> None:
    assert {name for name, _, _ in CORRUPTIONS} == set(INVARIANTS)
    assert all(check.__doc__ for check in INVARIANTS.values())


def test_a_way_into_a_cycle_is_not_on_it() -> None:
    calls = cycle().calls
    leading = make_call("c", parent=calls[0].id)
    found = lint(with_calls(leading, *calls))
    assert [one.name for one in found] == ["parent-acyclic", "parent-earlier"]
    assert [one.where for one in found] == [min(call.id for call in calls), leading.id]
    assert "2 calls are their own ancestors" in found[0].message


def test_nothing_is_found_in_a_sound_trajectory() -> None:
    assert lint(make_trajectory()) == []
    assert lint(make_trajectory(calls=(), tool_calls=(), group_id="")) == []


def test_a_finding_says_where() -> None:
    call = make_trajectory().calls[0]
    found = lint(with_call(0, logprobs=()))
    assert found == [
        Finding("alignment", call.id, "token_ids, mask and logprobs have 4, 4 and 0 entries")
    ]


def test_a_running_trajectory_may_be_unfinished() -> None:
    running = make_trajectory(
        status=RunStatus.RUNNING,
        stop_reason=None,
        ended_at=None,
        answer=None,
        rewards={},
        calls=(make_call("a", 1),),
        tool_calls=(make_tool_call(status=None),),
    )
    assert lint(running) == []


def test_a_fork_may_extend_the_run_that_it_left() -> None:
    fork = make_trajectory(
        thread_id="thread-2",
        forked_from=ForkRef(trajectory_id="trajectory-1", checkpoint_id="c"),
        calls=(
            make_call(
                "a",
                identity=identity("a", thread_id="thread-2"),
                parent=call_id(THREAD, "task-a", 0),
            ),
        ),
        tool_calls=(),
    )
    assert lint(fork) == []


def test_a_call_without_tokens_is_sound_when_it_says_so() -> None:
    hosted = make_call(
        "a",
        token_ids=(),
        mask=(),
        logprobs=(),
        logprob_kind=LogprobKind.NONE,
        branch_reason=BranchReason.NO_TOKENS,
        untrainable="the model reports no token ids",
        model="gpt",
        policy_version=0,
    )
    assert lint(make_trajectory(calls=(hosted,))) == []


def test_the_log_prob_of_a_certain_token_may_be_rounded_up() -> None:
    assert lint(with_call(0, logprobs=(0.0, 0.0, 1e-6, -0.25))) == []


def test_the_same_request_may_be_asked_again_with_another_seed_or_none() -> None:
    first = make_call("a")
    for seed in (12, None):
        sampling = first.sampling.model_copy(update={"seed": seed})
        again = [
            make_call(task, request_hash=first.request_hash, sampling=sampling)
            for task in ("b", "c")
        ]
        assert lint(with_calls(first, *(again if seed is None else again[:1]))) == []
