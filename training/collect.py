"""Tasks to trajectories, without learning: for looking, for evaluation, for exports.

A run folder holds `store.db`. Called again on the same folder, `collect` runs what is missing, carries on what was
interrupted and reads back the rest, so that resuming is the same as starting.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hrm_agent.models import Backend, load_policy
from hrm_agent.runtime.selection.strategies import Mode
from hrm_agent.training.configs import CollectConfig
from hrm_agent.training.rollout import group_episodes, open_runner, rollout, run_id_of
from hrm_agent.training.tasks import load_tasks
from hrm_agent.trajectory import Sampling, Trajectory

__all__ = ["collect"]


async def collect(
    config: CollectConfig,
    folder: Path,
    *,
    stage: str = "collect",
    backend: Backend | None = None,
    on_rollout: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """All trajectories of the run in `folder`, in the order of the tasks.

    `backend` stands for `config.policy` where it is loaded already.
    """
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
    sampling = Sampling(temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens)
    policy = backend or load_policy(config.policy)
    async with open_runner(
        folder,
        policy,
        config.policy,
        sampling,
        store=config.store,
        stand_in=config.stand_in,
        constrain=config.constrain,
        isolation=config.isolation,
        environment=config.environment,
    ) as runner:
        mode = Mode(config.mode, config.n, config.width)
        return await rollout(runner, episodes, mode=mode, concurrency=config.concurrency, on_done=on_rollout)
