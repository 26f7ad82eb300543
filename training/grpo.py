"""Reinforcement learning over recorded graph runs: GRPO, and GRPO-RoC of rStar2-Agent (arXiv 2508.20722, section 3).

One step: draw prompts, roll out a group of episodes for each through the graph, verify, select, credit, one optimiser
step, publish. `train` below is that sentence. The algorithms (`hrm_agent.training.roc.ALGORITHMS`) differ in
which rollouts of a group are trained on, and in nothing else.

Kill it anywhere. Every model and tool call of the step under way is on record, and the weights before it are in a
checkpoint: `train` called again on the same folder takes up the step where it stood. With one seed it samples the same
tokens (the noise of a call is a function of its place, not of time), and since an on-policy step takes its own
log-probs as the old ones, the update depends on the tokens alone. So a run whose newest checkpoint is damaged takes the
steps since the one before again, from the rollouts on record, to the same weights; and `train` with more steps than a
run has taken continues it, to the weights of a run that was begun with so many, if the learning rates agree.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from accelerate import Accelerator

from hrm_agent.training.advantages import group_advantages
from hrm_agent.training.batch import build_batches, left_out
from hrm_agent.training.checkpoints import keep_model
from hrm_agent.training.configs import GrpoConfig
from hrm_agent.training.evaluation.evaluate import group_metrics
from hrm_agent.training.metrics import MetricsLog, Phases, Row
from hrm_agent.training.policy import TrainablePolicy
from hrm_agent.training.processes import require_one_process
from hrm_agent.training.rollout import (
    group_episodes,
    open_run,
    refuse_other_tasks,
    rollout_attempts,
    run_id_of,
    steps_with_rollouts,
)
from hrm_agent.training.scoring import scoring_by
from hrm_agent.training.tasks import Task, refuse_unscored
from hrm_agent.training.tasks.sources import keep_sources, tasks_folder
from hrm_agent.training.tasks.training_order import training_tasks
from hrm_agent.training.verdicts import explained, judge, selection_metrics
from hrm_agent.training.worker_pool import opened_workers, refuse_unsendable
from hrm_agent.trajectory import Trajectory

__all__ = ["train"]


async def train(
    config: GrpoConfig,
    folder: Path,
    *,
    on_rollout: Callable[[Trajectory], None] | None = None,
    on_step: Callable[[Row], None] | None = None,
) -> Path:
    """Train, or resume, the run in `folder`; returns the folder of the trained model."""
    require_one_process()
    refuse_unsendable(config.processes, config)
    accelerator = Accelerator()
    policy = TrainablePolicy(config, accelerator)
    async with (
        open_run(
            folder, policy.name, config, store=config.store, backend=policy.engine, allow=config.allowed_types
        ) as runner,
        scoring_by(config, runner.store) as score,
        AsyncExitStack() as stack,
    ):
        run_id = run_id_of(folder, runner.store)
        config = policy.restore(folder, partial(steps_with_rollouts, runner.store, run_id))
        log = MetricsLog(folder / "metrics.jsonl", before_step=policy.version)
        tasks = _tasks(config, folder)
        keep_sources(config.tasks, "train", folder)
        draw = partial(_tasks, config, folder)
        workers = await stack.enter_async_context(opened_workers(config.processes, runner, config, draw=draw))
        for step in range(policy.version, config.steps):
            phases = Phases()
            episodes = group_episodes(
                tasks[step * config.rollout.prompts_per_step : (step + 1) * config.rollout.prompts_per_step],
                config.samples,
                run_id=run_id,
                stage=f"step-{step}",
                seed=config.seed,
                graph=config.graph,
                context=config.context,
                verified=config.rewards is None,
                options=config.task_options(),
            )
            with phases("rollout"):
                attempts = await rollout_attempts(
                    runner, episodes, concurrency=config.concurrency, on_done=on_rollout, workers=workers
                )
            refuse_other_tasks({first.thread_id: first.task for first, *_ in attempts}, episodes, folder)
            with phases("reward"):
                attempts = await score(attempts)
            with phases("select"):
                overlays = group_advantages(judge(attempts, step, run_id, config), config.loss.advantage_eps)
                runner.store.journal.write_overlays(overlays)
                rollouts = [each[-1] for each in attempts]
                batches = build_batches(rollouts, overlays, token_budget=config.loss.micro_batch_tokens)
            with phases("update"):
                update = policy.update(batches)
            found = group_metrics(rollouts, overlays) | selection_metrics(attempts, overlays)
            found |= left_out(rollouts, overlays)
            row = {"step": step, **found, **explained(update, found), **phases.seconds()}
            log.append(row)
            log.sync()
            policy.checkpoint(folder)
            if on_step is not None:
                on_step(row)
        model = keep_model(folder, policy.version, policy.save)
    policy.engine.close()
    return model


def _tasks(config: GrpoConfig, folder: Path) -> list[Task]:
    """Those of all steps, in their order."""
    count = config.steps * config.rollout.prompts_per_step
    where = tasks_folder(folder)
    tasks = training_tasks(
        config.tasks, seed=config.seed, count=count, block=config.rollout.shuffle_block, folder=where
    )
    if config.rewards is None:
        refuse_unscored(tasks, config.tasks)
    return tasks
