"""What a policy does on held-out problems: in the tool loop, and in the roles of the hierarchical graph."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from hrm_agent.training.collect import collect
from hrm_agent.training.configs import CollectConfig
from hrm_agent.training.evaluation.evaluate import Evaluation, evaluate

__all__ = ["EVAL_SEED", "GRAPHS", "Figures", "measure"]

EVAL_SEED = 1
GRAPHS = ("tool_loop", "reasoning")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy in one graph."""

    temperature: float
    """Sampling temperature of the rollouts."""
    rollouts: int
    """Number of ended rollouts."""
    correct: float
    """pass@1 on the held-out problems, in [0, 1]."""
    interval: tuple[float, float]
    """95 % confidence interval of `correct`."""
    tool_errors: float
    """Share of the correct rollouts with a tool call that failed."""

    def rounded(self) -> dict[str, float]:
        """As the card shows them."""
        return {"correct": round(self.correct, 3), "tool_errors": round(self.tool_errors, 3)}


def measure(policy: Path | str, run: Path) -> dict[str, Figures]:
    """By graph, on the same problems for every policy.

    The tool loop is sampled four times on each problem: a standard error of 0.016 is what makes two cold starts
    comparable.
    """
    loop = CollectConfig(policy=str(policy), count=256, samples=4, seed=EVAL_SEED)
    roles = CollectConfig(policy=str(policy), count=100, graph="reasoning", temperature=0, seed=EVAL_SEED)
    return {config.graph: _figures(config, run / config.graph) for config in (loop, roles)}


def _figures(config: CollectConfig, run: Path) -> Figures:
    found: Evaluation = evaluate(asyncio.run(collect(config, run)))
    return Figures(
        config.temperature, found.trajectories, found.pass_at_1, found.interval, found.correct_with_tool_error
    )
