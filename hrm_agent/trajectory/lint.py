"""Linter that checks whether a stored trajectory can be trained on, before compute is spent on it.

Each invariant has a stable name for tests, scripts and bug reports, and is checked separately: one
corruption gives findings under one name. So a check skips what another one covers (a child of an
unknown parent is not also reported as out of order).

Invariants that a running trajectory cannot satisfy yet (a tool call in progress, for example) do
not apply to it.
"""

from __future__ import annotations

import math
import runpy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from hrm_agent.langgraph_format import task_of_namespace
from hrm_agent.trajectory.ids import call_id, tool_record_id
from hrm_agent.trajectory.schema import (
    Call,
    GraphIdentity,
    LogprobKind,
    RunStatus,
    StopReason,
    Trajectory,
)

__all__ = ["INVARIANTS", "Finding", "lint"]

_TOLERANCE = 1e-4
"""Highest log-prob that counts as 0: in 32 bits, a token with probability 1 can get a log-prob
slightly above 0.
"""
_CLOCK_SLACK = 1.0
"""Seconds by which clocks read in different places may differ."""
_INT32_END = 2**31


class Finding(NamedTuple):
    """Violated invariant."""

    name: str
    """Stable name of the invariant."""
    where: str
    """Id of the call, tool call or trajectory."""
    message: str
    """Description of the problem, in a sentence."""


Problem = tuple[str, str]
"""Problem as (id of the call, tool call or trajectory, description)."""
Check = Callable[[Trajectory], Iterator[Problem]]

INVARIANTS: dict[str, Check] = {}
"""Name -> check; the check's docstring states the invariant."""


def _invariant(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        INVARIANTS[name] = check
        return check

    return register


def lint(trajectory: Trajectory) -> list[Finding]:
    """Return all violated invariants, in the order of `INVARIANTS`."""
    return [
        Finding(name, where, message)
        for name, check in INVARIANTS.items()
        for where, message in check(trajectory)
    ]


# Checks of tokens


def _aligned(trajectory: Trajectory) -> Iterator[Call]:
    """Calls whose token columns are equally long."""
    return (c for c in trajectory.calls if len(c.token_ids) == len(c.mask) == len(c.logprobs))


@_invariant("alignment")
def _alignment(trajectory: Trajectory) -> Iterator[Problem]:
    """Columns `token_ids`, `mask` and `logprobs` of a call are equally long."""
    for call in trajectory.calls:
        lengths = len(call.token_ids), len(call.mask), len(call.logprobs)
        if len(set(lengths)) > 1:
            yield (
                call.id,
                "token_ids, mask and logprobs have {}, {} and {} entries".format(*lengths),
            )


@_invariant("token-range")
def _token_range(trajectory: Trajectory) -> Iterator[Problem]:
    """Token ids are 32-bit integers from 0."""
    for call in trajectory.calls:
        wrong = next((token for token in call.token_ids if not 0 <= token < _INT32_END), None)
        if wrong is not None:
            yield call.id, f"{wrong} is not a token id"


@_invariant("mask-shape")
def _mask_shape(trajectory: Trajectory) -> Iterator[Problem]:
    """Within a call the prompt tokens come first, then the completion tokens, which the policy
    sampled.
    """
    for call in _aligned(trajectory):
        if any(sampled and not after for sampled, after in pairwise(call.mask)):
            yield (
                call.id,
                (
                    "a prompt token follows a completion token, after position"
                    f" {call.mask.index(True)}"
                ),
            )


@_invariant("root-prompt")
def _root_prompt(trajectory: Trajectory) -> Iterator[Problem]:
    """Roots with token ids start with a prompt token: nothing is sampled from an empty prompt."""
    for call in _aligned(trajectory):
        if call.parent is None and call.mask and all(call.mask):
            yield call.id, "a root without a prompt"


@_invariant("sampled-limit")
def _sampled_limit(trajectory: Trajectory) -> Iterator[Problem]:
    """Calls with token ids have `sampling`, and no more completion tokens than its `max_tokens`."""
    for call in _aligned(trajectory):
        if call.sampling is None:
            if call.token_ids:
                yield call.id, "token ids without the parameters that they were sampled with"
        elif call.sampled_tokens > call.sampling.max_tokens:
            yield (
                call.id,
                (
                    f"{call.sampled_tokens} completion tokens where {call.sampling.max_tokens} were"
                    " allowed"
                ),
            )


@_invariant("logprob-finite")
def _logprob_finite(trajectory: Trajectory) -> Iterator[Problem]:
    """Log-probs are finite numbers."""
    for call in trajectory.calls:
        at = next((i for i, value in enumerate(call.logprobs) if not math.isfinite(value)), None)
        if at is not None:
            yield call.id, f"log-prob {call.logprobs[at]} at position {at}"


@_invariant("logprob-nonpositive")
def _logprob_nonpositive(trajectory: Trajectory) -> Iterator[Problem]:
    """Log-probs of completion tokens are at most 0."""
    for call in _aligned(trajectory):
        pairs = enumerate(zip(call.mask, call.logprobs, strict=True))
        at = next(
            (i for i, (sampled, value) in pairs if sampled and _TOLERANCE < value < math.inf), None
        )
        if at is not None:
            yield call.id, f"log-prob {call.logprobs[at]} at position {at}: a probability above 1"


@_invariant("logprob-inserted")
def _logprob_inserted(trajectory: Trajectory) -> Iterator[Problem]:
    """Log-probs of prompt tokens are 0."""
    for call in _aligned(trajectory):
        pairs = enumerate(zip(call.mask, call.logprobs, strict=True))
        at = next(
            (
                i
                for i, (sampled, value) in pairs
                if not sampled and value != 0 and math.isfinite(value)
            ),
            None,
        )
        if at is not None:
            yield (
                call.id,
                f"log-prob {call.logprobs[at]} at position {at}, which the policy did not sample",
            )


# Checks of identities


@_invariant("unique-ids")
def _unique_ids(trajectory: Trajectory) -> Iterator[Problem]:
    """Ids of calls are unique, and so are ids of tool calls."""
    for kind, records in (("calls", trajectory.calls), ("tool calls", trajectory.tool_calls)):
        for id_, count in Counter(record.id for record in records).items():
            if count > 1:
                yield id_, f"{count} {kind} have this id"


@_invariant("call-id")
def _call_id(trajectory: Trajectory) -> Iterator[Problem]:
    """Id of a call is `hash(thread_id, task_id, call_index, sample_index)`."""
    for call in trajectory.calls:
        expected = call_id(
            call.identity.thread_id, call.identity.task_id, call.call_index, call.sample_index
        )
        if call.id != expected:
            yield call.id, f"its identity gives {expected}"


@_invariant("tool-record-id")
def _tool_record_id(trajectory: Trajectory) -> Iterator[Problem]:
    """Id of a tool call is `hash(thread_id, task_id, tool_call_id)`."""
    for tool_call in trajectory.tool_calls:
        expected = tool_record_id(
            tool_call.identity.thread_id, tool_call.identity.task_id, tool_call.tool_call_id
        )
        if tool_call.id != expected:
            yield tool_call.id, f"its identity gives {expected}"


@_invariant("forest-thread")
def _forest_thread(trajectory: Trajectory) -> Iterator[Problem]:
    """Calls and tool calls belong to the trajectory's own thread. A fork may also hold calls of its
    origin.
    """
    if trajectory.forked_from is None:
        for where, identity in _identities(trajectory):
            if identity.thread_id != trajectory.thread_id:
                yield (
                    where,
                    (
                        f"made on thread {identity.thread_id!r}, the trajectory's is"
                        f" {trajectory.thread_id!r}"
                    ),
                )


@_invariant("namespace-task")
def _namespace_task(trajectory: Trajectory) -> Iterator[Problem]:
    """The innermost task of `checkpoint_ns` is `task_id`, so that the call can be joined with its
    checkpoint.
    """
    for where, identity in _identities(trajectory):
        if identity.checkpoint_ns and task_of_namespace(identity.checkpoint_ns) != identity.task_id:
            yield (
                where,
                (
                    f"checkpoint_ns {identity.checkpoint_ns!r} does not end with task"
                    f" {identity.task_id!r}"
                ),
            )


def _identities(trajectory: Trajectory) -> Iterator[tuple[str, GraphIdentity]]:
    yield from ((call.id, call.identity) for call in trajectory.calls)
    yield from ((tool_call.id, tool_call.identity) for tool_call in trajectory.tool_calls)


@_invariant("call-index-gapless")
def _call_index_gapless(trajectory: Trajectory) -> Iterator[Problem]:
    """Call numbers of a task in a completed run start at 0 without a gap: no call is missing. A
    failed call keeps the number of its request, which a later call may share.

    In a conversation only the newest turn is checked, since earlier turns may have been cut short.
    """
    if trajectory.status is not RunStatus.COMPLETED:
        return
    since = trajectory.turns[-1].started_at if trajectory.turns else -math.inf
    by_task: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for call in (
        call for call in (*trajectory.calls, *trajectory.failed_calls) if call.ended_at >= since
    ):
        by_task[call.identity.thread_id, call.identity.task_id].add(call.call_index)
    for (_, task_id), indices in by_task.items():
        missing = next((index for index in range(len(indices)) if index not in indices), None)
        if missing is not None:
            yield trajectory.id, f"task {task_id!r} has calls {sorted(indices)}, without {missing}"


@_invariant("failed-apart")
def _failed_apart(trajectory: Trajectory) -> Iterator[Problem]:
    """Failed calls are in `failed_calls` and have no tokens. Answered calls are in `calls`."""
    for call in trajectory.calls:
        if call.error is not None:
            yield call.id, f"is among the answered calls, and failed: {call.error}"
    for call in trajectory.failed_calls:
        if call.error is None or call.token_ids:
            yield call.id, "is among the failed calls, and has an answer"


@_invariant("sample-index-gapless")
def _sample_index_gapless(trajectory: Trajectory) -> Iterator[Problem]:
    """Answers to one request are numbered from 0 without a gap."""
    by_request: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
    for call in trajectory.calls:
        by_request[call.identity.thread_id, call.identity.task_id, call.call_index].add(
            call.sample_index
        )
    for (_, task_id, index), samples in by_request.items():
        if samples != set(range(len(samples))):
            yield (
                trajectory.id,
                f"call {index} of task {task_id!r} has the samples {sorted(samples)}",
            )


@_invariant("call-once")
def _call_once(trajectory: Trajectory) -> Iterator[Problem]:
    """Path, request and seed belong to one call only: an answer on record is read back, not
    sampled again.
    """
    asked: defaultdict[tuple[str, str, int], dict[tuple[str, int], str]] = defaultdict(dict)
    for call in trajectory.calls:
        if call.seed is not None:
            same = asked[call.identity.path, call.request_hash, call.seed]
            # All samples of a call count as one.
            same.setdefault((call.identity.task_id, call.call_index), call.id)
    for same in asked.values():
        if len(same) > 1:
            yield (
                list(same.values())[1],
                f"asks what {len(same) - 1} other calls asked, with the same seed",
            )


# Checks of the message forest


@_invariant("parent-known")
def _parent_known(trajectory: Trajectory) -> Iterator[Problem]:
    """Parents and branch origins of calls are in the record. In a fork they may be in the record of
    its origin.
    """
    known = {call.id for call in trajectory.calls}
    if trajectory.forked_from is None:
        for call in trajectory.calls:
            for link in (call.parent, call.branch_of):
                if link is not None and link not in known:
                    yield call.id, f"refers to call {link}, which is not in the record"


@_invariant("parent-acyclic")
def _parent_acyclic(trajectory: Trajectory) -> Iterator[Problem]:
    """Following the parents from any call ends at a root."""
    on_cycle = _on_cycle(trajectory)
    if on_cycle:
        yield min(on_cycle), f"{len(on_cycle)} calls are their own ancestors"


@_invariant("parent-earlier")
def _parent_earlier(trajectory: Trajectory) -> Iterator[Problem]:
    """Parents finished before the calls that extend them."""
    position = {call.id: i for i, call in enumerate(trajectory.calls)}
    on_cycle = _on_cycle(trajectory)
    for call in trajectory.calls:
        if (
            call.parent in position
            and call.id not in on_cycle
            and position[call.parent] >= position[call.id]
        ):
            yield call.id, f"stands before its parent {call.parent}"


@_invariant("root-named")
def _root_named(trajectory: Trajectory) -> Iterator[Problem]:
    """Calls have either a parent or a reason for starting a new root."""
    for call in trajectory.calls:
        if call.parent is None and call.branch_reason is None:
            yield call.id, "a root without a branch_reason"
        if call.parent is not None and call.branch_reason is not None:
            yield (
                call.id,
                (
                    f"extends {call.parent} and still names the branch reason"
                    f" {call.branch_reason.value!r}"
                ),
            )


def _on_cycle(trajectory: Trajectory) -> set[str]:
    """Ids of the calls on a cycle of parents."""
    parents = {call.id: call.parent for call in trajectory.calls}
    walks: dict[str, int] = {}
    """Call -> number of the walk that reached it first. Each call is visited once, since a file may
    hold a long chain.
    """
    found: set[str] = set()
    for walk, start in enumerate(parents):
        at: str | None = start
        while at in parents and at not in walks:
            walks[at] = walk
            at = parents[at]
        while at in parents and walks[at] == walk and at not in found:
            found.add(at)
            at = parents[at]
    return found


# Checks of what a trainer relies on


@_invariant("trainable-kind")
def _trainable_kind(trajectory: Trajectory) -> Iterator[Problem]:
    """Trainable calls have at least one completion token and raw or tempered log-probs. Other calls
    give a reason.
    """
    for call in trajectory.calls:
        if call.untrainable is not None and not call.untrainable.strip():
            yield call.id, "untrainable without a reason"
        elif call.trainable and call.sampled_tokens == 0:
            yield call.id, "trainable without a completion token"
        elif call.trainable and call.logprob_kind not in (LogprobKind.RAW, LogprobKind.TEMPERED):
            yield call.id, f"trainable with log-probs of the kind {call.logprob_kind.value!r}"


@_invariant("constrained-context")
def _constrained_context(trajectory: Trajectory) -> Iterator[Problem]:
    """Calls held to a schema are not trainable: their tokens are no sample of the policy."""
    for call in trajectory.calls:
        if call.constrained and call.trainable:
            yield call.id, "held to a schema, and trainable"


@_invariant("policy-version")
def _policy_version(trajectory: Trajectory) -> Iterator[Problem]:
    """Versions count from 0. Calls of the policy have no earlier version than the run and their
    parent.
    """
    versions = {
        call.id: call.policy_version
        for call in trajectory.own_calls
        if call.model == trajectory.policy
    }
    for call in trajectory.own_calls:
        earliest = (
            versions.get(call.parent or "", trajectory.policy_version) if call.id in versions else 0
        )
        if call.policy_version < earliest:
            yield call.id, f"policy version {call.policy_version} after {earliest}"


@_invariant("reward-range")
def _reward_range(trajectory: Trajectory) -> Iterator[Problem]:
    """Rewards are finite, and the outcome (`correct`) is in [0, 1]. Rewards of single calls belong
    to calls of this run.
    """
    for name, value in trajectory.rewards.items():
        if not math.isfinite(value) or (name == "correct" and not 0 <= value <= 1):
            yield trajectory.id, f"the reward {name!r} is {value}"
    own = {call.id for call in (*trajectory.own_calls, *trajectory.own_tool_calls)}
    for name, by_call in trajectory.rewards_by_call.items():
        for id_, value in by_call.items():
            if not math.isfinite(value):
                yield id_, f"the reward {name!r} is {value}"
            elif id_ not in own:
                yield id_, f"the reward {name!r} belongs to no call of this run"


# Checks of tools


@_invariant("tool-status-final")
def _tool_status_final(trajectory: Trajectory) -> Iterator[Problem]:
    """Tool calls have an outcome in a run that completed or was truncated. In a failed run, a tool
    call may have been cut short.
    """
    for tool_call in trajectory.tool_calls:
        if tool_call.status is None and trajectory.status in (
            RunStatus.COMPLETED,
            RunStatus.TRUNCATED,
        ):
            yield tool_call.id, f"no outcome, although the run is {trajectory.status.value}"


@_invariant("tool-repeat")
def _tool_repeat(trajectory: Trajectory) -> Iterator[Problem]:
    """`repeated_of` names an earlier tool call of this run with the same name and arguments."""
    asked: dict[str, tuple[str, object]] = {}
    for tool_call in trajectory.tool_calls:
        this = tool_call.name, tool_call.arguments
        if tool_call.repeated_of is not None and asked.get(tool_call.repeated_of) != this:
            yield tool_call.id, f"does not repeat {tool_call.repeated_of}"
        asked[tool_call.id] = this


# Checks of the run

_ENDS: dict[RunStatus, frozenset[StopReason | None]] = {
    RunStatus.RUNNING: frozenset({None}),
    RunStatus.COMPLETED: frozenset({StopReason.ANSWER}),
    RunStatus.TRUNCATED: frozenset(reason for reason in StopReason if reason.truncates),
    RunStatus.FAILED: frozenset(
        {StopReason.ERROR, StopReason.UNUSABLE_ANSWER, StopReason.VERIFIER_ERROR}
    ),
    RunStatus.ABORTED: frozenset({StopReason.ABORTED}),
}


@_invariant("status-reason")
def _status_reason(trajectory: Trajectory) -> Iterator[Problem]:
    """Status and stop reason fit: `completed` goes with `answer`, `failed` with the kind of
    failure. A failed run also has an error text.
    """
    status = trajectory.status
    reason = trajectory.stop_reason
    if reason not in _ENDS[status]:
        yield (
            trajectory.id,
            f"{status.value} with the stop reason {reason.value if reason else None!r}",
        )
    elif status is RunStatus.FAILED and not trajectory.error:
        yield trajectory.id, "failed without an error text"


@_invariant("times")
def _times(trajectory: Trajectory) -> Iterator[Problem]:
    """Calls and runs do not end before they start. Waiting is part of a call's duration. A run has
    an end time if and only if it has ended.
    """
    for call in trajectory.calls:
        if call.ended_at < call.started_at:
            yield call.id, f"ended {call.started_at - call.ended_at:.3f} s before it started"
        elif not 0 <= call.queue_seconds <= call.seconds + _CLOCK_SLACK:
            yield call.id, f"waited {call.queue_seconds} s of {call.seconds} s"
    if (trajectory.ended_at is None) != (trajectory.status is RunStatus.RUNNING):
        yield trajectory.id, f"{trajectory.status.value} with ended_at {trajectory.ended_at}"
    elif trajectory.ended_at is not None and trajectory.ended_at < trajectory.started_at:
        yield trajectory.id, "ended before it started"


if __name__ == "__main__":
    # This package cannot read stores, so the command `hrm-agent lint` takes over with the same
    # arguments.
    runpy.run_module("hrm_agent.cli.records.lint", run_name="__main__")
