"""Recorded runs of a graph with given prompts, and recorded questions to the reflection model.

The thread of a run is named after the texts that differ from the source and the task, so that equal
texts are run once on a task. The threads of reflections are numbered. A repeated search asks the
same in the same order. So everything that an interrupted search has finished is read back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hrm_agent.errors import ConfigError, HrmError, RunError
from hrm_agent.prompts import PROMPTS
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.training.evaluation.budget import Meter, RequestBudget, read_budget
from hrm_agent.training.evaluation.metered import MeteredRecording, Stuck, run_until_refused
from hrm_agent.training.rollout.eligibility import needs_second_attempt
from hrm_agent.training.rollout.rollout import group_episodes, second_attempt
from hrm_agent.training.rollout.scoring import Score
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import TaskRef, Trajectory, content_hash, derive_seed

__all__ = ["OutOfBudget", "PromptRuns", "SearchBudget", "read_search_budget"]

_REFLECTION = "hrm_agent.graphs.single_call:graph"
_MARGIN = 1.2
"""Ratio by which the last evaluation may cost more than the first."""


class OutOfBudget(BaseException):
    """The budget does not suffice for the next step. Not an `Exception`, since gepa goes on after
    errors of a reflection.
    """


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Limit of a search."""

    rollouts: int | None
    """Maximum number of runs and reflections (None: `requests` limits the search)."""
    requests: RequestBudget | None
    """Limit of tokens or money of all requests."""

    def __str__(self) -> str:
        return f"{self.rollouts:,} rollouts" if self.rollouts is not None else str(self.requests)


def read_search_budget(text: str) -> SearchBudget:
    """Parse `200rollouts`, `200000tokens` or `2.50` (money). Raises `ConfigError`."""
    match = re.fullmatch(r"([0-9]{1,9}) ?rollouts", text.strip())
    if match is not None and int(match[1]) > 0:
        return SearchBudget(int(match[1]), None)
    try:
        return SearchBudget(None, read_budget(text))
    except ConfigError as error:
        raise ConfigError(
            f"--budget {text!r} is not an amount.",
            "Write a number of runs, as --budget 200rollouts, of tokens, as --budget 200000tokens,"
            " or an amount of money, as --budget 2.50.",
        ) from error


@dataclass(slots=True)
class PromptRuns:
    """Runs and reflections of one search."""

    runner: EpisodeRunner
    """Runner of the graph."""
    reflecting: EpisodeRunner
    """Runner of the reflection model, with the same store."""
    score: Score
    """Function that scores runs by the rubric."""
    meter: Meter
    """Meter of all requests."""
    budget: SearchBudget
    """Limit of the search."""
    run_id: str
    """Id of the search."""
    graph: str
    """Name of the graph."""
    seed: int
    """Base of all seeds."""
    context: Mapping[str, Any]
    """Run context of the graph."""
    options: Mapping[str, Any]
    """Options of the graph in the tasks' metadata."""
    verified: bool
    """True if verifiers of the tasks score the runs, and not a rubric."""
    concurrency: int
    """Maximum number of runs at a time."""
    base: Mapping[str, str]
    """Texts that replace those of the source from the start."""
    on_done: Callable[[], object]
    """Callback for each run and reflection that has ended."""
    source: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts of the source, as far as they are known. They are left out of the runs' options."""
    kept_back: float = 0.0
    """Part of the budget for the evaluation at the end, in the budget's unit."""
    _used: set[str] = field(default_factory=set[str])
    """Threads of this search. A search that is repeated uses the same ones."""
    _counted: set[str] = field(default_factory=set[str])
    _reflections: int = 0

    @property
    def rollouts(self) -> int:
        """Number of runs and reflections, second attempts included."""
        return len(self._used)

    @property
    def reflections(self) -> int:
        """Number of reflections."""
        return self._reflections

    @property
    def spent(self) -> float:
        """Used part of the budget, in its unit."""
        if self.budget.requests is None:
            return len(self._used)
        total = self.meter.total
        return total.tokens if self.budget.requests.tokens else total.cost

    @property
    def _limit(self) -> float:
        requests = self.budget.requests
        return float(requests.amount if requests is not None else self.budget.rollouts or 0)

    def keep_back(self, tasks: Sequence[tuple[int, Task]]) -> None:
        """Keep a part of the budget for another evaluation on `tasks`, which were just run."""
        if self.budget.requests is None:
            self.kept_back = float(len(tasks))
            return
        journal = self.runner.store.journal
        asked = self.meter.asked(
            call.id
            for episode in self._episodes(tasks, {}, "test")
            for call in journal.trajectory(episode.trajectory_id).own_calls
        )
        self.kept_back = _MARGIN * (asked.tokens if self.budget.requests.tokens else asked.cost)
        self.meter.kept_back = self.kept_back

    async def run(
        self, tasks: Sequence[tuple[int, Task]], texts: Mapping[str, str], purpose: str
    ) -> list[Trajectory | None]:
        """Scored runs of tasks, which are given with their places, in order. None for a run that the
        budget did not suffice for.

        `purpose`: `learn` for tasks to learn from, `test` for held-out ones. Raises `OutOfBudget`
        before anything is run if the rest of the budget is kept back.
        """
        episodes = self._episodes(tasks, texts, purpose)
        self._refuse_over(episodes, purpose)
        gate = asyncio.Semaphore(self.concurrency)
        errors = list[HrmError]()

        async def attempt(episode: Episode) -> Trajectory | None:
            try:
                return await self._ended(self.runner, episode)
            except HrmError as error:
                # requests under way in other runs are answered and recorded, so none is asked twice
                self.meter.close()
                errors.append(error)
                return None

        async def run(episode: Episode) -> tuple[Trajectory, ...]:
            async with gate:
                if errors:
                    return ()
                first = await attempt(episode)
                last = first
                if first is not None and needs_second_attempt(first):
                    again = second_attempt(episode)
                    if again.thread_id in self._used or self._has_room(1):
                        self._used.add(again.thread_id)
                        last = await attempt(again)
            if first is None or last is None:
                return ()
            self._count(episode)
            return (last,) if last is first else (first, last)

        ended = await asyncio.gather(*map(run, episodes))
        if errors:
            raise errors[0]
        scored = await self.score([each for each in ended if each])
        if self.budget.requests is not None:
            self._refuse_judges([each[-1] for each in scored])
        last = iter(each[-1] for each in scored)
        return [next(last) if each else None for each in ended]

    def _refuse_judges(self, runs: Sequence[Trajectory]) -> None:
        """Raise `RunError` if a reward function reports requests to a judge, which no budget of
        tokens or money counts. Judges that a rubric names are refused before the search begins.
        """
        for run in runs:
            for scoring in self.runner.store.scorings.of(run.id):
                for score in scoring.scores:
                    if score.judge_calls:
                        raise RunError(
                            f"The reward {score.name!r} asks {score.judge_calls[0].model}, and"
                            f" requests of rewards are not counted in --budget {self.budget}.",
                            "Limit the runs, as --budget 200rollouts, in another folder: --out.",
                        )

    def _episodes(
        self, tasks: Sequence[tuple[int, Task]], texts: Mapping[str, str], purpose: str
    ) -> list[Episode]:
        changed = {
            name: text
            for name, text in sorted({**self.base, **texts}.items())
            if name in self.base or text != self.source.get(name)
        }
        stage = f"{purpose}-{content_hash(changed)[:12]}"
        options = {**self.options, PROMPTS: changed}
        if not changed:
            del options[PROMPTS]
        return [
            episode
            for place, task in tasks
            for episode in group_episodes(
                [task],
                1,
                run_id=self.run_id,
                stage=stage,
                seed=self.seed,
                graph=self.graph,
                context=self.context,
                verified=self.verified,
                options=options,
                first=place,
            )
        ]

    def _has_room(self, more: int) -> bool:
        limit = self.budget.rollouts
        return limit is None or len(self._used) + more + self.kept_back <= limit

    def _refuse_over(self, episodes: Sequence[Episode], purpose: str) -> None:
        """Count runs, and raise `OutOfBudget` if they do not fit."""
        journal = self.runner.store.journal
        new = [each for each in episodes if each.thread_id not in self._used]
        if purpose == "test":
            self.kept_back = self.meter.kept_back = 0.0
            self.meter.reopen()  # a refused request was of the search
        if not self._has_room(len(new)):
            raise OutOfBudget
        missing = [each for each in new if not journal.is_over(each.trajectory_id)]
        if missing and self.budget.requests is not None and self._used:
            mean = self.spent / len(self._used)
            if self.spent + self.kept_back + mean * len(missing) > self._limit:
                raise OutOfBudget
        self._used |= {each.thread_id for each in new}

    def _count(self, episode: Episode) -> None:
        """Report an episode that has ended, once."""
        if episode.thread_id not in self._counted:
            self._counted.add(episode.thread_id)
            self.on_done()

    async def _ended(self, runner: EpisodeRunner, episode: Episode) -> Trajectory | None:
        """Run, resume or read back an episode (None if the budget does not suffice). A run that
        could not go on stays on record as it is, and is resumed with a larger budget.
        """
        journal = runner.store.journal
        if journal.is_over(episode.trajectory_id):
            return journal.trajectory(episode.trajectory_id)
        if self.meter.closed:
            return None
        stuck = Stuck(asyncio.get_running_loop())
        record = partial(MeteredRecording, meter=self.meter, stuck=stuck)
        return await run_until_refused(replace(runner, record=record), episode, stuck)

    async def reflect(self, question: str) -> tuple[str, str]:
        """Answer of the reflection model, and the id of its trajectory. The text is empty if it did
        not answer.
        """
        number = self._reflections
        thread = f"{self.run_id}/reflection/{number}/0"
        task = TaskRef(id=f"reflection-{number}", family="reflection", prompt=question)
        episode = Episode(
            task,
            thread,
            graph=_REFLECTION,
            run_id=self.run_id,
            seed=derive_seed(self.seed, "reflection", number),
        )
        known = self.runner.store.journal.headers("thread_id = ?", (thread,))
        if known and known[0].task.prompt != question:
            raise RunError(
                f"Reflection {number} of the search is on record with another question: its runs,"
                " or the program, have changed since it began.",
                "Begin anew in another folder: --out.",
            )
        self._refuse_over([episode], "learn")
        self._reflections += 1
        answered = await self._ended(self.reflecting, episode)
        if answered is None:
            raise OutOfBudget
        self._count(episode)
        return answered.answer or "", answered.id
