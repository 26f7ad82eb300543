"""Training on recorded runs: the steps of `hrm_agent.training.grpo`, without sampling.

Verdicts, advantages, credit and update are those of a training that samples; only the rollouts are
read from a record (`hrm_agent.training.records.groups`). A record is never written to: verdicts,
and scores by a newly named rubric, go to the store of the new run.

A step is on-policy if its tokens were sampled by exactly the weights that it trains. Version
numbers cannot show this, since other weights may have the same version. So it is measured: the step
is on-policy if recorded log-probs equal the trainer's up to rounding. An on-policy step is taken as
in a run that samples. So a training on its own record, with the same rewards and seed, leads to the
same weights, bit for bit. Any other step uses the recorded log-probs as the old ones, unless
`correction` weighs the loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hrm_agent.basics.files import alone_in, replacing
from hrm_agent.errors import RunError
from hrm_agent.rewards import Scorer, opened_scorer
from hrm_agent.store import STORE_POINTER, RunStore, open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.fitted import fit
from hrm_agent.training.grpo import Settled, TrainingRun
from hrm_agent.training.keeper import Keeper
from hrm_agent.training.metrics import Row
from hrm_agent.training.ranks.processes import require_one_process
from hrm_agent.training.records.groups import (
    RecordedGroups,
    attempts_of_group,
    kept_groups,
    select_groups,
)
from hrm_agent.training.records.runs import RecordedRuns, TokenReader, opened_runs
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.rollout import Attempts, run_id_of
from hrm_agent.training.rollout.scoring import Score, reward_environment, rollouts_of
from hrm_agent.training.rollout.source import RunProgress, StepPlan, TaskSource
from hrm_agent.training.tasks import Task
from hrm_agent.training.update.accelerators import exact_accelerator
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.logprobs import sampled_and_recorded_logprobs
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.trial import take_own_parts
from hrm_agent.trajectory import NO_REWARDS, DropReason, Scoring, Trajectory

__all__ = ["own_store", "train_on_record"]

_SAME_WEIGHTS = 1e-3
"""Mean difference of log-probs, in nats, up to which two policies count as equal (in single
precision).
"""


async def train_on_record(
    config: GrpoConfig, folder: Path, *, on_step: Callable[[Row], None] | None = None
) -> Path:
    """Train or resume the run in `folder` on the records in `config.source`. Returns the folder of
    the trained model.

    Raises `TaskError`, before the folder is made, if nothing on record can be learned from.
    """
    require_one_process()
    config = fit(config)
    groups = kept_groups(folder) or select_groups(config, own_store(config, folder))
    learner = _RecordLearner(config, exact_accelerator())
    with (
        alone_in(folder),
        open_store(own_store(config, folder)) as store,
        opened_runs(groups.sources, config.allowed_types) as runs,
    ):
        take_own_parts(config, folder)
        groups.write(folder)
        if config.store is not None:
            with replacing(folder / STORE_POINTER) as part:
                part.write_text(store.url, encoding="utf-8")
        keeper = Keeper(folder, config, learner)
        source = _RecordSource(config, folder, keeper.restore(), groups)
        tokens = TokenReader(config.policy)
        async with _scoring(config, store, runs, groups) as score:
            run_id = run_id_of(folder, store)
            write = store.journal.write_overlays
            run = _RecordRun(run_id, source, learner, keeper, score, write, groups, runs, tokens)
            while source.goes_on(learner.version):
                row = await run.take(source.plan(learner.version))
                keeper.keep(row, source.progress)
                if on_step is not None:
                    on_step(row)
        return keeper.end()


def own_store(config: GrpoConfig, folder: Path) -> str:
    """Store to which a run that learns from records writes its verdicts."""
    return config.store or str(folder / "store.db")


class _RecordSource(TaskSource):
    """Source whose steps are recorded groups."""

    def __init__(
        self, config: GrpoConfig, folder: Path, progress: RunProgress, groups: RecordedGroups
    ) -> None:
        super().__init__(config, folder, progress)
        self._groups = groups

    def plan(self, step: int) -> StepPlan:
        config = self.config
        groups = self._groups.of_step(step, config.rollout.prompts_per_step, config.seed)
        tasks = [Task(prompt="", id=group.group_id, family="recorded") for group in groups]
        return StepPlan(step, self.progress.stage, config, self.rate(step), tasks)


@dataclass(frozen=True, slots=True)
class _RecordRun(TrainingRun):
    groups: RecordedGroups
    runs: Sequence[RecordedRuns]
    tokens: TokenReader

    async def settled(self, plan: StepPlan) -> Settled:
        config = plan.config
        wanted = self.groups.of_step(plan.step, config.rollout.prompts_per_step, config.seed)
        requests = config.rewards is not None or config.loss.teacher_prompt is not None
        read = [
            each
            for group in wanted
            for each in attempts_of_group(group, self.runs, self.tokens, requests=requests)
        ]
        return Settled([(*each[:-1], self.groups.rewarded(each[-1])) for each in read], [], [])


class _RecordLearner(Learner):
    def loss_options(
        self, batches: Sequence[MicroBatch] | Sequence[Sequence[MicroBatch]]
    ) -> LossOptions:
        options = super().loss_options(batches)
        if options.old_logprobs == "engine" or options.correction != "none":
            return options
        flat = [
            one for part in batches for one in ([part] if isinstance(part, MicroBatch) else part)
        ]
        return options if self._sampled(flat) else replace(options, old_logprobs="engine")

    def _sampled(self, batches: Sequence[MicroBatch]) -> bool:
        """True if the current weights sampled the tokens of the batches."""
        if not all(bool((batch.versions_K == self.version).all()) for batch in batches):
            return False
        difference = 0.0
        tokens = 0
        with torch.no_grad():
            for batch in (each.to(self.accelerator.device) for each in batches):
                _, comparable_K = sampled_and_recorded_logprobs(self.model, batch)
                difference += float((comparable_K - batch.old_logprobs_K).abs().sum())
                tokens += batch.trained_tokens
        return difference <= _SAME_WEIGHTS * tokens


@asynccontextmanager
async def _scoring(
    config: GrpoConfig, store: RunStore, runs: Sequence[RecordedRuns], groups: RecordedGroups
) -> AsyncGenerator[Score]:
    """Open a scorer with the rubric of the configuration. Without a rubric, rollouts keep their
    recorded rewards.
    """
    if config.rewards is None:

        async def unchanged(attempts: Sequence[Attempts]) -> list[Attempts]:
            return list(attempts)

        yield unchanged
        return
    async with opened_scorer(
        config.rewards,
        environment=reward_environment(config),
        keeps_truncated=config.select.truncated == "keep_reward",
    ) as scorer:
        yield _Rescoring(scorer, store, runs, groups).score


class _Rescoring:
    """Scores groups by a rubric. Groups that were scored in an earlier pass, or before a kill, are
    not scored again.
    """

    def __init__(
        self, scorer: Scorer, store: RunStore, runs: Sequence[RecordedRuns], groups: RecordedGroups
    ) -> None:
        self._scorer = scorer
        self._store = store
        self._runs = {group.group_id: runs[group.source] for group in groups.groups}
        self._standing = store.scorings.by_rubric(scorer.rubric.name)

    async def score(self, attempts: Sequence[Attempts]) -> list[Attempts]:
        last: dict[str, list[Trajectory]] = {}
        for each in attempts:
            bare = each[-1].model_copy(update=NO_REWARDS)
            fault = fault_of(bare)
            if fault is None or fault[0] is DropReason.NOT_SCORED:
                last.setdefault(bare.group_id, []).append(bare)
        due = [
            group for group in last.values() if any(each.id not in self._standing for each in group)
        ]
        for found in await asyncio.gather(*(self._group(group) for group in due)):
            self._standing |= {scoring.trajectory_id: scoring for scoring in found}
        scored: list[Attempts] = []
        for *earlier, last_attempt in attempts:
            scoring = self._standing.get(last_attempt.id)
            rewards = scoring.as_rewards if scoring is not None else NO_REWARDS
            scored.append((*earlier, last_attempt.model_copy(update=rewards)))
        return scored

    async def _group(self, group: Sequence[Trajectory]) -> list[Scoring]:
        runs = self._runs[group[0].group_id]
        if runs.store is None and "state" in self._scorer.rubric.wants:
            raise RunError(
                f"The rubric {self._scorer.rubric.name!r} reads the state, which {runs.where} does"
                " not have.",
                "Name the store instead, or a rubric that reads text, calls or tool_calls.",
            )
        # A file has no store. The rubric then reads no state, so that any store may be passed.
        found = await self._scorer.score(
            rollouts_of(self._scorer.rubric, runs.store or self._store, group)
        )
        await asyncio.to_thread(self._store.scorings.write, found)
        return found
