"""Pool of workers that run the graphs of a run. The engine stays in this process, with the weights.

Workers are processes of this machine, or actors of a Ray cluster. Each worker opens the run's
store, so that records do not burden this process, which the engine needs. This is safe, as for
several commands on one store: commits are atomic across processes in SQLite and PostgreSQL, and
each thread has a lease. A worker returns an ended rollout as it reads it back from the store.

If a worker dies, only uncommitted work is lost. The pool releases the worker's leases and gives its
rollouts to another worker, which continues from the record like a resumed run. If several workers
die one after another, and no rollout ends in between, the run ends with an error. Workers that are
lost together with their node count as one.

A worker gets at most its share of the open rollouts. The share of a worker that is still being
opened waits for this worker, or for free places in other workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from math import ceil

from langchain_core.language_models import BaseChatModel

from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models import Backend, Engine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.selection.strategies import ONE_RUN, Mode
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.workers.handle import WorkerDiedError, WorkerHandle
from hrm_agent.training.workers.ray_cluster import opened_cluster
from hrm_agent.training.workers.subprocess import open_subprocess
from hrm_agent.training.workers.wire import WorkerSetup
from hrm_agent.trajectory import RunStatus, Trajectory

__all__ = ["RolloutWorkers", "opened_workers", "refuse_unsendable"]

_DEATHS = 3
"""Number of consecutive deaths of workers, without an ended rollout in between, at which the run
ends: another worker is then unlikely to help.
"""


class RolloutWorkers:
    """Runs episodes in workers, which it starts on demand."""

    def __init__(
        self,
        setup: WorkerSetup,
        processes: int,
        runner: EpisodeRunner,
        open_worker: Callable[
            [dict[str, Engine], WorkerSetup], Awaitable[WorkerHandle]
        ] = open_subprocess,
    ) -> None:
        """`open_worker`: function (engines by name, setup) that starts a worker. If it raises an
        error, it must leave nothing running.
        """
        self._setup = setup
        self._processes = processes
        self._runner = runner
        self._open_worker = open_worker
        backend = runner.backend
        self._engines: dict[str, Engine] = {}
        if not isinstance(backend, (str, BaseChatModel)):
            self._engines[setup.policy] = backend
        self._workers: list[WorkerHandle] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._replacing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._open_runs = 0
        self._deaths = 0
        self._begun = False
        """True if a worker was ready once, so that later workers can probably load their setup,
        too.
        """

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.pid for worker in self._workers]

    async def run(self, episode: Episode) -> Trajectory:
        """Run, resume or read back an episode. Raises the same errors as a run in this process."""
        if not isinstance(episode.graph, str):
            raise ConfigError(
                f"The graph {episode.graph_name} is an object of this process, but worker processes"
                " have to import the graph.",
                "Name it as package.module:attribute or ./file.py:attribute, or run in one"
                " process.",
            )
        on_record = self._runner.store.journal.find_trajectory
        known = on_record(episode.trajectory_id) if self._setup.mode == ONE_RUN else None
        if known is not None and known.status is not RunStatus.RUNNING:
            return known
        sent = replace(episode, verify=None, verify_run=None)
        version = getattr(self._runner.backend, "policy_version", 0)
        for each in list(self._workers):
            await each.stopped(episode.thread_id)
        self._open_runs += 1
        try:
            while True:
                worker = await self._free()
                try:
                    found = await worker.run(sent, version)
                except WorkerDiedError as error:
                    await self._replace(worker, str(error))
                    continue
                self._deaths = 0
                worker.excused = False
                return found
        finally:
            self._open_runs -= 1
            self._wake()

    async def _free(self) -> WorkerHandle:
        """Wait until a worker has less than its share of the runs, and return the worker with the
        fewest.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            for _ in range(self._processes - len(self._workers) - len(self._opening)):
                task = asyncio.create_task(self._open())
                self._opening.add(task)
                task.add_done_callback(self._on_opened)
            least = min(self._workers, key=lambda worker: worker.runs, default=None)
            if least is not None and least.runs < ceil(self._open_runs / self._processes):
                return least
            await self._changed.wait()

    def _wake(self) -> None:
        """Wake all episodes that wait for a worker."""
        self._changed.set()
        self._changed.clear()

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
        self._wake()

    async def _open(self) -> None:
        try:
            worker = await self._open_worker(self._engines, self._setup)
        except WorkerDiedError as error:
            if not self._begun:  # the next worker would die, too
                raise RunError(
                    f"A rollout worker died {error} before it was ready.", error.speaks_in
                ) from error
            self._count_death(f"{error} before it was ready", "another is started")
            return
        self._begun = True
        self._workers.append(worker)

    async def _replace(self, worker: WorkerHandle, how: str) -> None:
        """Remove a dead worker, and report its death once. The next rollout that needs a worker
        starts a new one.
        """
        async with self._replacing:
            if worker not in self._workers:
                return
            await worker.kill()
            await asyncio.to_thread(self._runner.store.leases.take_from, worker.owner)
            self._workers.remove(worker)
            self._count_death(how, "its open rollouts go on in another", excused=worker.excused)
            for other in self._workers:
                other.excused |= bool(worker.place) and other.place == worker.place

    def _count_death(self, how: str, what_next: str, *, excused: bool = False) -> None:
        self._deaths += not excused
        if self._deaths >= _DEATHS:
            raise RunError(
                f"{self._deaths} rollout workers died one after another, the last one {how}.",
                "What was recorded is kept. Look at the memory that is left, and at what the graph"
                " does (sys.exit ends its worker); then resume the run.",
            )
        sys.stderr.write(f"hrm-agent: A rollout worker died {how}; {what_next}.\n")

    def fail(self, error: Exception) -> None:
        """Make all running and later rollouts raise `error`."""
        self._failure = error
        for worker in self._workers:
            worker.end_all(error)
        self._wake()

    async def close(self) -> None:
        """End all workers and cancel the rollouts in them. Later rollouts raise `RunError`."""
        self._failure = self._failure or RunError(
            "The rollout workers are closed: their run has ended."
        )
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._workers))
        self._workers.clear()


def refuse_unsendable(
    processes: int, config: CollectConfig | GrpoConfig, given: Backend | None = None
) -> None:
    """Raise `ConfigError` if the configuration or the backend cannot be used with worker processes.
    This is checked before anything is opened.

    `given`: backend that the caller passed as an object.
    """
    if processes == 1 and config.ray is None:
        return
    if config.ray is not None and (config.environment or "").startswith("ray"):
        raise ConfigError(
            f"The environment {config.environment} would put an actor on every node for each of the"
            " workers on Ray.",
            "Leave --environment out: workers run model-written code on their own nodes. Or name a"
            " server's URL.",
        )
    if isinstance(given, BaseChatModel):
        raise ConfigError(
            f"The chat model {type(given).__name__} is an object of this process, so it cannot be"
            " sent to other processes.",
            "Name it by a model string, such as openai:gpt-5, or run in one process.",
        )
    if config.environment == "ray" and not os.environ.get("RAY_ADDRESS"):
        raise ConfigError(
            "The environment `ray` without an address starts a cluster for one process, so each"
            " worker would start another one.",
            "Start a cluster (`ray start --head`), and name it: --environment ray:ADDRESS.",
        )


@asynccontextmanager
async def opened_workers(
    processes: int,
    runner: EpisodeRunner,
    config: CollectConfig | GrpoConfig,
    *,
    draw: Callable[[], list[Task]],
    mode: Mode = ONE_RUN,
) -> AsyncGenerator[RolloutWorkers | None]:
    """Open the workers of a run and yield the pool (None if the graphs run in this process).

    `draw`: function by which each worker draws the run's tasks again.
    """
    if processes == 1 and config.ray is None:
        yield None
        return
    setup = WorkerSetup(
        config=config,
        store=runner.store.url,
        policy=runner.policy,
        is_lazy=isinstance(runner.backend, str),
        tasks=draw if config.rewards is None else None,
        mode=mode,
        concurrency=ceil(config.concurrency / processes),
        slots=_share(getattr(runner.environment, "slots", 0), processes),
        sessions=_share(getattr(runner.environment, "max_sessions", 0), processes),
    )
    async with AsyncExitStack() as stack:
        if config.ray is None:
            workers = RolloutWorkers(setup, processes, runner)
        else:
            cluster = await stack.enter_async_context(opened_cluster(config.ray, runner.store))
            workers = RolloutWorkers(
                cluster.setup_of(setup), processes, runner, cluster.open_worker
            )
            cluster.on_lost = workers.fail
        stack.push_async_callback(workers.close)
        yield workers


def _share(total: int, processes: int) -> int:
    """Share of one worker, rounded up, so that all workers together have at least `total`."""
    return ceil(total / processes)
