"""Reinforcement learning with recorded runs of graphs: GRPO, and GRPO-RoC of rStar2-Agent (arXiv
2508.20722, section 3).

A step draws prompts, runs a group of episodes through the graph for each prompt, verifies the
answers, selects rollouts, computes advantages and credit, updates the weights and publishes them.
`train` connects four parts: a `TaskSource` draws tasks and decides on stages, a `Collector` runs
groups, a `Learner` has weights, optimiser and engine, and a `Keeper` writes the run's folder.

A run can be killed at any time. Every model and tool call of the current step is on record, and a
checkpoint has the weights before the step, so `train` on the same folder resumes the step. With the
same seed it samples the same tokens, since the random numbers of a call depend on its place and not
on time. The update depends only on the tokens, since an on-policy step uses the trainer's log-probs
as the old ones. So if the newest checkpoint is damaged, the run repeats the steps since the
previous checkpoint, from the rollouts on record, and reaches the same weights. If `train` is called
with more steps than a run has taken, it continues the run. The result has the weights of a run that
was begun with that number, if the learning rates agree.

With `versions_behind`, rollouts of coming steps run during a step
(`hrm_agent.training.rollout.ahead`). Timing then decides which weights sample a token, so two such
runs differ. A repeated step still trains on the rollouts on record.
"""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from hrm_agent.runtime.episode import refuse_other_roles
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.fitted import decided, fit
from hrm_agent.training.config.parts import TrainingStage, of_sequences
from hrm_agent.training.evaluation.evaluate import group_metrics
from hrm_agent.training.evaluation.step_metrics import (
    families_of_step,
    fork_metrics,
    roles_of_step,
    rollout_metrics,
)
from hrm_agent.training.keeper import Keeper
from hrm_agent.training.metrics import Phases, Row
from hrm_agent.training.ranks.learner import follow, led
from hrm_agent.training.ranks.processes import several_ranks
from hrm_agent.training.ranks.rollouts import opened_ranks
from hrm_agent.training.rollout.ahead import StepsUnderWay, with_bound
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.groups import Collector
from hrm_agent.training.rollout.rollout import Attempts, open_run, run_id_of, steps_with_rollouts
from hrm_agent.training.rollout.scoring import Score, scoring_by_family
from hrm_agent.training.rollout.source import StepPlan, TaskSource, held_out, key_of, tasks_of_run
from hrm_agent.training.select.carry_over import Carried, CarryOver
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.training.select.verdicts import (
    credited_overlays,
    explained,
    judge,
    judge_group,
    refuse_hopeless,
    selection_metrics,
)
from hrm_agent.training.tasks import Task
from hrm_agent.training.tasks.sources import keep_sources
from hrm_agent.training.update.accelerators import exact_accelerator
from hrm_agent.training.update.batch import (
    ForwardName,
    Lesson,
    MicroBatch,
    build_batches,
    left_out,
    split_kept,
)
from hrm_agent.training.update.difference_bound import refuse_difference
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.trial import take_own_parts
from hrm_agent.training.workers.pool import opened_workers, refuse_unsendable
from hrm_agent.trajectory import Overlay, Trajectory, Verdict

__all__ = ["Settled", "TrainingRun", "mini_batches", "train"]

_LEAST_BUDGET = 64
"""Token budget of a micro-batch at which it is no longer reduced in order to give each rank a
micro-batch.
"""


async def train(
    config: GrpoConfig,
    folder: Path,
    *,
    on_rollout: Callable[[Trajectory], None] | None = None,
    on_step: Callable[[Row], None] | None = None,
) -> Path:
    """Train or resume the run in `folder`. Returns the folder of the trained model.

    If the process is one of several (`optim.sharding`) and not the first, it takes part in the
    training that the first process leads. Keys that the configuration leaves to the model are
    fitted to the policy.
    """
    config = fit(config)
    if config.source:
        raise ValueError(
            "config.source is set: train on records with"
            " `hrm_agent.training.records.offline.train_on_record`"
        )
    async with AsyncExitStack() as stack:
        ranks = stack.enter_context(several_ranks(config))
        if ranks is not None and not ranks.leads:
            await follow(ranks)
            return folder / "model"
        refuse_unsendable(config.processes, config)
        graphs = config.graphs
        options = config.configurable
        refuse_other_roles(config.adapter.lora_roles, "lora_roles", graphs, options)
        refuse_other_roles(config.loss.frozen_roles, "frozen_roles", graphs, options)
        config = with_bound(config)
        take_own_parts(config, folder)
        learner = (
            Learner(config, exact_accelerator(), folder)
            if ranks is None
            else led(ranks, config, folder)
        )
        # the engine may be a fleet of servers, which this process starts and stops
        engine = await asyncio.to_thread(lambda: learner.engine)
        stack.push_async_callback(asyncio.to_thread, engine.close)
        recording = open_run(
            folder,
            learner.name,
            config,
            store=config.store,
            backend=engine,
            allow=config.allowed_types,
        )
        runner = await stack.enter_async_context(recording)
        scoring = scoring_by_family(
            config,
            runner.store,
            carry_over=config.rollout.carry_over,
            forks=config.loss.credit == "forks",
            keeps_truncated=config.select.truncated == "keep_reward",
        )
        score = await stack.enter_async_context(scoring)
        run_id = run_id_of(folder, runner.store)
        keeper = Keeper(folder, config, learner)
        behind = config.rollout.versions_behind
        progress = keeper.restore(partial(steps_with_rollouts, runner.store, run_id, behind))
        config = keeper.config
        source = TaskSource(config, folder, progress)
        source.prepare()
        keep_sources(config.tasks, "train", folder, *config.tasks_of_stages)
        draw = partial(tasks_of_run, config, folder)
        workers = await stack.enter_async_context(
            opened_workers(config.processes, runner, config, draw=draw)
            if ranks is None or config.engines.engine == "vllm"
            else opened_ranks(ranks, runner, config, draw=draw)
        )
        collector = Collector(
            runner, run_id, folder, config, workers=workers, on_rollout=on_rollout
        )
        thread = (
            stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="learner"))
            if behind
            else None
        )
        under_way = await stack.enter_async_context(StepsUnderWay(collector))
        write = runner.store.journal.write_overlays
        carry_over = CarryOver(runner.store, run_id, folder, collector, source, score)
        run = _SamplingRun(
            run_id, source, learner, keeper, score, write, collector, under_way, carry_over, thread
        )
        while source.goes_on(learner.version):
            if (stage := source.entered(learner.version)) is not None:
                await run.begin(stage)
            if (plan := source.plan(learner.version)) is None:
                if source.ran_out(learner.version):
                    continue
                break
            row = await run.take(plan)
            await run.apart(keeper.keep, row, source.progress)
            if on_step is not None:
                on_step(row)
            refuse_hopeless(row, folder)
        return keeper.end()


@dataclass(frozen=True, slots=True)
class Settled:
    """Rollouts of a step that have ended: either unscored, or already scored and judged."""

    unscored: list[Attempts]
    """Rollouts that are still to be scored (empty if all are scored)."""
    attempts: list[Attempts]
    """Scored rollouts, whose verdicts are `overlays` (empty if they are still to be judged)."""
    overlays: list[Overlay]
    """Verdicts of `attempts`."""
    cut_off: int = 0
    """Number of rollouts that were cut off from their groups."""
    carried: Carried = field(default_factory=Carried)
    """Rollouts that were cut off in the previous step and carried over to this step."""


@dataclass(frozen=True, slots=True)
class TrainingRun(ABC):
    """Parts of a training, and the course of a step. A subclass provides the rollouts."""

    run_id: str
    """Run id in overlays."""
    source: TaskSource
    """Source of the steps' plans."""
    learner: Learner
    """Weights and optimiser."""
    keeper: Keeper
    """Writer of the run's folder."""
    score: Score
    """Function that scores rollouts."""
    write_overlays: Callable[[Sequence[Overlay]], None]
    """Function that stores the verdicts of a step."""

    async def take(self, plan: StepPlan) -> Row:
        """Take one step, and return its row of metrics. A repeated step finds its rollouts on
        record.
        """
        phases = Phases("evaluation")
        config = plan.config
        with phases("rollout"):
            settled = await self.settled(plan)
        carried = settled.carried
        with phases("reward"):
            attempts = settled.attempts or await self.score(settled.unscored)
        with phases("select"):
            judged = settled.overlays or judge(attempts, plan.step, self.run_id, config)
            rollouts = [each[-1] for each in attempts]
            overlays = credited_overlays(rollouts, judged, config)
            everyone = [*rollouts, *carried.rollouts]
            verdicts = [*overlays, *carried.overlays]
            self.write_overlays(verdicts)
            learner = self.learner
            batches = mini_batches(
                everyone,
                verdicts,
                config,
                forward=learner.forward,
                ranks=learner.accelerator.num_processes,
                lesson=learner.teachers.lesson if learner.teachers is not None else None,
            )
        with phases("update"):
            update = await self.updated(batches, plan.rate)
        if plan.step == 0:
            _tell_of_unseen_roles(config, rollouts)
        # forks would bias the accuracy, since their beginnings were chosen
        whole = [each for each in rollouts if each.forked_from is None]
        forked = {each.id for each in rollouts if each.forked_from is not None}
        begun = [each for each in attempts if each[-1].id not in forked]
        of_whole = [each for each in overlays if each.trajectory_id not in forked]
        found = group_metrics(whole, of_whole) | selection_metrics(begun, of_whole)
        found |= (
            left_out(rollouts, overlays)
            | rollout_metrics(whole, overlays)
            | _pool_metrics(plan, rollouts, found)
            | fork_metrics(rollouts)
        )
        sound = [each for each in whole if fault_of(each) is None]
        self.source.take_in(
            _right_by_problem(whole), found["rollout/correct"], _right_by_problem(sound)
        )
        with phases("evaluation"):
            evaluated = await self.evaluated(config)
        found |= {"rollout/cut_off": float(settled.cut_off), **carried.metrics}
        row = {
            "step": plan.step,
            "stage": plan.stage,
            **found,
            **explained(update, found),
            **evaluated,
        }
        if engines := self.learner.engine_metrics():
            row["engines"] = engines
        mastered = float(len(self.source.progress.mastered))
        return {
            **row,
            "select/mastered": mastered,
            "roles": roles_of_step(everyone, verdicts),
            "families": families_of_step(whole, overlays),
            **phases.seconds(),
        }

    @abstractmethod
    async def settled(self, plan: StepPlan) -> Settled:
        """Collect the rollouts of a step."""

    async def updated(self, batches: list[list[MicroBatch]], rate: float) -> Row:
        """Update the weights, and return metrics."""
        return {**self.learner.update(batches, rate), "update_overlap": 0.0}

    async def evaluated(self, config: GrpoConfig) -> Row:
        """Evaluate on held-out problems if an evaluation is due, and return its metrics (both None
        if none is due). In this base class none is ever due.
        """
        del config
        return {"eval/correct": None, "eval/best": None}


@dataclass(frozen=True, slots=True)
class _SamplingRun(TrainingRun):
    """Training whose rollouts are sampled by the policy under training."""

    collector: Collector
    under_way: StepsUnderWay
    carry_over: CarryOver
    thread: ThreadPoolExecutor | None
    """Thread in which updates run while rollouts run (None if no rollouts run during updates)."""

    async def begin(self, stage: TrainingStage) -> None:
        """Prepare for the first step of a stage, and save the weights of the stage before it if the
        run keeps them.
        """
        ended = self.source.progress.stage
        if ended and self.source.config.keep.stage_models:
            await self.apart(self.keeper.stage, ended)
        if stage.reset_optimizer:
            self.learner.begin_optimizer_afresh()
        if stage.leave_out_solved:
            name = f"pool-{self.source.progress.stage}"
            rollouts = await self._rolled_out(name, self.source.pool(), stage.leave_out_solved)
            right = _right_by_problem(rollouts)
            self.source.leave_out([problem for problem, each in right.items() if all(each)])

    async def settled(self, plan: StepPlan) -> Settled:
        """Collect the groups of a step. With `refill`, each group is scored and judged when it
        ends, and a rejected group is replaced by another prompt.
        """
        config = plan.config
        refill = plan.config.rollout.refill
        groups: dict[int, tuple[Sequence[Attempts], list[Overlay]]] = {}
        cut_off = 0
        async with (
            self.under_way.groups(plan, self.source.ahead(plan.step)) as under_way,
            self.carry_over.beside(plan) as carried_over,
        ):
            async for group in under_way:
                cut_off += group.cut_off
                if not refill:
                    groups[group.place] = (group.attempts, [])
                    continue
                attempts = await self.score(group.attempts)
                overlays = judge_group(attempts, plan.step, self.run_id, config)
                groups[group.place] = (attempts, overlays)
                may_begin = under_way.begun < len(plan.tasks) + refill
                if may_begin and not any(overlay.verdict is Verdict.KEPT for overlay in overlays):
                    task = self.source.next_task()
                    if task is not None:
                        under_way.begin(task)
            carried = await carried_over()
        await asyncio.to_thread(self.learner.vouch)
        ordered = [groups[place] for place in sorted(groups)]
        everyone = [each for attempts, _ in ordered for each in attempts]
        judged = [overlay for _, overlays in ordered for overlay in overlays]
        return Settled(
            [] if refill else everyone, everyone if refill else [], judged, cut_off, carried
        )

    async def updated(self, batches: list[list[MicroBatch]], rate: float) -> Row:
        """Update the weights. Returns metrics, including the share of the time during which
        rollouts of coming steps ran.

        Raises `ModelError` if engine and trainer differ too much to be the same policy.
        """
        began = time.monotonic()
        metrics = await self.apart(self.learner.update, batches, rate)
        limit = self.source.config.loss.engine_difference_limit
        # dropout makes the trainer's log-probs differ from the engine's
        if limit is not None or not self.source.config.adapter.lora_dropout:
            refuse_difference(metrics, self.learner.formats(), limit)
        return {**metrics, "update_overlap": self.under_way.share_busy(began)}

    async def apart(self, do: Callable[..., Any], *given: Any) -> Any:
        """Call `do` and return its result. It runs in the learner thread if rollouts
        run meanwhile.
        """
        if self.thread is None:
            return do(*given)
        return await asyncio.get_running_loop().run_in_executor(self.thread, do, *given)

    async def _rolled_out(self, stage: str, tasks: list[Task], samples: int) -> list[Trajectory]:
        """Run and score rollouts of tasks that are not trained on."""
        config = self.source.config
        async with self.collector.groups(stage, config, tasks, samples=samples) as under_way:
            groups = sorted([group async for group in under_way], key=lambda group: group.place)
        await asyncio.to_thread(self.learner.vouch)
        return [
            each[-1]
            for each in await self.score([each for group in groups for each in group.attempts])
        ]

    async def evaluated(self, config: GrpoConfig) -> Row:
        """Evaluate on held-out problems if an evaluation is due, and save the weights if they are
        the best.
        """
        taken = self.learner.version
        options = config.evaluation
        if not options.eval_every or (taken % options.eval_every and taken != config.steps):
            return {"eval/correct": None, "eval/best": None}
        rollouts = await self._rolled_out(f"eval-{taken}", held_out(config, self.keeper.folder), 1)
        correct = fmean(float(is_positive(outcome_of(each))) for each in rollouts)
        if self.source.progress.evaluated(taken, correct):
            await self.apart(self.keeper.best)
        return {
            "eval/correct": correct,
            "eval/best": max(found for _, found in self.source.progress.evaluations),
        }


def _right_by_problem(rollouts: Sequence[Trajectory]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for each in rollouts:
        found.setdefault(key_of(each.task.family, each.task.id), []).append(
            is_positive(outcome_of(each))
        )
    return found


def _pool_metrics(plan: StepPlan, rollouts: Sequence[Trajectory], found: Row) -> Row:
    """Number of further prompts that were drawn, and number of groups that the step still lacks."""
    groups = len({each.group_id for each in rollouts})
    kept = groups - round(found["select/groups_rejected"] * groups)
    return {
        "select/refilled": float(groups - len(plan.tasks)),
        "select/unfilled": float(max(0, plan.config.rollout.prompts_per_step - kept)),
    }


def _tell_of_unseen_roles(config: GrpoConfig, rollouts: Sequence[Trajectory]) -> None:
    """Report on stderr the roles in the configuration that no call of the rollouts has. Those of
    sub-agents are known only by their calls.
    """
    seen = {call.identity.role for each in rollouts for call in each.calls}
    for key, roles in (
        ("lora_roles", config.adapter.lora_roles),
        ("frozen_roles", config.loss.frozen_roles),
    ):
        for role in (role for role in roles if seen and role not in seen):
            sys.stderr.write(
                f"hrm-agent: {key} names {role!r}, but no call of the first step has that role."
                f" Their roles are {', '.join(sorted(seen))}.\n"
            )


def mini_batches(
    rollouts: Sequence[Trajectory],
    overlays: Sequence[Overlay],
    config: GrpoConfig,
    *,
    forward: ForwardName,
    ranks: int = 1,
    lesson: Lesson | None = None,
) -> list[list[MicroBatch]]:
    """Micro-batches of each optimiser step of a batch (an empty list for a step without trained
    tokens).

    Ranks compute micro-batches in parallel. So if there would be fewer micro-batches than `ranks`,
    they are made smaller than configured. Raises `ModelError` if rollouts were kept but none can be
    trained on.
    """
    loss = config.loss
    build = partial(
        build_batches,
        rollouts,
        forward=forward,
        whole_trajectories=of_sequences(loss.objective),
        roles=config.adapter.lora_roles,
        lesson=lesson,
    )
    parts = split_kept(overlays, config.optim.mini_batches, seed=config.seed)
    budget = decided(loss.micro_batch_tokens, "micro_batch_tokens")
    found = [build(part, token_budget=budget, may_be_empty=True) for part in parts]
    while any(0 < len(part) < ranks for part in found) and budget > _LEAST_BUDGET:
        budget = budget * 3 // 4
        found = [build(part, token_budget=budget, may_be_empty=True) for part in parts]
    return found if any(found) else [build(overlays, token_budget=budget)]
