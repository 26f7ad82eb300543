"""Calls of reward functions in the current process. Every failure becomes a typed fault.

An async function is cancelled at its timeout. A synchronous function runs in a thread, which cannot
be killed, so the thread is abandoned at the timeout. `hrm_agent.rewards.pool` calls the functions
of named rubrics in a process that can be killed.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from hrm_agent.basics.async_bridge import ReusedThreads
from hrm_agent.errors import HrmError, place_of
from hrm_agent.rewards.rollout import Rollout, arguments_of, as_score, storable
from hrm_agent.rewards.rubric import Reward, Rubric
from hrm_agent.trajectory import JudgeCall, RewardFault, RewardScore

__all__ = ["JudgeError", "fault_score", "scores_of"]

MAX_REASON_CHARACTERS = 2000
_threads = ReusedThreads()


class JudgeError(Exception):
    """A judge gave no readable answer. Reward functions raise this error, and it becomes a typed
    fault.
    """

    def __init__(self, message: str, calls: Sequence[JudgeCall] = ()) -> None:
        """`calls`: requests to the judge so far, with their answers."""
        super().__init__(message)
        self.calls = tuple(calls)


def fault_score(
    reward: Reward, fault: RewardFault, reason: str, seconds: float = 0.0
) -> RewardScore:
    """Score of a function that gave no value."""
    said = storable(reason[:MAX_REASON_CHARACTERS])
    return RewardScore(
        name=reward.name, weight=reward.weight, fault=fault, reason=said, seconds=seconds
    )


async def scores_of(
    rubric: Rubric, reward: Reward, rollouts: Sequence[Rollout]
) -> list[RewardScore]:
    """Scores of rollouts by one function. It is called for each rollout, or once if it compares
    rollouts. Raises `HrmError` for a function that cannot work for any rollout.
    """
    if reward.compares:
        return await _group_scores(rubric, reward, rollouts)
    scores: list[RewardScore] = []
    for rollout in rollouts:
        began = time.monotonic()
        given = await _outcome_of(reward, rollout, (rollout,))
        scores.append(_score(rubric, reward, given, time.monotonic() - began, rollout))
    return scores


async def _group_scores(
    rubric: Rubric, reward: Reward, group: Sequence[Rollout]
) -> list[RewardScore]:
    """Scores of a group's rollouts by a function that compares them."""
    began = time.monotonic()
    given = await _outcome_of(reward, group[0], group)
    seconds = time.monotonic() - began
    if isinstance(given, RewardScore):
        return [given, *[given.model_copy(update={"judge_calls": ()})] * (len(group) - 1)]
    by_id = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else None
    ids = [rollout.trajectory.id for rollout in group]
    if by_id is None or set(by_id) != set(ids):
        said = (
            f"it returned {type(given).__name__}"
            if by_id is None
            else f"it returned {sorted(map(str, by_id))[:8]}"
        )
        reason = (
            f"a reward of a group returns a mapping with the id of each of its {len(ids)}"
            f" trajectories; {said}"
        )
        return [fault_score(reward, RewardFault.RAISED, reason, seconds) for _ in group]
    return [_score(rubric, reward, by_id[each.trajectory.id], seconds, each) for each in group]


def _score(
    rubric: Rubric, reward: Reward, given: Any, seconds: float, rollout: Rollout
) -> RewardScore:
    if isinstance(given, RewardScore):
        return given
    decides = reward.name == rubric.outcome
    return as_score(reward, given, rollout.trajectory, decides=decides, seconds=seconds)


async def _outcome_of(reward: Reward, rollout: Rollout, group: Sequence[Rollout]) -> Any:
    """Value that the function returned, or the `RewardScore` of a fault."""
    try:
        arguments = arguments_of(reward, rollout, group)
    except LookupError as error:
        return fault_score(reward, RewardFault.NOT_ON_RECORD, str(error.args[0]))
    began = time.monotonic()
    try:
        async with asyncio.timeout(reward.timeout_seconds):
            return await _called(reward.function, arguments)
    except HrmError:
        raise
    except TimeoutError:
        spent = time.monotonic() - began
        if spent < reward.timeout_seconds:  # the function itself raised the error
            return fault_score(reward, RewardFault.RAISED, "TimeoutError", spent)
        return fault_score(
            reward, RewardFault.TIMEOUT, f"not done after {reward.timeout_seconds:g} s", spent
        )
    except JudgeError as error:
        fault = fault_score(reward, RewardFault.JUDGE, str(error), time.monotonic() - began)
        return fault.model_copy(update={"judge_calls": error.calls})
    except Exception as error:
        at = place_of(error)
        said = f"{type(error).__name__}: {error}" + (f", at {at}" if at else "")
        return fault_score(reward, RewardFault.RAISED, said, time.monotonic() - began)


async def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)

    def call() -> Any:
        try:
            return function(**arguments)
        # raised as they are, these exceptions would end more than the function
        except (StopIteration, SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(type(error).__name__) from error

    given = await asyncio.wrap_future(_threads.call(call))
    return await given if inspect.isawaitable(given) else given
