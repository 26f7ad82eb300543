"""Trainings from one cold start, with each of the rewards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from hrm_agent.store import open_store
from hrm_agent.store.run_store import own_run
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import METRICS_FILE, read_metrics
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import TaskRef

__all__ = ["OLD", "Course", "config_of", "spec_of", "trained"]

OLD = "verifier"
"""Name of the training with the verifier's reward."""
_LAST = 3
"""Number of last steps whose rollouts are measured."""


@dataclass(frozen=True, slots=True)
class Course:
    """Means over the rollouts of the last steps of a training."""

    accuracy: float
    """Share of right answers, by the task's verifier."""
    tool_use: float
    """Share of answers with a tool call."""
    length: float
    """Number of sampled tokens."""


def spec_of(reward: str) -> str:
    """Name of a reward of `rewards.py`, as a command takes it."""
    return f"benchmarks.reward_diff.rewards:{reward}"


def config_of(reward: str, seed: int, steps: int, group_size: int) -> GrpoConfig:
    """Configuration of a training with a reward."""
    return GrpoConfig.of(
        steps=steps,
        prompts_per_step=6,
        group_size=group_size,
        seed=seed,
        rewards=None if reward == OLD else spec_of(reward),
        keep_versions=1 if reward == OLD else 0,
    )


def trained(folder: Path, reward: str, seed: int, steps: int, group_size: int) -> Course:
    """Train in `folder`, unless that is done, and measure the result."""
    config = config_of(reward, seed, steps, group_size)
    metrics = folder / METRICS_FILE
    if not metrics.exists() or len(read_metrics(metrics)) < steps:
        asyncio.run(train(config, folder))
    return _measured(folder, steps)


def _is_right(answer: str, task: TaskRef) -> bool:
    return exact_verifier(task.answer or "")(answer) == 1


def _measured(folder: Path, steps: int) -> Course:
    run_id = own_run(str(folder))
    with open_store(str(folder), create=False, read_only=True) as store:
        rollouts = [
            store.journal.trajectory(overlay.trajectory_id)
            for step in range(max(0, steps - _LAST), steps)
            for overlay in store.journal.overlays(run_id or "", step)
        ]
    return Course(
        accuracy=fmean(t.answer is not None and _is_right(t.answer, t.task) for t in rollouts),
        tool_use=fmean(bool(t.own_tool_calls) for t in rollouts),
        length=fmean(t.sampled_tokens for t in rollouts),
    )
