"""Collection of trajectories without training, for inspection, evaluation and exports.

A run folder has the store (`store.db`). If `collect` is called again on the same folder, it runs
the missing rollouts, resumes the interrupted ones and reads back the others.

A rollout that lost a tool call to the infrastructure is run once more, as in a training. If it has
no reward after that, the next call on the folder runs it again. Only the last attempt counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hrm_agent.models import Backend
from hrm_agent.runtime.episode import Episode, policy_for
from hrm_agent.runtime.selection.strategies import ONE_RUN, Mode
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.eligibility import lost_tool_calls
from hrm_agent.training.rollout.rollout import (
    group_episodes,
    open_run,
    refuse_other_tasks,
    rollout,
    run_id_of,
    second_attempt,
)
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.training.tasks import Task, load_tasks
from hrm_agent.training.tasks.sources import keep_sources, tasks_folder
from hrm_agent.training.workers.pool import opened_workers, refuse_unsendable
from hrm_agent.trajectory import Trajectory

__all__ = ["collect"]


async def collect(
    config: CollectConfig,
    folder: Path,
    *,
    stage: str = "collect",
    tasks: Sequence[Task] | None = None,
    backend: Backend | None = None,
    on_rollout: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Run or read back all rollouts of the run in `folder`. Returns their trajectories in the order
    of the tasks.

    `backend` and `tasks`: the policy and the tasks, if they are already loaded (None: loaded as
    `config.policy` and `config.tasks`).
    """
    refuse_unsendable(config.processes, config, backend)
    episodes = group_episodes(
        _tasks(config, folder) if tasks is None else tasks,
        config.samples,
        run_id=(run_id := run_id_of(folder)),
        stage=stage,
        seed=config.seed,
        graph=config.graph,
        context=config.context,
        verified=config.rewards is None,
        options=config.task_options(),
    )
    held = backend or policy_for(config.policy, config.graph, stand_in=config.stand_in)
    began = time.time()
    async with open_run(
        folder, config.policy, config, store=config.store, backend=held, allow=config.allowed_types
    ) as runner:
        keep_sources(config.tasks, config.split, folder)
        on_record = runner.store.journal.headers("run_id = ?", (run_id,))
        refuse_other_tasks(
            {header.thread_id: header.task for header in on_record}, episodes, folder
        )
        mode = Mode(config.mode, config.n, config.width)
        async with opened_workers(
            config.processes, runner, config, draw=partial(_tasks, config, folder), mode=mode
        ) as workers:
            run = partial(
                rollout, runner, mode=mode, concurrency=config.concurrency, workers=workers
            )
            found = await run(episodes, on_done=on_rollout)
            if mode == ONE_RUN:
                found = await _again(run, episodes, found, began)
        async with scoring_by(config, runner.store) as score:
            return [last for (last,) in await score([(trajectory,) for trajectory in found])]


async def _again(
    run: Callable[[list[Episode]], Coroutine[Any, Any, list[Trajectory]]],
    episodes: Sequence[Episode],
    found: Sequence[Trajectory],
    began: float,
) -> list[Trajectory]:
    """Last attempts of all rollouts. Lost ones are run again: each once, and once more in each call
    on the folder if the last attempt on record has no reward. `began`: start of this call.
    """
    last = list(found)
    attempts = dict(enumerate(episodes))
    due = [place for place, each in enumerate(last) if lost_tool_calls(each)]
    while due:
        attempts |= {place: second_attempt(attempts[place]) for place in due}
        for place, each in zip(due, await run([attempts[place] for place in due]), strict=True):
            last[place] = each
        due = [
            place
            for place in due
            if lost_tool_calls(last[place])
            and not last[place].rewards
            and (last[place].ended_at or began) < began
        ]
    return last


def _tasks(config: CollectConfig, folder: Path) -> list[Task]:
    where = tasks_folder(folder)
    return load_tasks(
        config.tasks, split=config.split, seed=config.seed, count=config.count, folder=where
    )
