"""Rollouts divided among the ranks of a training. The place of a group in its step decides which
rank runs the group.

The seed of a rollout is derived from its place in the step. So its samples do not depend on the
rank that runs it, and a run that is resumed with another number of ranks finds the rollouts on
record.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from hrm_agent.errors import ConfigError
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.selection.strategies import ONE_RUN, solve
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.ranks.processes import Ranks
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.workers.wire import WorkerSetup, error_of
from hrm_agent.trajectory import RunStatus, Trajectory

__all__ = ["RankRollouts", "opened_ranks"]


class RankRollouts:
    """Runs episodes on rank 0, which is this process, and on the other ranks."""

    def __init__(self, ranks: Ranks, runner: EpisodeRunner) -> None:
        self._ranks = ranks
        self._runner = runner
        self._numbers = count(1)
        self._runs: dict[int, tuple[int, asyncio.Future[Trajectory]]] = {}
        for rank, link in ranks.links.items():
            link.hear(lambda message: self._take(*message), lambda rank=rank: self._over(rank))

    async def run(self, episode: Episode) -> Trajectory:
        """Run, resume or read back an episode. Raises the error of the episode, on whichever rank
        it ran, or `RunError` if that rank has ended.
        """
        rank = int(episode.group_id.rpartition("/")[2]) % self._ranks.count
        if rank == 0:
            return (await solve(self._runner, episode, ONE_RUN)).trajectory
        known = self._runner.store.journal.find_trajectory(episode.trajectory_id)
        if known is not None and known.status is not RunStatus.RUNNING:
            return known
        number = next(self._numbers)
        ended = asyncio.get_running_loop().create_future()
        data = _sendable(replace(episode, verify=None, verify_run=None))
        link = self._ranks.links[rank]
        if link.ended.is_set():
            raise self._ranks.ended(rank)
        self._runs[number] = rank, ended
        try:
            link.send(("run", number, data, 0))
            return await ended
        except asyncio.CancelledError:
            link.send(("stop", number))
            raise
        finally:
            del self._runs[number]

    def _take(self, kind: str, number: int, found: Any) -> None:
        _, ended = self._runs.get(number, (0, None))
        if ended is None or ended.done() or kind == "stopped":
            return
        if kind == "ended":
            ended.set_result(found)
        else:
            ended.set_exception(error_of(*found))

    def _over(self, rank: int) -> None:
        for runs_on, ended in self._runs.values():
            if runs_on == rank and not ended.done():
                ended.set_exception(self._ranks.ended(rank))


def _sendable(episode: Episode) -> bytes:
    if not isinstance(episode.graph, str):
        raise ConfigError(
            f"The graph {episode.graph_name} is an object of this process, but other ranks have to"
            " import the graph.",
            "Name it as package.module:attribute or ./file.py:attribute, or run in one process.",
        )
    try:
        return pickle.dumps(episode)
    except Exception as error:  # by an object in the metadata or the context
        raise ConfigError(
            f"Thread {episode.thread_id} cannot be handed to another rank: {type(error).__name__}:"
            f" {error}.",
            "Give the task and the graph's options plain values, or run in one process.",
        ) from error


@asynccontextmanager
async def opened_ranks(
    ranks: Ranks, runner: EpisodeRunner, config: GrpoConfig, *, draw: Callable[[], list[Task]]
) -> AsyncGenerator[RankRollouts]:
    """Open the run's store on the other ranks, and yield the object that runs rollouts. Raises
    `ConfigError` if ranks are on several machines and the store is a file.
    """
    if not ranks.on_one_machine and runner.store.database.path is not None:
        raise ConfigError(
            f"The ranks are on several machines, but the store {runner.store.url} is a file on"
            " one of them.",
            "Record in PostgreSQL: --store postgresql://HOST/DATABASE.",
        )
    rollouts = RankRollouts(ranks, runner)
    setup = WorkerSetup(
        config=config,
        store=runner.store.url,
        policy=runner.policy,
        is_lazy=False,
        tasks=draw if config.rewards is None else None,
        mode=ONE_RUN,
        concurrency=config.concurrency,
        slots=-(-getattr(runner.environment, "slots", 0) // ranks.count),
        sessions=-(-getattr(runner.environment, "max_sessions", 0) // ranks.count),
    )
    ranks.order("open", lambda _: (pickle.dumps(setup),))
    yield rollouts
