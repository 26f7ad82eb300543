"""Tasks to trajectories, without learning: for looking, for evaluation, for exports.

A run folder holds `store.db`. Called again on the same folder, `collect` runs what is missing, carries on what was
interrupted and reads back the rest, so that resuming is the same as starting.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hrm_agent.models import Backend, load_policy
from hrm_agent.trajectory import Sampling, Trajectory
from training.rollout import group_episodes, open_runner, rollout
from training.tasks import load_tasks

__all__ = ["CollectConfig", "collect"]


class CollectConfig(BaseModel):
    """Which tasks are run, how often, and by whom."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policy: str = "builtin:trained"
    """A built-in policy, a model folder, hf:NAME, or a provider's chat model."""
    tasks: str = "word_problems"
    """Family of tasks, as for `load_tasks`."""
    split: Literal["train", "eval"] = "eval"
    count: int | None = Field(default=256, ge=1)
    """Number of tasks; None takes all of a finite family."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task."""
    graph: str = "tool_loop"
    context: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the graph: its budgets."""
    stand_in: bool = False
    """Let the policy answer for chat models that the graph holds itself; otherwise those are asked, and recorded."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=512, ge=1)
    """Sampled tokens of one answer, where the graph sets no budget of its own."""
    concurrency: int = Field(default=256, ge=1)
    """Rollouts open at a time."""
    seed: int = 0


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
        run_id=folder.name,
        stage=stage,
        seed=config.seed,
        graph=config.graph,
        context=config.context,
    )
    sampling = Sampling(temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens)
    policy = backend or load_policy(config.policy)
    async with open_runner(folder, policy, config.policy, sampling, stand_in=config.stand_in) as runner:
        return await rollout(runner, episodes, concurrency=config.concurrency, on_done=on_rollout)
