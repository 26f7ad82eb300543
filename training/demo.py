"""Demo: trains a policy, and lets the improved policy solve a problem.

    cold start -> evaluation -> GRPO-RoC through graph, sandbox and checkpointer -> evaluation
    -> the hierarchical graph

All files are in one folder. If the demo is called again on the folder, it resumes from the record.
Its result depends only on its configuration. The command line shows its progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hrm_agent.basics.intervals import Estimate
from hrm_agent.config import attribute_of
from hrm_agent.runtime.episode import Episode, OnUpdate
from hrm_agent.runtime.settings import GraphSettings, RolloutSettings, RunSettings
from hrm_agent.training.config.commands import CollectConfig, DemoConfig
from hrm_agent.training.config.fitted import decided, fit
from hrm_agent.training.evaluation.evaluate import Evaluation, evaluate
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import METRICS_FILE, read_metrics
from hrm_agent.training.plots.plots import plot_curves
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.rollout.rollout import open_run, run_id_of
from hrm_agent.trajectory import TaskRef, Trajectory

__all__ = ["DemoReport", "OnProgress", "demo"]

Stage = Literal["cold_start", "before", "train", "after", "solve"]
OnProgress = Callable[[Stage, int, int, dict[str, Any]], None]
"""Progress callback (stage, done, total, newest facts). It is called often, in the event loop, so
it must be quick.
"""


class DemoReport(BaseModel):
    """Results of the demo, saved as `report.json`."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    before: dict[str, Any]
    """Results on the held-out problems before training
    (`hrm_agent.training.evaluation.evaluate.Evaluation`).
    """
    after: dict[str, Any]
    """Results on the held-out problems after training
    (`hrm_agent.training.evaluation.evaluate.Evaluation`).
    """
    steps: int
    """Number of optimiser steps."""
    groups_rejected: float
    """Mean share of groups without a signal, over the steps."""
    cpu_seconds: dict[str, float]
    """Phase of a training step -> CPU seconds over all steps."""
    solved: str
    """Id of the trajectory in which the hierarchical graph solved the problem."""
    answer: str
    """Answer of the hierarchical graph (empty if there is none)."""
    rounds: int
    """Number of plans that the hierarchical graph made."""
    model: str
    """Folder of the trained model."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Measures on the held-out problems: name, before, after."""
        return [("pass@1, 95 % interval", _pass_at_1(self.before), _pass_at_1(self.after))] + [
            (label, f"{self.before[name]:.3f}", f"{self.after[name]:.3f}")
            for label, name in (
                ("tool error among the correct", "correct_with_tool_error"),
                ("completion tokens, mean", "mean_sampled_tokens"),
                ("tool calls, mean", "mean_tool_calls"),
            )
        ]


async def demo(
    config: DemoConfig,
    folder: Path,
    *,
    on_progress: OnProgress | None = None,
    on_update: OnUpdate | None = None,
) -> DemoReport:
    """Run or resume the demo in `folder`. `on_update`: called with each update of the hierarchical
    graph's nodes.
    """
    tell = on_progress or (lambda stage, done, of, facts: None)
    start = _cold_start(folder, tell) if config.from_scratch else config.train.policy
    training = fit(config.train.model_copy(update={"policy": start}))
    config = config.model_copy(update={"train": training})
    before = await _evaluate(start, "before", config, folder, tell)
    steps: list[dict[str, Any]] = []

    def on_step(row: dict[str, float]) -> None:
        steps.append(row)
        tell("train", int(row["step"]) + 1, training.steps, row)

    model = await train(training, folder, on_step=on_step)
    rows = read_metrics(folder / METRICS_FILE)
    after = await _evaluate(str(model), "after", config, folder, tell)
    title = f"{attribute_of(training.select.algorithm)}, {training.graph}, seed {training.seed}"
    held_out = {0: _estimate(before), training.steps: _estimate(after)}
    plot_curves(rows, folder / "curves.png", title, held_out)
    task = TaskRef(id="demo", family="demo", prompt=config.problem)
    settings = RunSettings(
        temperature=0, isolation=training.isolation, environment=training.environment
    )
    async with open_run(folder, str(model), settings, store=training.store) as runner:
        episode = Episode(task, f"{run_id_of(folder)}/solve", graph="reasoning")
        solved = await runner.run(episode, on_update)
    tell("solve", 1, 1, {})
    phases = ("rollout", "reward", "select", "update")
    planners = {call.identity.task_id for call in solved.calls if call.identity.node == "plan"}
    report = DemoReport(
        before=asdict(before),
        after=asdict(after),
        steps=len(rows),
        groups_rejected=sum(row["select/groups_rejected"] or 0.0 for row in rows)
        / max(1, len(rows)),
        cpu_seconds={
            phase: sum(row.get(f"{phase}_cpu_seconds") or 0.0 for row in rows) for phase in phases
        },
        solved=solved.id,
        answer=solved.answer or "",
        rounds=len(planners),
        model=str(model),
    )
    (folder / "report.json").write_text(report.model_dump_json(indent=2), encoding="utf-8")
    return report


def _pass_at_1(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['pass_at_1']:.3f} ({low:.3f} to {high:.3f})"


def _estimate(found: Evaluation) -> Estimate:
    return Estimate(found.pass_at_1, *found.interval)


def _cold_start(folder: Path, tell: OnProgress) -> str:
    from hrm_agent.training.small_policy.cold_start import COLD_START, build_cold_start

    out = folder / "cold-start"
    steps = decided(COLD_START.steps, "steps")
    if not (out / "README.md").exists():  # the card is written last
        build_cold_start(out, progress=lambda row: tell("cold_start", int(row["step"]), steps, row))
    return str(out)


async def _evaluate(
    policy: str,
    stage: Literal["before", "after"],
    config: DemoConfig,
    folder: Path,
    tell: OnProgress,
) -> Evaluation:
    done: list[Trajectory] = []

    def on_rollout(trajectory: Trajectory) -> None:
        done.append(trajectory)
        tell(stage, len(done), config.eval_problems, {})

    shared = (
        GraphSettings.model_fields.keys()
        | RolloutSettings.model_fields.keys()
        | {"tasks", "rewards", "store", "seed"}
    )
    asked = CollectConfig(
        policy=policy,
        count=config.eval_problems,
        processes=config.train.processes,
        **config.train.model_dump(include=shared),
    )
    return evaluate(await collect(asked, folder, stage=f"eval-{stage}", on_rollout=on_rollout))
