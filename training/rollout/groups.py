"""Groups of rollouts of a step, as an asynchronous iterator.

A step begins some groups. For each ended group that teaches nothing, the step may begin another
group with another prompt (dynamic sampling). Groups are numbered in the order in which they were
begun, and the number decides a group's task and seeds. Which groups a step has does not depend on
the order in which they end: the step begins as many further groups as groups are rejected, and this
number is the same in any order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.rollout.forks import fork_count, forked_episodes
from hrm_agent.training.rollout.rollout import (
    Attempts,
    RunsEpisodes,
    attempts_of,
    group_episodes,
    leases_of,
    refuse_other_tasks,
)
from hrm_agent.training.rollout.stragglers import Stragglers
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import Overlay, Trajectory

__all__ = ["Collector", "Group", "Groups"]


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one prompt."""

    place: int
    """Number of the group within the step."""
    attempts: tuple[Attempts, ...]
    """Attempts of each rollout that has ended."""
    cut_off: int = 0
    """Number of further rollouts of the group, which were cut off."""

    @property
    def versions(self) -> frozenset[int]:
        """Versions of the policy that sampled the rollouts."""
        return frozenset(
            call.policy_version for attempts in self.attempts for call in attempts[-1].own_calls
        )


class Groups:
    """Groups of one step: an asynchronous iterator over the groups in the order in which they end.
    More groups can be begun during the iteration.
    """

    def __init__(self, run: Callable[[int, Task], Coroutine[Any, Any, Group]]) -> None:
        self._run = run
        self.begun = 0
        """Number of groups begun so far."""
        self._running: set[asyncio.Task[Group]] = set()
        self._last_ended = 0.0

    def begin(self, task: Task) -> None:
        """Begin one more group."""
        running = asyncio.create_task(self._run(self.begun, task))
        running.add_done_callback(self._note_end)
        self._running.add(running)
        self.begun += 1

    def _note_end(self, _: asyncio.Task[Group]) -> None:
        self._last_ended = time.monotonic()

    def busy_until(self, now: float) -> float:
        """Time at which the last group ended, by `time.monotonic` (`now` if a group is still
        running).
        """
        return self._last_ended if all(task.done() for task in self._running) else now

    def __aiter__(self) -> Groups:
        return self

    async def __anext__(self) -> Group:
        if not self._running:
            raise StopAsyncIteration
        ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        first = ended.pop()
        self._running.discard(first)
        return first.result()

    async def cancel(self) -> None:
        """Cancel all running groups."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class Collector:
    """Rolls out the groups of a run's steps."""

    def __init__(
        self,
        runner: EpisodeRunner,
        run_id: str,
        folder: Path,
        config: GrpoConfig,
        *,
        workers: RunsEpisodes | None = None,
        on_rollout: Callable[[Trajectory], None] | None = None,
    ) -> None:
        """`workers`: processes that run the graphs (None: this process)."""
        self._runner = runner
        self._run_id = run_id
        self._folder = folder
        self._workers = workers
        self._stragglers = Stragglers(runner.store, run_id)
        self._attempt = attempts_of(
            runner, concurrency=config.concurrency, on_done=on_rollout, workers=workers
        )

    @asynccontextmanager
    async def groups(
        self,
        stage: str,
        config: GrpoConfig,
        tasks: list[Task],
        *,
        samples: int | None = None,
        step: int | None = None,
    ) -> AsyncGenerator[Groups]:
        """Begin a group for each of `tasks`, and yield the groups. `stage` is the part of the
        threads' names that identifies the step.

        `step`: step that trains on the groups; a group may then end without its last rollouts
        (None: a group waits for all rollouts).

        An error that no policy or graph has caused (for example, the store cannot be written)
        cancels all groups and is raised.
        """
        async with AsyncExitStack() as leases:

            async def run(place: int, task: Task) -> Group:
                episodes = self.episodes(stage, config, place, task, samples)
                if place >= len(tasks):
                    leases.enter_context(leases_of(episodes, self._runner, self._workers))
                if step is None:
                    attempts = await run_group(episodes, self._attempt)
                elif forks := fork_count(len(episodes), config.loss):
                    attempts = await run_group(episodes[:-forks], self._attempt)
                    whole = [each[-1] for each in attempts]
                    forked = forked_episodes(
                        episodes[-forks:], whole, config.loss, config.select.truncated
                    )
                    attempts += await run_group(forked, self._attempt)
                else:
                    options = config.rollout
                    attempts = await self._stragglers.run_group(
                        episodes, self._attempt, step=step, options=options
                    )
                refuse_other_tasks(
                    {first.thread_id: first.task for first, *_ in attempts}, episodes, self._folder
                )
                return Group(place, tuple(attempts), len(episodes) - len(attempts))

            every = (
                self.episodes(stage, config, place, task, samples)
                for place, task in enumerate(tasks)
            )
            begun = [episode for episodes in every for episode in episodes]
            leases.enter_context(leases_of(begun, self._runner, self._workers))
            groups = Groups(run)
            try:
                for task in tasks:
                    groups.begin(task)
                yield groups
            finally:
                await groups.cancel()

    def episodes(
        self, stage: str, config: GrpoConfig, place: int, task: Task, samples: int | None = None
    ) -> list[Episode]:
        """Episodes of one group."""
        config = config.of_family(task.family)
        return group_episodes(
            [task],
            samples or config.samples,
            run_id=self._run_id,
            stage=stage,
            seed=config.seed,
            graph=config.graph,
            context=config.context,
            verified=config.rewards is None,
            options=config.task_options(),
            first=place,
        )

    def cut_off_in(self, step: int) -> list[Overlay]:
        """Verdicts on the rollouts of `step` that were cut off in it, even if they were carried
        over later.
        """
        return self._stragglers.cut_off_in(step)

    @asynccontextmanager
    async def carried(
        self, episodes: Sequence[Episode], step: int, config: GrpoConfig
    ) -> AsyncGenerator[Callable[[], Awaitable[list[Attempts]]]]:
        """Run the rollouts that the previous step cut off beside the groups of `step`.

        Yields a function, to be called when these groups have ended. It waits for the rollouts as
        `Stragglers.run_carried` does, and returns them.
        """
        others_over = asyncio.Event()
        options = config.rollout
        with leases_of(episodes, self._runner, self._workers):
            running = asyncio.create_task(
                self._stragglers.run_carried(
                    episodes, self._attempt, others_over, step=step, options=options
                )
            )

            async def ended() -> list[Attempts]:
                others_over.set()
                attempts = await running
                refuse_other_tasks(
                    {first.thread_id: first.task for first, *_ in attempts}, episodes, self._folder
                )
                return attempts

            try:
                yield ended
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
