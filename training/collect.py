"""Tasks to trajectories, without learning: for looking, for evaluation, for exports.

A run folder holds `store.db`. Called again on the same folder, `collect` runs what is missing, carries on what was
interrupted and reads back the rest, so that resuming is the same as starting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hrm_agent.models import Backend
from hrm_agent.runtime.selection.strategies import Mode
from hrm_agent.training.configs import CollectConfig
from hrm_agent.training.rollout import group_episodes, open_run, rollout, run_id_of
from hrm_agent.training.tasks import Task, load_tasks
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
    """All trajectories of the run in `folder`, in the order of the tasks.

    `backend` and `tasks` stand for `config.policy` and `config.tasks` where they are loaded already.
    """
    if tasks is None:
        tasks = load_tasks(config.tasks, split=config.split, seed=config.seed, count=config.count)
    episodes = group_episodes(
        tasks,
        config.samples,
        run_id=run_id_of(folder),
        stage=stage,
        seed=config.seed,
        graph=config.graph,
        context=config.context,
    )
    async with open_run(folder, config.policy, config, store=config.store, backend=backend) as runner:
        mode = Mode(config.mode, config.n, config.width)
        return await rollout(runner, episodes, mode=mode, concurrency=config.concurrency, on_done=on_rollout)
