"""Which rollouts can be judged at all, and when too few of a group are left.

A run that a machine failed earned no reward, good or bad: trained with 0 it would teach the policy
that the machine's fault was its own. So it is left out, with a typed reason, and a group of which
too few are left is left out whole.

A run whose graph could not go on from what the policy wrote (`StopReason.UNUSABLE_ANSWER`) is not
left out: it is wrong, and is learnt from. Otherwise what a policy does worst could never be
unlearnt.
"""

from __future__ import annotations

import math

from hrm_agent.trajectory import DropReason, RunStatus, StopReason, ToolCall, ToolStatus, Trajectory

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
]

SECOND_ATTEMPT = "/attempt-2"
"""What the thread of a rollout's second attempt has behind the name of its first."""
_SHOWN = 300
"""Characters of an error that are shown: what a policy wrote may be a part of it."""
Why = tuple[DropReason, str]
"""Why a rollout was left out, as a type and in words."""


def fault_of(trajectory: Trajectory) -> Why | None:
    """Why a rollout cannot take part; None if it can."""
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
    """True if the graph, or the chat template, could not go on from what the policy wrote."""
    return (
        trajectory.status is RunStatus.FAILED
        and trajectory.stop_reason is StopReason.UNUSABLE_ANSWER
    )


def error_of(trajectory: Trajectory, *, place: bool = False) -> str:
    """The error of a run in one line, and where it was raised; empty without one."""
    said = " ".join((trajectory.error or "").split())
    said = said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."
    return f"{said} ({trajectory.error_at})" if place and said and trajectory.error_at else said


def lost_tool_calls(trajectory: Trajectory) -> list[ToolCall]:
    """The run's own tool calls that a machine or a service failed: its reward may not be the
    policy's doing.
    """
    return [call for call in trajectory.own_tool_calls if call.status is ToolStatus.INFRASTRUCTURE]


def needs_second_attempt(trajectory: Trajectory) -> bool:
    """True if the rollout is to be run once more: graph, verifier or a tool call failed, by no
    doing of the policy.

    Whether a graph that raised was failed by a machine or by its own code cannot be told from its
    error.
    """
    fault = fault_of(trajectory)
    if fault is None or trajectory.stop_reason is StopReason.VERIFIER_ERROR:
        return fault is not None
    return fault[0] in (DropReason.RUN_FAILED, DropReason.INFRASTRUCTURE)


def needed_of(group: int, min_group: float) -> int:
    """How many rollouts of a `group` have to be able to take part."""
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
