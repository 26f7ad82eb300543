"""Gate: is a changed agent better or worse than the one whose runs are recorded?

    1. all runs are repeated offline, which asks nothing and finds those that differ
    2. tasks are taken in a random order; those that differ are asked for, batch by batch
    3. both sides are scored by the same scorer, and the paired differences are tested
       (`hrm_agent.training.evaluation.sequential`) until the verdict is clear

A run whose repetition is unchanged has the difference 0, and is not scored again. A run that ends in
an error of its graph has the score 0, on both sides. A repetition that a machine ended is left out,
with its reason. If the new agent itself left a repetition without a score, the verdict must hold for
every score that it could have.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from hrm_agent.basics.intervals import Estimate
from hrm_agent.errors import ConfigError, HrmError, RunError
from hrm_agent.rewards import Scorer
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.store import RunStore
from hrm_agent.training.analysis.gate_repeats import RecordedRun, Repeat, Repeats
from hrm_agent.training.evaluation.budget import Meter
from hrm_agent.training.evaluation.prices import usage
from hrm_agent.training.evaluation.sequential import Look, look
from hrm_agent.training.rollout.eligibility import error_of, lost_tool_calls, unanswered_calls
from hrm_agent.training.rollout.scoring import rollouts_of
from hrm_agent.training.select.roc import outcome_of
from hrm_agent.trajectory import TASK_INPUTS, Call, RunStatus, StopReason, Trajectory, call_id

__all__ = [
    "Expected",
    "GateResult",
    "GateScores",
    "GatedRun",
    "compare_runs",
    "expected_cost",
    "failed_runs",
    "repeated_offline",
]

_SCORED = 64
"""Maximum number of runs that are read and scored at a time."""
_BATCH = (2, 8)
"""Minimum and maximum number of tasks between two looks that differ. Those in progress count, since
they are not stopped.
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """Requests after the first differences, counted in the record."""

    runs: int
    """Number of runs that differ."""
    requests: int
    """Number of requests of all samples."""
    read: int
    """Prompt tokens."""
    sampled: int
    """Completion tokens."""
    by_model: dict[str, tuple[int, int]]
    """Prompt and completion tokens by the recorded model."""
    differences: Counter[tuple[str, str]]
    """(role, difference in words) -> number of runs."""


@dataclass(frozen=True, slots=True)
class GatedRun:
    """Run with its scores."""

    run: RecordedRun
    """Recorded run."""
    old: float
    """Score of the recorded run."""
    new: float
    """Mean score of the samples of the new agent."""
    repeats: tuple[Repeat, ...]
    """Samples of the new agent."""


@dataclass(frozen=True, slots=True)
class _WithoutScore:
    """Run that the new agent left without a score."""

    reason: str
    old: float
    """Score of the recorded run."""


@dataclass(slots=True)
class GateResult:
    """Result of a gate."""

    look: Look
    """Interval of the difference, and the verdict that follows from it."""
    planned: int
    """Number of tasks that could be compared."""
    unchanged: bool
    """True if all runs were repeated with the recorded requests and scores, so nothing was asked."""
    used_up: bool
    """True if the budget ended the comparison."""
    compared: list[GatedRun]
    """Runs that were compared."""
    left_out: dict[str, list[RecordedRun]] = field(
        default_factory=lambda: defaultdict[str, list[RecordedRun]](list)
    )
    """Reason -> runs that were repeated, and say nothing about the new agent."""
    without_score: dict[str, list[RecordedRun]] = field(
        default_factory=lambda: defaultdict[str, list[RecordedRun]](list)
    )
    """Reason -> runs that the new agent left without a score. Each may be anything from 0 to 1."""

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `equal` or `undecided`."""
        return self.look.verdict or "undecided"

    @property
    def old(self) -> float:
        """Mean score of the recorded runs."""
        return _mean_over_tasks(self.compared, lambda each: each.old)

    @property
    def new(self) -> float:
        """Mean score of the new agent."""
        return _mean_over_tasks(self.compared, lambda each: each.new)

    @property
    def worse(self) -> list[GatedRun]:
        return sorted((e for e in self.compared if e.new < e.old), key=lambda e: e.new - e.old)

    @property
    def better(self) -> list[GatedRun]:
        return sorted((e for e in self.compared if e.new > e.old), key=lambda e: e.old - e.new)


async def repeated_offline(
    repeats: Repeats,
    runs: Sequence[RecordedRun],
    closed: Meter,
    *,
    concurrency: int,
    on_done: Callable[[], object] | None = None,
) -> list[Repeat]:
    """Repeat all runs until their first differences."""
    gate = asyncio.Semaphore(concurrency)

    async def repeat(run: RecordedRun) -> Repeat:
        async with gate:
            found = await repeats.offline(run, closed)
        if on_done is not None:
            on_done()
        return found

    return await run_group(runs, repeat)


def expected_cost(offline: Sequence[Repeat], samples: int) -> Expected:
    """Requests, and their tokens, that follow the first differences in the record."""
    differing = [each for each in offline if each.difference is not None and not each.refused]
    calls = list[Call]()
    for each in differing:
        calls += each.unused[each.answered :] if each.trajectory is None else ()
        calls += each.unused * max(0, samples - 1 - each.begun)
    by_model = dict[str, tuple[int, int]]()
    for call in calls:
        read, sampled = usage(call)
        before = by_model.get(call.model, (0, 0))
        by_model[call.model] = before[0] + read, before[1] + sampled
    found = Counter[tuple[str, str]]()
    for each in offline:
        if each.difference is not None:
            found[each.difference.role, each.difference.words] += 1
        elif not each.unchanged:
            found["", each.refused or _other_end(each)] += 1
    return Expected(
        runs=sum(not each.unchanged for each in offline),
        requests=len(calls),
        read=sum(read for read, _ in by_model.values()),
        sampled=sum(sampled for _, sampled in by_model.values()),
        by_model=by_model,
        differences=found,
    )


def _other_end(repeat: Repeat) -> str:
    """Difference of a repetition that makes only recorded requests, in words."""
    if repeat.trajectory is not None and (reason := _unfit(repeat.trajectory)):
        return reason
    return f"ends with {repeat.other_end}" if repeat.other_end else "sends fewer requests"


async def compare_runs(
    repeats: Repeats,
    offline: Sequence[Repeat],
    old: Mapping[str, float],
    scores: GateScores,
    *,
    samples: int,
    margin: float,
    seed: int,
    concurrency: int,
    on_done: Callable[[], object] | None = None,
) -> GateResult:
    """Compare all runs, or as many as a clear verdict needs. `offline`: the offline parts of their
    repetitions. `old`: their scores, by trajectory id. Raises `RunError` if no run can be compared.
    """
    comparison = _Comparison(repeats, scores, samples, concurrency, on_done)
    by_task = defaultdict[tuple[str, str], list[Repeat]](list)
    for each in offline:
        by_task[_task_of(each.run)].append(each)
    order = sorted(by_task)
    random.Random(seed).shuffle(order)
    if all(each.unchanged for tasks in by_task.values() for each in tasks):
        return comparison.all_unchanged(order, by_task, old)
    return await comparison.in_batches(order, by_task, old, margin)


class _Comparison:
    def __init__(
        self,
        repeats: Repeats,
        scores: GateScores,
        samples: int,
        concurrency: int,
        on_done: Callable[[], object] | None,
    ) -> None:
        self._repeats = repeats
        self._scores = scores
        self._samples = samples
        self._concurrency = concurrency
        self._gate = asyncio.Semaphore(concurrency)
        self._on_done = on_done
        self.left_out = defaultdict[str, list[RecordedRun]](list)
        self.without_score = defaultdict[str, list[RecordedRun]](list)
        self._errors = list[HrmError]()

    def all_unchanged(
        self,
        order: Sequence[tuple[str, str]],
        by_task: Mapping[tuple[str, str], list[Repeat]],
        old: Mapping[str, float],
    ) -> GateResult:
        compared = [
            GatedRun(each.run, old[each.run.trajectory.id], old[each.run.trajectory.id], (each,))
            for task in order
            for each in by_task[task]
        ]
        tasks = len(order)
        found = look([0.0] * tasks, tasks, unchanged=True)
        return GateResult(found, tasks, True, False, compared)

    async def in_batches(
        self,
        order: Sequence[tuple[str, str]],
        by_task: Mapping[tuple[str, str], list[Repeat]],
        old: Mapping[str, float],
        margin: float,
    ) -> GateResult:
        planned = len(order)
        compared = list[GatedRun]()
        lowest = list[float]()  # the differences, if unknown scores are 0
        highest = list[float]()  # if they are 1
        done = 0
        found = Look(0, Estimate(0.0, -1.0, 1.0), None)
        used_up = False
        while done < len(order) and found.verdict is None and not used_up:
            batch = self._batch(order[done:], by_task)
            ends = await run_group(batch, lambda task: self._task(by_task[task], old))
            if self._errors:
                raise self._errors[0]
            for end in ends:
                if end is None:  # later tasks that ended would prefer short runs
                    used_up = True
                    break
                done += 1
                compared += (each for each in end if isinstance(each, GatedRun))
                if end:
                    ranges = [*map(_range, end)]
                    lowest.append(fmean(low for low, _ in ranges))
                    highest.append(fmean(high for _, high in ranges))
                else:
                    planned -= 1
            if lowest:
                found = look(lowest, planned, margin=margin, highest=highest)
        if not compared and used_up:
            raise RunError(
                "The budget does not suffice for one task.",
                "Name a larger --budget. What is recorded is not asked again.",
            )
        if not compared:
            raise RunError(
                f"No run can be compared: {next(iter({**self.without_score, **self.left_out}))}.",
                "Name runs that can: RUNS or --run.",
            )
        exact = done == len(order) and not self.left_out and not self.without_score
        same = all(each.same_requests for one in compared for each in one.repeats)
        if exact and same and not any(lowest):
            found = look(lowest, planned, unchanged=True)
            return GateResult(found, planned, True, False, compared)
        return GateResult(
            found, planned, False, used_up, compared, self.left_out, self.without_score
        )

    def _batch(
        self, order: Sequence[tuple[str, str]], by_task: Mapping[tuple[str, str], list[Repeat]]
    ) -> list[tuple[str, str]]:
        """Next tasks. Those that do not differ cost nothing."""
        size = min(max(self._concurrency, _BATCH[0]), _BATCH[1])
        batch = list[tuple[str, str]]()
        differing = 0
        for task in order:
            differing += not all(each.unchanged for each in by_task[task])
            if differing > size:
                break
            batch.append(task)
        return batch

    async def _task(
        self, offline: Sequence[Repeat], old: Mapping[str, float]
    ) -> list[GatedRun | _WithoutScore] | None:
        """Runs of a task that say something about the new agent (None if the budget does not
        suffice).
        """
        ends = await run_group(offline, lambda each: self._run(each, old[each.run.trajectory.id]))
        if any(each is None for each in ends):
            return None
        for each, end in zip(offline, ends, strict=True):
            if isinstance(end, str):
                self.left_out[end].append(each.run)
            if isinstance(end, _WithoutScore):
                self.without_score[end.reason].append(each.run)
        return [each for each in ends if isinstance(each, GatedRun | _WithoutScore)]

    async def _run(self, offline: Repeat, old: float) -> GatedRun | _WithoutScore | str | None:
        """Comparison of a run, or the reason why it is left out (None if the budget does not
        suffice).
        """
        if offline.unchanged:
            self._done()
            return GatedRun(offline.run, old, old, (offline,))
        if offline.refused:
            self._done()
            return _WithoutScore(offline.refused, old)
        # without a difference in the requests, all samples are equal
        count = 1 if offline.difference is None else self._samples
        made = await run_group(range(count), lambda sample: self._live(offline, sample))
        if reason := next((each.refused for each in made if each.refused), ""):
            self._done()
            return _WithoutScore(reason, old)
        if any(each.trajectory is None for each in made):
            return None
        ended = [each.trajectory for each in made if each.trajectory is not None]
        if reason := next(filter(None, map(_machine_fault, ended)), ""):
            self._done()
            return reason
        scores = await self._scores.of(self._repeats.store, ended)
        self._done()
        if reason := next((each for each in scores if isinstance(each, str)), ""):
            return _WithoutScore(reason, old)
        new = fmean(each for each in scores if not isinstance(each, str))
        return GatedRun(offline.run, old, new, tuple(made))

    async def _live(self, offline: Repeat, sample: int) -> Repeat:
        if not sample and offline.trajectory is not None:
            return offline
        async with self._gate:
            try:
                made = await self._repeats.live(offline.run, sample, offline)
                self._refuse_outage(made.trajectory)
                return made
            except HrmError as error:
                # requests under way in other runs are answered and recorded, so none is asked twice
                self._repeats.meter.close()
                self._errors.append(error)
                return offline

    def _refuse_outage(self, ended: Trajectory | None) -> None:
        """Raise `RunError` if a model did not answer a request of the repetition."""
        for call in () if ended is None else unanswered_calls(ended):
            place = call.identity
            asked = call_id(place.thread_id, place.task_id, call.call_index)
            if self._repeats.meter.was_asked(asked):
                raise RunError(
                    f"The model {call.model} gave no answer: {str(call.error).rstrip('.')}.",
                    "What is recorded is kept. The same command asks again.",
                )

    def _done(self) -> None:
        if self._on_done is not None:
            self._on_done()


class GateScores:
    """Scores of recorded runs and of their repetitions, by one scorer."""

    def __init__(self, scorer: Scorer, store: RunStore) -> None:
        """`store`: store that the scores are written to."""
        self._scorer = scorer
        self._store = store

    async def of(
        self,
        store: RunStore,
        headers: Sequence[Trajectory],
        on_done: Callable[[], object] | None = None,
    ) -> list[float | str]:
        """Score of each run of `store`, or the reason why it has none. Recorded scores are not
        used: what they depend on (modules, files, the model of a judge) is not all on record.
        """
        gate = asyncio.Semaphore(_SCORED)

        async def score(header: Trajectory) -> float | str:
            async with gate:
                found = await self._score(store, header)
            if on_done is not None:
                on_done()
            return found

        return await run_group(headers, score)

    async def _score(self, store: RunStore, header: Trajectory) -> float | str:
        whole = await asyncio.to_thread(store.journal.with_calls, header)
        if reason := _unfit(whole):
            return reason
        if whole.status is RunStatus.FAILED and whole.stop_reason is not StopReason.VERIFIER_ERROR:
            return 0.0
        rollouts = rollouts_of(self._scorer.rubric, store, [whole])
        (scoring,) = await self._scorer.score(rollouts)
        await asyncio.to_thread(self._store.scorings.write, [scoring])
        if scoring.fault:
            return " ".join(f"the rubric failed: {scoring.fault}".split())
        scored = whole.model_copy(update=scoring.as_rewards)
        if "correct" not in scored.rewards:
            return "the rubric has no opinion"
        score = outcome_of(scored)
        if not 0 <= score <= 1:
            raise ConfigError(
                f"The rubric scores run {header.id} by {score:g}, which is not in [0, 1].",
                "Scale the reward that decides: the gate compares outcomes from 0 to 1.",
            )
        return score


def _unfit(trajectory: Trajectory) -> str:
    """Reason why a run cannot be scored (empty if it can)."""
    if reason := _machine_fault(trajectory):
        return reason
    if trajectory.stop_reason is StopReason.INTERRUPT:
        return "it waits for an answer of a person"
    return ""


def _machine_fault(trajectory: Trajectory) -> str:
    """Reason why a run says nothing about its agent (empty if it does)."""
    if lost := lost_tool_calls(trajectory):
        return f"a machine failed during the tool {lost[0].name}"
    if trajectory.status is RunStatus.ABORTED:
        return "it was stopped from outside"
    return ""


def _range(end: GatedRun | _WithoutScore) -> tuple[float, float]:
    """Lowest and highest difference that a run can have."""
    if isinstance(end, GatedRun):
        return end.new - end.old, end.new - end.old
    return -end.old, 1 - end.old


def failed_runs(compared: Sequence[GatedRun]) -> dict[str, int]:
    """Error -> number of runs of the new agent that ended by it."""
    ends = (repeat.trajectory for each in compared for repeat in each.repeats)
    return Counter(
        error_of(each) or "no error was recorded"
        for each in ends
        if each is not None and each.status is RunStatus.FAILED
    )


def _task_of(run: RecordedRun) -> tuple[str, str]:
    """Name and prompt of a task. Runs that ask the same question are not independent."""
    task = run.trajectory.task
    if task.id != run.trajectory.thread_id:
        return task.id, task.prompt
    # recorded without a task, which is then named by its thread
    given = task.metadata.get(TASK_INPUTS)
    return json.dumps(given, sort_keys=True, default=str), task.prompt


def _mean_over_tasks(compared: Sequence[GatedRun], score: Callable[[GatedRun], float]) -> float:
    by_task = defaultdict[tuple[str, str], list[float]](list)
    for each in compared:
        by_task[_task_of(each.run)].append(score(each))
    return fmean(map(fmean, by_task.values()))
