"""Scores the rollouts of a run by its rubric, group by group, and records the scorings.

A rollout is scored when its whole group has ended, since a reward may compare rollouts of a group.
The scorings of a group and the rewards of its trajectories are written in one transaction, so that
a killed run asks no judge twice. If the scoring of a rollout has a fault, the rollout gets no
rewards, and is left out of training for that reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from hrm_agent.errors import ConfigError
from hrm_agent.rewards import Rollout, Rubric, Scorer, opened_scorer
from hrm_agent.runtime.newest_state import newest_state
from hrm_agent.store import RunStore
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.rollout import Attempts
from hrm_agent.trajectory import DropReason, RunStatus, Scoring, Trajectory

__all__ = [
    "OF_OWN_CALLS",
    "REWARD_FAULT",
    "Score",
    "reward_environment",
    "rollouts_of",
    "scored",
    "scoring_by",
    "scoring_by_family",
]

REWARD_FAULT = "the rubric failed: "
"""Prefix of the error of a rollout without a reward."""
OF_OWN_CALLS = {"calls", "tool_calls", "trajectory", "group"}
"""Parameters of a reward that, for a fork, cover only what came after its moment."""
Score = Callable[[Sequence[Attempts]], Awaitable[list[Attempts]]]
"""Function that takes the attempts of each rollout, and returns them in the same order with rewards
in the last attempt of each rollout.
"""


class _Environment(Protocol):
    @property
    def environment(self) -> str | None: ...
    @property
    def isolation(self) -> str: ...


class _Settings(_Environment, Protocol):
    @property
    def rewards(self) -> str | None: ...


@asynccontextmanager
async def scoring_by(
    settings: _Settings,
    store: RunStore,
    *,
    carry_over: bool = False,
    forks: bool = False,
    keeps_truncated: bool = False,
) -> AsyncGenerator[Score]:
    """Yield the function that scores rollouts by the run's rubric. Without a rubric, rollouts keep
    the rewards of their task's verifier.

    `keeps_truncated`: True if a truncated rollout gets the outcome that the rubric gives it, not 0.

    `forks`: True if some rollouts begin in the middle of others.

    Raises `ConfigError` if rollouts are carried over, but the rubric compares the rollouts of a
    group. Also raises it for forks if a reward reads calls: a fork's own calls are only its last.
    """
    if settings.rewards is None:

        async def unchanged(attempts: Sequence[Attempts]) -> list[Attempts]:
            return list(attempts)

        yield unchanged
        return
    async with opened_scorer(
        settings.rewards,
        environment=reward_environment(settings),
        keeps_truncated=keeps_truncated,
    ) as scorer:
        if carry_over and "group" in scorer.rubric.wants:
            raise ConfigError(
                f"carry_over does not go with {settings.rewards}, which compares the rollouts of a"
                " group: a rollout that is carried over ends after the others were compared.",
                "Leave carry_over out, or take rewards that do not compare rollouts.",
            )

        if forks and (unfit := sorted(scorer.rubric.wants & OF_OWN_CALLS)):
            raise ConfigError(
                f"credit = forks does not go with {settings.rewards}, whose rewards read"
                f" {', '.join(unfit)}: for a fork these are only what came after its moment.",
                "Take rewards of the text, the task or the state.",
            )

        async def score(attempts: Sequence[Attempts]) -> list[Attempts]:
            last = await scored(scorer, store, [each[-1] for each in attempts])
            return [(*each[:-1], end) for each, end in zip(attempts, last, strict=True)]

        yield score


def reward_environment(settings: _Environment) -> dict[str, str]:
    """Environment variables of the processes that score, for rewards that run code."""
    where = {
        "HRM_AGENT_ENVIRONMENT": settings.environment,
        "HRM_AGENT_ISOLATION": settings.isolation,
    }
    return {name: str(value) for name, value in where.items() if value is not None}


@asynccontextmanager
async def scoring_by_family(
    config: GrpoConfig, store: RunStore, *, carry_over: bool, forks: bool, keeps_truncated: bool
) -> AsyncGenerator[Score]:
    """Yield the function that scores rollouts of a training, each by the rubric of its family of
    tasks. Raises `ConfigError` as `scoring_by` does.
    """
    families = ("", *(each.name for each in config.families))
    by_rubric: dict[str | None, Score] = {}
    async with AsyncExitStack() as stack:
        for own in (config.of_family(family) for family in families):
            if own.rewards not in by_rubric:
                by_rubric[own.rewards] = await stack.enter_async_context(
                    scoring_by(
                        own,
                        store,
                        carry_over=carry_over,
                        forks=forks,
                        keeps_truncated=keeps_truncated,
                    )
                )

        async def score(attempts: Sequence[Attempts]) -> list[Attempts]:
            places: dict[str | None, list[int]] = {}
            for place, each in enumerate(attempts):
                rubric = config.of_family(each[-1].task.family).rewards
                places.setdefault(rubric, []).append(place)
            found = list(attempts)
            for rubric, mine in places.items():
                of_rubric = await by_rubric[rubric]([attempts[place] for place in mine])
                for place, each in zip(mine, of_rubric, strict=True):
                    found[place] = each
            return found

        yield score


async def scored(
    scorer: Scorer, store: RunStore, trajectories: Sequence[Trajectory]
) -> list[Trajectory]:
    """Trajectories in the given order, scored if they can be judged and have no rewards yet.

    If a scoring has a fault, the returned trajectory has the fault as its `error`. On record only
    the scoring has the fault.
    """
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if _is_due(trajectory):
            groups.setdefault(trajectory.group_id or trajectory.id, []).append(trajectory)
    on_record = store.scorings.by_rubric(scorer.rubric.name) if groups else {}
    due = [
        group
        for group in groups.values()
        if any(trajectory.id not in on_record for trajectory in group)
    ]
    found = await asyncio.gather(*(_group(scorer, store, group) for group in due))
    looked_at = {trajectory.id for group in groups.values() for trajectory in group}
    known = on_record | {scoring.trajectory_id: scoring for group in found for scoring in group}
    result: list[Trajectory] = []
    for trajectory in trajectories:
        if trajectory.id in looked_at:
            scoring = known[trajectory.id]
            failed = {"error": f"{REWARD_FAULT}{scoring.fault}"} if scoring.fault else {}
            result.append(trajectory.model_copy(update={**scoring.as_rewards, **failed}))
        else:
            result.append(trajectory)
    return result


def _is_due(trajectory: Trajectory) -> bool:
    fault = fault_of(trajectory)
    if trajectory.rewards or trajectory.status is RunStatus.FAILED:
        return False
    return fault is None or fault[0] is DropReason.NOT_SCORED


async def _group(scorer: Scorer, store: RunStore, group: Sequence[Trajectory]) -> list[Scoring]:
    scorings = await scorer.score(rollouts_of(scorer.rubric, store, group))
    await asyncio.to_thread(store.scorings.write, scorings, as_rewards=True)
    return scorings


def rollouts_of(rubric: Rubric, store: RunStore, group: Sequence[Trajectory]) -> list[Rollout]:
    """Rollouts as the rubric needs them. The state is read from the store if the rubric
    wants it.
    """
    if "state" not in rubric.wants:
        return [Rollout(trajectory) for trajectory in group]
    return [Rollout(t, newest_state(store, t.thread_id, t.graph)) for t in group]
