"""Rollouts: tasks x samples -> groups of trajectories.

Every rollout has a thread of its own, named after the run, the step, the task and the sample. The
name decides the seed, so that a run repeated with one seed samples the same tokens. It also decides
the identity: a rollout that is already on record is read back instead of run, and an interrupted
one resumes from its checkpoint.

All rollouts of a step run side by side in one event loop. A graph that waits for a tool costs
nothing, and the engine batches all concurrent requests. `concurrency` bounds how many are open at a
time.

A rollout that failed because of a machine is no sample of the policy. `attempts_of` runs it once
more, on a thread named after the first one and with the same seed. The second attempt depends only
on the record of the first, so that a killed run finds its attempts again and makes no third.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hrm_agent.basics.files import alone_in, read_whole, replacing
from hrm_agent.basics.frozen_heap import frozen_heap
from hrm_agent.errors import RunError
from hrm_agent.models import Backend, load_policy
from hrm_agent.models.engine import KeepsRollouts
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.runtime.selection.strategies import ONE_RUN, Mode, solve
from hrm_agent.runtime.settings import RolloutSettings
from hrm_agent.store import STORE_POINTER, RunStore, open_store
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT, needs_second_attempt
from hrm_agent.training.tasks.base import Task
from hrm_agent.trajectory import TaskRef, Trajectory, derive_seed, step_in_name

__all__ = [
    "Attempts",
    "RunsEpisodes",
    "attempts_of",
    "group_episodes",
    "leases_of",
    "open_run",
    "refuse_other_tasks",
    "rollout",
    "run_id_of",
    "second_attempt",
    "steps_with_rollouts",
]

Attempts = tuple[Trajectory, ...]
"""Runs of one episode, one or two. The last one counts."""


class RunsEpisodes(Protocol):
    """Worker processes that run episodes for this one."""

    async def run(self, episode: Episode) -> Trajectory:
        """Run, resume or read back an episode."""
        ...


@asynccontextmanager
async def open_run(
    folder: Path,
    policy: str,
    settings: RolloutSettings,
    *,
    store: str | None = None,
    backend: Backend | str | None = None,
    allow: Sequence[str] = (),
) -> AsyncGenerator[EpisodeRunner]:
    """Runner of the run in `folder`, which is opened for this process alone. `allow` is passed to
    `open_store`.
    """
    # before the folder is made: a wrong name leaves no folder behind
    backend = backend or load_policy(policy)
    with (
        alone_in(folder),
        open_store(store or folder / "store.db", allow=allow) as opened,
        frozen_heap(),
    ):
        if store is not None:
            with replacing(folder / STORE_POINTER) as part:
                part.write_text(opened.url, encoding="utf-8")
        async with EpisodeRunner.open(opened, policy, settings, backend=backend) as runner:
            yield runner


def run_id_of(folder: Path, store: RunStore | None = None) -> str:
    """Id of the run in `folder`: its name when it began, stored there so that the folder can be
    moved and resumed.

    `store`: store in which the run is about to begin. Raises `RunError` if the store holds another
    run of this name, whose rollouts would be read back as this run's. Also raises it if the file
    with the id is missing and the records do not identify the run.
    """
    kept = folder / "run_id"
    if (known := read_whole(kept)) is not None:
        return known
    name = folder.resolve().name
    if kept.exists():
        # the folder may have been moved since its run began
        runs = {thread.run_id for thread in store.threads()} if store is not None else {""}
        if runs and name not in runs:
            raise RunError(
                f"The file {kept} is empty: a power cut, or a full disk, has taken the name of the"
                " run.",
                f"Write it there: `echo {name} > {kept}`, or the folder's name before it was"
                " moved.",
            )
    elif store is not None and any(True for _ in store.threads(run_id=name)):
        raise RunError(
            f"The store {store.url} holds another run called {name!r}, whose folder is not"
            f" {folder}.",
            "Name this one otherwise with --out, or give it a store of its own.",
        )
    with replacing(kept) as part:
        part.write_text(name, encoding="utf-8")
    return name


def steps_with_rollouts(store: RunStore, run_id: str, ahead: int = 0) -> int:
    """Number of steps completed before the newest rollouts. Rollouts of step n follow n - `ahead`
    steps.
    """
    steps = (step_in_name(thread.thread_id, run_id) for thread in store.threads(run_id=run_id))
    newest = max((step for step in steps if step is not None), default=0)
    return max(0, newest - ahead)


def group_episodes(
    tasks: Sequence[Task],
    samples: int,
    *,
    run_id: str,
    stage: str,
    seed: int,
    graph: str,
    context: Mapping[str, Any] | None = None,
    verified: bool = True,
    options: Mapping[str, Any] | None = None,
    first: int = 0,
) -> list[Episode]:
    """`samples` episodes for each task, group by group. `stage` names the step (`step-7`) or the
    purpose (`eval`).

    `first`: position of the first task among the tasks of the stage.

    `verified`: each episode is scored by its task's verifier when it ends. If False, the run scores
    it by a rubric. `options`: options of the graph's runs, stored in each task's metadata
    (`GraphSettings.task_options`).
    """
    return [
        Episode(
            task=_with(task.ref(), options or {}),
            thread_id=f"{run_id}/{stage}/{place}/{sample}",
            graph=graph,
            run_id=run_id,
            group_id=f"{run_id}/{stage}/{place}",
            sample_index=sample,
            seed=derive_seed(seed, stage, task.family, task.id, place, sample),
            context=context or {},
            verify=task.verify if verified else None,
            verify_run=task.verify_run if verified else None,
        )
        for place, task in enumerate(tasks, first)
        for sample in range(samples)
    ]


def refuse_other_tasks(
    on_record: Mapping[str, TaskRef], episodes: Iterable[Episode], folder: Path
) -> None:
    """Raise `RunError` if the thread of an episode is on record with another task, whose rollout
    would be read back as the episode's.

    `on_record`: tasks by thread.
    """
    for episode in episodes:
        found = on_record.get(episode.thread_id)
        if found is not None and (found.id, found.prompt) != (episode.task.id, episode.task.prompt):
            raise RunError(
                f"Thread {episode.thread_id} in {folder} is of task {found.id!r}; "
                f"the step would draw {episode.task.id!r}.",
                "The tasks have changed since the run began, or an earlier version began it: "
                "start a new run in another folder.",
            )


def _with(task: TaskRef, options: Mapping[str, Any]) -> TaskRef:
    return task.model_copy(update={"metadata": {**task.metadata, **options}}) if options else task


async def rollout(
    runner: EpisodeRunner,
    episodes: Iterable[Episode],
    *,
    mode: Mode = ONE_RUN,
    concurrency: int = 256,
    on_done: Callable[[Trajectory], None] | None = None,
    workers: RunsEpisodes | None = None,
) -> list[Trajectory]:
    """Run all episodes, each by `mode`. Returns their trajectories in the order of `episodes`.

    `workers`: processes that run the episodes, in the mode they were opened with (None: this
    process runs them).

    Nodes of a graph that is not async run in threads, at most one per open episode.

    An error that is no fault of a policy or a graph (the store cannot be written) cancels the rest
    and is raised.
    """
    run = _solver(runner, mode, concurrency, on_done, workers)
    episodes = list(episodes)
    with leases_of(episodes, runner, workers, mode):
        return await run_group(episodes, run)


def attempts_of(
    runner: EpisodeRunner,
    *,
    concurrency: int = 256,
    on_done: Callable[[Trajectory], None] | None = None,
    workers: RunsEpisodes | None = None,
) -> Callable[[Episode], Coroutine[Any, Any, Attempts]]:
    """Return a function that runs an episode, and runs it again if the graph or a tool call failed
    through no fault of the policy.
    """
    run = _solver(runner, ONE_RUN, concurrency, on_done, workers)

    async def attempts(episode: Episode) -> Attempts:
        first = await run(episode)
        return (
            (first, await run(second_attempt(episode))) if needs_second_attempt(first) else (first,)
        )

    return attempts


def leases_of(
    episodes: Sequence[Episode],
    runner: EpisodeRunner,
    workers: RunsEpisodes | None,
    mode: Mode = ONE_RUN,
) -> AbstractContextManager[None]:
    """Take all episodes' leases at once if this process runs each episode on its own thread."""
    if workers is not None or mode != ONE_RUN:
        return nullcontext()
    return runner.store.leases.ahead([episode.thread_id for episode in episodes])


def second_attempt(episode: Episode) -> Episode:
    """Copy of an episode with a thread of its own. The seed stays: the tokens were not at fault."""
    return replace(episode, thread_id=f"{episode.thread_id}{SECOND_ATTEMPT}")


def _solver(
    runner: EpisodeRunner,
    mode: Mode,
    concurrency: int,
    on_done: Callable[[Trajectory], None] | None,
    workers: RunsEpisodes | None,
) -> Callable[[Episode], Coroutine[Any, Any, Trajectory]]:
    gate = asyncio.Semaphore(concurrency)
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(concurrency, thread_name_prefix="episode")
    )

    engine = runner.backend

    async def run(episode: Episode) -> Trajectory:
        counted = False
        try:
            if workers is not None:
                async with gate:
                    trajectory = await workers.run(episode)
            else:
                trajectory = (await solve(runner, episode, mode, gate=gate)).trajectory
            counted = True
        finally:
            if isinstance(engine, KeepsRollouts):
                engine.rollout_ended(episode.thread_id, counted=counted)
        if on_done is not None:
            on_done(trajectory)
        return trajectory

    return run
