"""Scoring of rollouts by a rubric."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from hrm_agent.rewards.calling import scores_of
from hrm_agent.rewards.loading import load_rubric
from hrm_agent.rewards.pool import RewardPool
from hrm_agent.rewards.rollout import Rollout, scoring_of
from hrm_agent.rewards.rubric import Rubric
from hrm_agent.trajectory import RewardScore, Scoring

__all__ = ["Scorer", "opened_scorer"]


class _Calls(Protocol):
    async def score(
        self, rollouts: Sequence[Rollout], names: Sequence[str]
    ) -> Mapping[str, Sequence[RewardScore]]:
        """Scores of each function in `names`, one for each rollout."""
        ...


class Scorer:
    """Rubric that is ready to score."""

    def __init__(
        self, rubric: Rubric, code: str, calls: _Calls, *, keeps_truncated: bool = False
    ) -> None:
        self.rubric = rubric
        self.code = code
        self._calls = calls
        self._keeps_truncated = keeps_truncated

    async def score(self, group: Sequence[Rollout]) -> list[Scoring]:
        """Scorings of the rollouts of one task, in their order. Raises `HrmError` for a rubric that
        cannot work.
        """
        alone = [part.name for part in self.rubric.parts if not part.compares]
        compared = [part.name for part in self.rubric.parts if part.compares]
        work = [self._calls.score([rollout], alone) for rollout in group] if alone else []
        work += [self._calls.score(group, [name]) for name in compared] if group else []
        found = await asyncio.gather(*work)
        each = found[: len(group)] if alone else [{}] * len(group)
        whole = found[len(group) if alone else 0 :]
        scorings: list[Scoring] = []
        for place, rollout in enumerate(group):
            scores = {name: given[0] for name, given in each[place].items()}
            scores |= {name: given[place] for one in whole for name, given in one.items()}
            ordered = [scores[part.name] for part in self.rubric.parts]
            keeps = self._keeps_truncated
            scorings.append(
                scoring_of(
                    self.rubric, self.code, rollout.trajectory, ordered, keeps_truncated=keeps
                )
            )
        return scorings


class _Here:
    """Calls of functions in this process, for a rubric object. Other processes could not load it,
    since it has no name to load it by.
    """

    def __init__(self, rubric: Rubric) -> None:
        self._rubric = rubric

    async def score(
        self, rollouts: Sequence[Rollout], names: Sequence[str]
    ) -> Mapping[str, Sequence[RewardScore]]:
        return {
            reward.name: await scores_of(self._rubric, reward, rollouts)
            for reward in self._rubric.parts
            if reward.name in names
        }


@asynccontextmanager
async def opened_scorer(
    rubric: str | Rubric,
    *,
    name: str = "",
    folder: Path | None = None,
    workers: int = 2,
    environment: Mapping[str, str] | None = None,
    keeps_truncated: bool = False,
) -> AsyncGenerator[Scorer]:
    """Scorer for a rubric. If the rubric is given by a name, its functions run in separate
    processes. The functions of a rubric object run in this process.

    `name`: name of the stored scorings (empty: the rubric's own). `folder`: base of relative paths
    in `rubric` (None: the working directory). `environment`: variables of the processes.
    `keeps_truncated`: see `scoring_of`.
    """
    if not isinstance(rubric, str):
        named = Rubric(rubric.parts, rubric.outcome, name or rubric.name or "rubric")
        yield Scorer(named, "", _Here(rubric), keeps_truncated=keeps_truncated)
        return
    here = str(folder or Path.cwd())
    loaded, code = load_rubric(rubric, here)
    async with RewardPool(loaded, rubric, here, workers=workers, environment=environment) as pool:
        named = Rubric(loaded.parts, loaded.outcome, name or loaded.name)
        yield Scorer(named, code, pool, keeps_truncated=keeps_truncated)
