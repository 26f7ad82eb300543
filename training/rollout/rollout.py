"""Rollouts: tasks x samples -> groups of trajectories.

Every rollout has a separate thread, named after the run, the step, the task and the sample. The
name decides the seed, so that a run that is repeated with the same seed samples the same tokens.
The name also identifies the rollout: if it is already on record, it is read back instead of run,
and if it was interrupted, it resumes from its checkpoint.

All rollouts of a step run concurrently in one event loop. A graph that waits for a tool costs
nothing, and the engine batches all concurrent requests. `concurrency` is the maximum number of
rollouts at a time.

A rollout that failed because of a machine is no sample of the policy. `attempts_of` runs it once
more with the same seed, on a thread named after the first attempt. Only the record of the first
attempt decides whether there is a second, so a resumed run finds both attempts and makes no third.
"""

from __future__ import annotations

import asyncio
import re
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
    "recorded_seed",
    "refuse_other_tasks",
    "rollout",
    "run_id_of",
    "second_attempt",
    "steps_with_rollouts",
]

_ROLLOUT = re.compile(r"([^/]+)/([0-9]{1,15})/([0-9]{1,15})(?:/|\Z)")
"""Name of a rollout's thread after that of its run: stage, place of the task, sample."""
Attempts = tuple[Trajectory, ...]
"""Attempts of one episode, one or two. The last attempt counts."""


class RunsEpisodes(Protocol):
    """Worker processes that run episodes for this process."""

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
    """Open `folder` for this process alone, and yield the runner of its run. `allow` is passed to
    `open_store`.
    """
    # load the policy before the folder is made, so that a wrong name leaves no folder behind
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
    """Id of the run in `folder`: the name that the folder had when the run began. The id is stored
    in the folder, so that a moved folder can be resumed.

    `store`: store in which the run is about to begin. Raises `RunError` if the store has another
    run with this name, whose rollouts would be read back as this run's, or if the file with the id
    is empty and the store does not show the id.
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
                f"The file {kept} with the run's name is empty, for example after a power cut or on"
                " a full disk.",
                f"Write the name there: `echo {name} > {kept}`. If the folder was moved since,"
                " write its name before that.",
            )
    elif store is not None and any(True for _ in store.threads(run_id=name)):
        raise RunError(
            f"The store {store.url} holds another run called {name!r}, whose folder is not"
            f" {folder}.",
            "Name another folder with --out, or another store with --store.",
        )
    with replacing(kept) as part:
        part.write_text(name, encoding="utf-8")
    return name


def steps_with_rollouts(store: RunStore, run_id: str, ahead: int = 0) -> int:
    """Number of steps that were completed, at least, when the newest rollouts began. Rollouts of
    step n begin after n - `ahead` steps.
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
    """Make `samples` episodes for each task, group by group. `stage` names the step (`step-7`) or
    the purpose (`eval`).

    `first`: position of the first task among the tasks of the stage.

    `verified`: True if the task's verifier scores an episode when it ends, False if the run's
    rubric scores it. `options`: options of the graph's runs, stored in each task's metadata
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
            seed=_episode_seed(seed, task, stage, place, sample),
            context=context or {},
            verify=task.verify if verified else None,
            verify_run=task.verify_run if verified else None,
        )
        for place, task in enumerate(tasks, first)
        for sample in range(samples)
    ]


def _episode_seed(seed: int, task: Task | TaskRef, stage: str, place: int, sample: int) -> int:
    return derive_seed(seed, stage, task.family, task.id, place, sample)


def recorded_seed(trajectory: Trajectory, seed: int) -> int | None:
    """Base of the seeds of a recorded rollout's calls, found from its thread's name and the run's
    `seed` (None if the recorded calls have other seeds).
    """
    name = trajectory.thread_id.removeprefix(f"{trajectory.run_id}/")
    if (match := _ROLLOUT.match(name)) is None:
        return None
    stage, place, sample = match[1], int(match[2]), int(match[3])
    base = _episode_seed(seed, trajectory.task, stage, place, sample)
    known = any(
        call.seed == derive_seed(base, call.identity.path, call.request_hash, 0)
        for call in trajectory.own_calls
    )
    return base if known else None


def refuse_other_tasks(
    on_record: Mapping[str, TaskRef], episodes: Iterable[Episode], folder: Path
) -> None:
    """Raise `RunError` if the thread of an episode is on record with another task, since its
    rollout would be read back as the episode's.

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

    `workers`: processes that run the episodes, in the mode in which the workers were opened (None:
    this process runs the episodes).

    Nodes that are not asynchronous run in threads, at most one for each running episode.

    An error that no policy or graph has caused (for example, the store cannot be written) cancels
    all episodes and is raised.
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
    """Return a function that runs an episode, and runs it once more if its graph, its verifier or a
    tool call failed through no fault of the policy.
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
    """Take the leases of all episodes at once, if this process runs each episode on the episode's
    thread. Else do nothing.
    """
    if workers is not None or mode != ONE_RUN:
        return nullcontext()
    return runner.store.leases.ahead([episode.thread_id for episode in episodes])


def second_attempt(episode: Episode) -> Episode:
    """Copy of an episode on the thread of the second attempt. The seed is unchanged, since the
    tokens were not at fault.
    """
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
