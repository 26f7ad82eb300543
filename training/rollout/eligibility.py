"""Rollouts that can be judged, and the smallest group that is used.

A run that failed because of a machine has no reward. With reward 0 it would blame the policy for
the machine's fault, so it is left out, with a typed reason. If too few rollouts of a group remain,
the whole group is left out.

If the graph could not continue from what the policy wrote (`StopReason.UNUSABLE_ANSWER`), the run
is not left out: it counts as wrong and is trained on. If it were left out, a policy could never
unlearn its worst behaviour.
"""

from __future__ import annotations

import math

from hrm_agent.trajectory import (
    Call,
    DropReason,
    RunStatus,
    StopReason,
    ToolCall,
    ToolStatus,
    Trajectory,
)

__all__ = [
    "SECOND_ATTEMPT",
    "Why",
    "error_of",
    "failed_by_policy",
    "fault_of",
    "lost_tool_calls",
    "needed_of",
    "needs_second_attempt",
    "too_small",
    "unanswered_calls",
]

SECOND_ATTEMPT = "/attempt-2"
"""Suffix of the thread name of a rollout's second attempt."""
_SHOWN = 300
"""Maximum number of characters shown of an error, which may contain text of the policy."""
_REFUSALS = frozenset({"BadRequestError", "InvalidArgument", "UnprocessableEntityError"})
"""Classes of errors by which providers refuse a request that is not valid."""
Why = tuple[DropReason, str]
"""Reason why a rollout was left out, as a type and as text."""


def fault_of(trajectory: Trajectory) -> Why | None:
    """Reason why a rollout cannot take part (None if it can)."""
    if trajectory.status is RunStatus.ABORTED:
        return DropReason.ABORTED, "the run was aborted from outside"
    if trajectory.status is RunStatus.RUNNING:
        return DropReason.NOT_ENDED, "the run has not ended"
    if lost := lost_tool_calls(trajectory):
        named = f"{lost[0].name}: {lost[0].stderr or lost[0].content or 'no reason was recorded'}"
        return (
            DropReason.INFRASTRUCTURE,
            f"{len(lost)} tool calls were lost to the infrastructure ({named[:200]})",
        )
    if failed_by_policy(trajectory):
        return None
    if (
        trajectory.status is RunStatus.FAILED
        and trajectory.stop_reason is not StopReason.VERIFIER_ERROR
    ):
        why = error_of(trajectory, place=True) or "no error was recorded"
        return DropReason.RUN_FAILED, f"the run failed by no fault of the policy: {why}"
    if "correct" not in trajectory.rewards:
        why = error_of(trajectory, place=True) or "`hrm-agent show` says what its rubric failed by"
        return DropReason.NOT_SCORED, f"it has no reward: {why}"
    return None


def failed_by_policy(trajectory: Trajectory) -> bool:
    """True if the graph or the chat template could not continue from what the policy wrote."""
    return (
        trajectory.status is RunStatus.FAILED
        and trajectory.stop_reason is StopReason.UNUSABLE_ANSWER
    )


def error_of(trajectory: Trajectory, *, place: bool = False) -> str:
    """Error of a run in one line (empty without an error). `place`: add where it was raised."""
    said = " ".join((trajectory.error or "").split())
    said = said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."
    return f"{said} ({trajectory.error_at})" if place and said and trajectory.error_at else said


def lost_tool_calls(trajectory: Trajectory) -> list[ToolCall]:
    """Return the run's tool calls (without inherited ones) that failed because of a machine or a
    service. If there are any, the reward may not be due to the policy.
    """
    return [call for call in trajectory.own_tool_calls if call.status is ToolStatus.INFRASTRUCTURE]


def unanswered_calls(trajectory: Trajectory) -> list[Call]:
    """Return the run's calls that a model failed to answer, as in an outage, even if the graph went
    on without an answer. Such a run says nothing about its agent.

    A call is not among them if its node, or an equal request, got an answer later. Neither is one
    that the program cancelled, or that the model refused as not valid.
    """
    return [
        failed
        for failed in trajectory.failed_calls
        if failed.error is not None
        and failed.error.name not in ("", "CancelledError")
        and not _REFUSALS & {kind.rpartition(":")[2] for kind in failed.error.kinds}
        and not any(
            call.started_at >= failed.ended_at
            and (
                call.identity.task_id == failed.identity.task_id
                or call.request_hash == failed.request_hash
            )
            for call in trajectory.calls
        )
    ]


def needs_second_attempt(trajectory: Trajectory) -> bool:
    """True if the rollout is to be run once more, because its graph, its verifier or a tool call
    failed through no fault of the policy.

    If the graph raised an error, it may be due to a machine or to the graph's code, so the rollout
    is run once more in both cases.
    """
    fault = fault_of(trajectory)
    if fault is None or trajectory.stop_reason is StopReason.VERIFIER_ERROR:
        return fault is not None
    return fault[0] in (DropReason.RUN_FAILED, DropReason.INFRASTRUCTURE)


def needed_of(group: int, min_group: float) -> int:
    """Number of rollouts of a `group` that must be able to take part."""
    return math.ceil(round(min_group * group, 9))  # 0.28 * 25 is a little more than 7


def too_small(candidates: int, group: int, min_group: float) -> Why | None:
    needed = needed_of(group, min_group)
    if candidates >= needed:
        return None
    share = f"min_group {min_group:g} of {group}"
    return (
        DropReason.SMALL_GROUP,
        f"group rejected: {candidates} rollouts can take part, fewer than {needed} ({share})",
    )
