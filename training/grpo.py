"""Reinforcement learning over recorded graph runs: GRPO, and GRPO-RoC of rStar2-Agent (arXiv 2508.20722, section 3).

One step: draw prompts, roll out a group of episodes for each through the graph, verify, select, credit, one optimiser
step, publish. `train` below is that sentence. The three algorithms (`hrm_agent.training.roc.ALGORITHMS`) differ in
which rollouts of a group are trained on, and in nothing else.

Kill it anywhere. Every model and tool call of the step under way is on record, and the weights before it are in the
checkpoint: `train` called again on the same folder takes up the step where it stood. With one seed it samples the same
tokens (the noise of a call is a function of its place, not of time), and since an on-policy step takes its own
log-probs as the old ones, the update depends on the tokens alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from accelerate import Accelerator

from hrm_agent.errors import ConfigError
from hrm_agent.training.advantages import group_advantages
from hrm_agent.training.batch import build_batches, left_out
from hrm_agent.training.configs import GrpoConfig
from hrm_agent.training.evaluation.evaluate import group_metrics
from hrm_agent.training.metrics import MetricsLog, Phases
from hrm_agent.training.policy import TrainablePolicy
from hrm_agent.training.roc import RocOptions, select
from hrm_agent.training.rollout import group_episodes, open_run, rollout, run_id_of
from hrm_agent.training.tasks import Task, load_tasks
from hrm_agent.trajectory import Overlay, Trajectory, derive_seed

__all__ = ["train"]


async def train(
    config: GrpoConfig,
    folder: Path,
    *,
    on_rollout: Callable[[Trajectory], None] | None = None,
    on_step: Callable[[dict[str, float]], None] | None = None,
) -> Path:
    """Train, or resume, the run in `folder`; returns the folder of the trained model."""
    accelerator = Accelerator()
    if accelerator.num_processes > 1:
        raise ConfigError("Rollouts are not shared among processes yet.", "Start `train rl` without torchrun.")
    policy = TrainablePolicy(config, accelerator)
    policy.restore(folder / "checkpoint")
    run_id = run_id_of(folder)
    log = MetricsLog(folder / "metrics.jsonl", before_step=policy.version)
    pool = load_tasks(config.tasks, split="train", seed=config.seed, count=config.steps * config.prompts_per_step)
    async with open_run(folder, policy.name, config, store=config.store, backend=policy.engine) as runner:
        for step in range(policy.version, config.steps):
            phases = Phases()
            episodes = group_episodes(
                draw(pool, step, config),
                config.samples,
                run_id=run_id,
                stage=f"step-{step}",
                seed=config.seed,
                graph=config.graph,
                context=config.context,
            )
            with phases("rollout"):
                rollouts = await rollout(runner, episodes, concurrency=config.concurrency, on_done=on_rollout)
            with phases("select"):
                overlays = group_advantages(judge(rollouts, step, run_id, config))
                runner.store.journal.write_overlays(overlays)
                batches = build_batches(rollouts, overlays, token_budget=config.micro_batch_tokens)
            with phases("update"):
                update = policy.update(batches)
            shares = group_metrics(rollouts, overlays) | left_out(rollouts, overlays)
            row = {"step": step, **shares, **update, **phases.seconds()}
            log.append(row)
            policy.checkpoint(folder / "checkpoint")
            if on_step is not None:
                on_step(row)
        policy.save(folder / "model")
    policy.engine.close()
    return folder / "model"


def draw(pool: Sequence[Task], step: int, config: GrpoConfig) -> list[Task]:
    """The prompts of a step: passes over the pool, each in an order of its own."""
    first = step * config.prompts_per_step
    return [_nth(pool, place, config.seed) for place in range(first, first + config.prompts_per_step)]


def _nth(pool: Sequence[Task], place: int, seed: int) -> Task:
    epoch, index = divmod(place, len(pool))
    return pool[_order(len(pool), derive_seed(seed, "draw", epoch))[index]]


@lru_cache(maxsize=2)
def _order(size: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(size), size)


def judge(rollouts: Sequence[Trajectory], step: int, run_id: str, config: GrpoConfig) -> list[Overlay]:
    """A verdict for every rollout, group by group."""
    groups: dict[str, list[Trajectory]] = {}
    for each in rollouts:
        groups.setdefault(each.group_id, []).append(each)
    options = RocOptions(selection=config.selection)
    seed = config.seed
    return [
        overlay
        for group in groups.values()
        for overlay in select(
            group, config.group_size, config.algorithm, seed=seed, run_id=run_id, step=step, options=options
        )
    ]
