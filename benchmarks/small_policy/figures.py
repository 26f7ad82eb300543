"""Figures of a policy on held-out problems: in the tool loop, and in the roles of the hierarchical
graph.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.evaluation.evaluate import Evaluation, evaluate
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.small_policy.fault_counts import FaultShare, fault_shares
from hrm_agent.trajectory import Trajectory

__all__ = ["EVAL_SEED", "GRAPHS", "Figures", "RoleFigures", "measure", "measure_roles"]

EVAL_SEED = 1
GRAPHS = ("tool_loop", "reasoning")
SAMPLES = 4
"""Number of rollouts of the tool loop on each problem. A standard error of 0.016 makes two cold
starts comparable.
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one policy in one graph."""

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
        """Figures rounded as in the card."""
        return {"correct": round(self.correct, 3), "tool_errors": round(self.tool_errors, 3)}


@dataclass(frozen=True, slots=True)
class RoleFigures:
    """Figures of a policy whose roles make faults, on the same problems."""

    by_graph: dict[str, Figures]
    """Figures of the tool loop, and of the hierarchical graph at temperature 1."""
    greedy: Figures
    """Figures of the hierarchical graph at temperature 0."""
    faults: dict[str, FaultShare]
    """Faults by field of `RoleFaults`, in the hierarchical graph at temperature 1."""


def measure(policy: Path | str, run: Path) -> dict[str, Figures]:
    """Measure a policy. Returns figures by graph, on the same problems for every policy."""
    roles = CollectConfig(
        policy=str(policy), count=100, graph="reasoning", temperature=0, seed=EVAL_SEED
    )
    configs = (_tool_loop(policy, SAMPLES), roles)
    return {config.graph: _figures(config, _runs(config, run / config.graph)) for config in configs}


def measure_roles(policy: Path | str, run: Path, samples: int = SAMPLES) -> RoleFigures:
    """Measure as `measure` does, with the hierarchical graph on 256 problems, sampled and greedy.

    `samples`: rollouts of the tool loop on each problem.
    """
    loop = _tool_loop(policy, samples)
    sampled = CollectConfig(policy=str(policy), count=256, graph="reasoning", seed=EVAL_SEED)
    greedy = sampled.model_copy(update={"temperature": 0.0})
    runs = _runs(sampled, run / "reasoning")
    by_graph = {
        "tool_loop": _figures(loop, _runs(loop, run / "tool_loop")),
        "reasoning": _figures(sampled, runs),
    }
    return RoleFigures(
        by_graph, _figures(greedy, _runs(greedy, run / "greedy")), fault_shares(runs)
    )


def _tool_loop(policy: Path | str, samples: int) -> CollectConfig:
    return CollectConfig(policy=str(policy), count=256, samples=samples, seed=EVAL_SEED)


def _runs(config: CollectConfig, run: Path) -> list[Trajectory]:
    return asyncio.run(collect(config, run))


def _figures(config: CollectConfig, runs: list[Trajectory]) -> Figures:
    found: Evaluation = evaluate(runs)
    temperature = 1.0 if config.temperature is None else config.temperature
    return Figures(
        temperature,
        found.trajectories,
        found.pass_at_1,
        found.interval,
        found.correct_with_tool_error,
    )
