"""Forks of the rollouts of a prompt, by which the credit `forks` values their moments.

A share of a prompt's rollouts does not begin with the task, but in the middle of other rollouts of
the same prompt: at the checkpoint before one of their decisions. State and sandbox session are
those of that moment. What came before is neither sampled nor trained again.

Moments are drawn when the other rollouts of the prompt have ended. The draw depends on their record
and on the seed alone, so that a resumed run forks the same moments. If there are fewer moments than
are asked for, each gets more forks. Rollouts with a single decision have no moment to fork, and if
there are no others, all rollouts of the prompt begin with the task.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from hrm_agent.answers.fenced_code import asked_ids
from hrm_agent.runtime.episode import Episode
from hrm_agent.training.config.parts import LossPart, Truncated
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.trajectory import DropReason, ForkRef, RunStatus, Trajectory, derive_seed
from hrm_agent.trajectory.decisions import Decision, decisions

__all__ = ["fork_count", "forked_episodes"]


class _Moment(NamedTuple):
    rollout: Trajectory
    decision: Decision


def fork_count(samples: int, loss: LossPart) -> int:
    """Number of the `samples` rollouts of a prompt that are forks of the others."""
    if loss.credit != "forks":
        return 0
    return max(1, round(loss.fork_share * samples))


def forked_episodes(
    episodes: Sequence[Episode],
    rollouts: Sequence[Trajectory],
    loss: LossPart,
    truncated: Truncated = "wrong",
) -> list[Episode]:
    """Episodes in their order, each of which begins at a moment of one of the `rollouts` of the
    same prompt. `truncated`: the run's setting, by which truncated ones may be left out.
    """
    if not episodes:
        return []
    rng = random.Random(derive_seed(episodes[0].seed or 0, "forks"))
    moments = [
        _Moment(rollout, decision)
        for rollout in rollouts
        if _takes_part(rollout, truncated)
        for decision in decisions(rollout)[1:]
    ]
    rng.shuffle(moments)
    order = _ORDERS.get(loss.fork_at)
    # sorting is stable: equal moments stay in their random order
    ordered = moments if order is None else sorted(moments, key=order)
    chosen = ordered[: -(-len(episodes) // loss.forks_of_moment)]
    if not chosen:
        return list(episodes)
    return [
        replace(
            episode,
            forked_from=ForkRef(
                trajectory_id=moment.rollout.id, checkpoint_id=moment.decision.checkpoint_id
            ),
        )
        for index, episode in enumerate(episodes)
        for moment in [chosen[index // loss.forks_of_moment % len(chosen)]]
    ]


def _takes_part(rollout: Trajectory, truncated: Truncated) -> bool:
    """True if a rollout can be judged. A rubric scores it only after its whole group has ended."""
    if truncated == "leave_out" and rollout.status is RunStatus.TRUNCATED:
        return False
    fault = fault_of(rollout)
    return fault is None or fault[0] is DropReason.NOT_SCORED


def _failed_last(moment: _Moment) -> float:
    failed = {
        tool.tool_call_id
        for tool in moment.rollout.tool_calls
        if tool.status is not None and tool.status.is_policy_failure
    }
    asked = {id_ for call in moment.decision.calls for id_ in asked_ids(call.id, call.response)}
    return float(not failed & asked)


def _certain_last(moment: _Moment) -> float:
    """Mean log-probability of the sampled tokens of a decision."""
    sampled = [
        log
        for call in moment.decision.calls
        for log, free in zip(call.logprobs, call.mask, strict=False)
        if free
    ]
    return fmean(sampled) if sampled else 0.0


_ORDERS: dict[str, Callable[[_Moment], float]] = {
    "failed_call": _failed_last,
    "uncertain": _certain_last,
}
"""Keys by which moments are ordered, the ones to fork first, by the name that a user gives."""
