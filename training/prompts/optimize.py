"""Better prompts of a graph: held-out runs, the search, and the held-out runs again.

    held-out tasks, texts of the start    which prompts the graph sends, and how well it does
    search                                on other tasks (`hrm_agent.training.prompts.evolution`)
    held-out tasks, best texts            paired with the first runs

Held-out tasks take no part in the search: nothing is chosen by them, and no reflection sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hrm_agent.basics.intervals import Estimate, bootstrapped
from hrm_agent.errors import ConfigError, RunError, TaskError
from hrm_agent.prompts import PromptTexts, refuse_unknown_name
from hrm_agent.runtime.episode import HISTORY
from hrm_agent.training.evaluation.compare import Comparison, compare, with_width
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.evaluation.statistics import sign_flip_p
from hrm_agent.training.prompts.evolution import Evolution, Places, evolve
from hrm_agent.training.prompts.rollouts import OutOfBudget, PromptRuns
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.select.roc import reward_of
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import Trajectory, content_hash

__all__ = [
    "HeldOutResult",
    "Improvement",
    "TaskSplits",
    "compare_held_out",
    "improve_prompts",
    "split_tasks",
]

_LEVEL = 0.05
_STEPS = 1000
"""Steps between the lowest and the highest reward, to which differences are rounded for p-values."""
_ROUNDING = 1e-9
"""Difference of means that may be due to rounding."""


@dataclass(frozen=True, slots=True)
class TaskSplits:
    """Tasks with their places. No two of them have the same question."""

    train: Places
    """Tasks whose runs the reflection model sees."""
    validation: Places
    """Tasks by which the best texts are chosen."""
    test: Places
    """Held-out tasks."""
    repeated: int
    """Number of held-out tasks that were left out, since an earlier one has their question."""
    leaked: int
    """Number of other tasks that were left out, since a held-out or an earlier one has their
    question under another id.
    """


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """Held-out tasks with the texts of the start, paired with those with the best texts."""

    tasks: int
    """Number of pairs."""
    before: Estimate
    """Mean reward with the texts of the start, the quantity that the search maximises."""
    after: Estimate
    """Mean reward with the best texts."""
    difference: Estimate
    """Difference of the mean rewards, resampled over pairs."""
    p_value: float
    """Two-sided p-value of the hypothesis that the mean rewards do not differ."""
    rises: tuple[str, ...]
    """Ids of tasks with a higher reward, in order."""
    falls: tuple[str, ...]
    """Ids of tasks with a lower reward, in order."""
    pass_at_1: Comparison
    """Shares of tasks whose outcome counts as right."""
    unjudged: int
    """Number of runs that could not be judged, and count as 0."""

    @property
    def better(self) -> bool:
        """True if the mean reward is higher with the best texts."""
        return self.difference.value > _ROUNDING

    @property
    def certain(self) -> bool:
        """True if the difference is significant at the 5 % level."""
        return self.p_value < _LEVEL

    @property
    def graded(self) -> bool:
        """True if the mean reward is another number than pass@1."""
        shares = (self.pass_at_1.a.pass_at_1.value, self.pass_at_1.b.pass_at_1.value)
        means = (self.before.value, self.after.value)
        return any(abs(m - s) > _ROUNDING for m, s in zip(means, shares, strict=True))


@dataclass(frozen=True, slots=True)
class Improvement:
    """Result of a search."""

    start: dict[str, str]
    """Texts at the start, of all prompts that were to be improved."""
    evolution: Evolution
    """Candidates and proposals."""
    held_out: HeldOutResult
    """Result on the held-out tasks."""

    @property
    def texts(self) -> dict[str, str]:
        """Best texts."""
        return self.evolution.candidates[self.evolution.best].texts

    @property
    def changed(self) -> bool:
        return self.texts != self.start


def split_tasks(
    learned: Sequence[Task], held_out: Sequence[Task], *, train: int, validation: int
) -> TaskSplits:
    """Distribute tasks such that no question is asked twice, in one part or in two. `learned`: tasks
    to learn from, in which held-out ones may be, since a plain file has no splits. Raises
    `TaskError` if there are too few.
    """
    by_question = dict[str, Task]()
    for task in held_out:
        by_question.setdefault(_question(task), task)
    test = [*by_question.values()]
    others = list[Task]()
    leaked = 0
    for task in learned:
        if len(others) == train + validation:
            break
        known = by_question.setdefault(_question(task), task)
        if known is task:
            others.append(task)
        elif known.id != task.id:
            leaked += 1
    if len(others) < train + validation:
        left_out = f" ({leaked} were left out, whose question another one has)" if leaked else ""
        raise TaskError(
            f"There are {len(test)} held-out tasks and {len(others)} others{left_out}, but {train} +"
            f" {validation} others are needed.",
            "Lower --train, --validation or --test.",
        )
    return TaskSplits(
        [*enumerate(others[:train])],
        [*enumerate(others[train:], train)],
        [*enumerate(test)],
        len(held_out) - len(test),
        leaked,
    )


def _question(task: Task) -> str:
    """Digest of what a graph is asked: the prompt with any white space, the input, and the earlier
    turns.
    """
    prompt = " ".join(task.prompt.split())
    return content_hash(prompt, task.inputs, task.metadata.get(HISTORY))


def improve_prompts(
    runs: PromptRuns,
    splits: TaskSplits,
    wanted: Sequence[str],
    loop: asyncio.Runner,
    *,
    minibatch: int,
    check_start: Callable[[dict[str, str]], object],
) -> Improvement:
    """Search for better texts. `wanted`: prompts to improve (empty: all that the held-out runs
    send). `check_start`: function that raises an error if an interrupted search began with other
    texts.

    Raises `ConfigError` if a prompt is not found in the requests, and `RunError` if the budget does
    not suffice for the held-out tasks and one candidate.
    """
    try:
        first = _complete(loop.run(runs.run(splits.test, {}, "test")), runs, "held-out")
    except OutOfBudget as error:
        raise _too_small(runs, "held-out") from error
    runs.keep_back(splits.test)
    runs.source = _sent(first, runs.base, wanted)
    start = _start(len(first), runs, wanted)
    check_start(start)

    def run_all(tasks: Places, texts: Mapping[str, str]) -> list[Trajectory]:
        # gepa fills the last minibatch of a pass with tasks that it has already
        distinct = dict(tasks)
        found = loop.run(runs.run([*distinct.items()], texts, "learn"))
        by_place = {place: run for place, run in zip(distinct, found, strict=True) if run}
        if len(by_place) < len(distinct):
            raise OutOfBudget
        return [by_place[place] for place, _ in tasks]

    evolution = evolve(
        start,
        splits.train,
        splits.validation,
        run_all,
        lambda question: loop.run(runs.reflect(question)),
        minibatch=minibatch,
        seed=runs.seed,
    )
    if not evolution.candidates:
        raise _too_small(runs, "validation")
    best = evolution.candidates[evolution.best].texts
    try:
        last = loop.run(runs.run(splits.test, best, "test"))
    except OutOfBudget as error:
        raise _too_small(runs, "held-out") from error
    pairs = [(a, b) for a, b in zip(first, last, strict=True) if b is not None]
    if not pairs:
        raise _too_small(runs, "held-out")
    return Improvement(start, evolution, compare_held_out(pairs))


def compare_held_out(pairs: Sequence[tuple[Trajectory, Trajectory]]) -> HeldOutResult:
    """Compare pairs of runs of the same tasks, before and after."""
    rewards = [(reward_of(a), reward_of(b)) for a, b in pairs]
    # rewards of any scale are mapped to [0, 1], for intervals of rewards that are all equal
    low = min(0.0, *(min(pair) for pair in rewards))
    span = max(1.0, *(max(pair) for pair in rewards)) - low
    columns = [[(value - low) / span for value in side] for side in zip(*rewards, strict=True)]
    gains = [(b - a) / span for a, b in rewards]
    before, after = (
        Estimate(*(low + span * each for each in (found.value, found.low, found.high)))
        for found in bootstrapped(columns, seed=0, resamples=10_000)
    )
    (gain,) = bootstrapped([gains], seed=0, resamples=10_000, shares=False)
    if max(gains) - min(gains) < _ROUNDING:
        gain = Estimate(gain.value, gain.value, gain.value)
    gain = with_width(gain, len(pairs))
    ids = [a.task.id for a, _ in pairs]
    return HeldOutResult(
        tasks=len(pairs),
        before=before,
        after=after,
        difference=Estimate(span * gain.value, span * gain.low, span * gain.high),
        p_value=sign_flip_p([Fraction(round(each * _STEPS), _STEPS) for each in gains]),
        rises=tuple(name for name, each in zip(ids, gains, strict=True) if each > _ROUNDING),
        falls=tuple(name for name, each in zip(ids, gains, strict=True) if each < -_ROUNDING),
        pass_at_1=compare(
            samples_of(a for a, _ in pairs), samples_of(b for _, b in pairs), ("start", "best")
        ),
        unjudged=sum(fault_of(each) is not None for pair in pairs for each in pair),
    )


def _complete(found: Sequence[Trajectory | None], runs: PromptRuns, which: str) -> list[Trajectory]:
    done = [each for each in found if each is not None]
    if len(done) < len(found):
        raise _too_small(runs, which)
    faults = [fault for each in done if (fault := fault_of(each)) is not None]
    if len(faults) == len(done):
        raise RunError(
            f"No run of the {which} tasks could be judged: {faults[0][1]}.",
            "Repair the cause, and repeat the command with another --out.",
        )
    return done


def _too_small(runs: PromptRuns, which: str) -> RunError:
    return RunError(
        f"The budget of {runs.budget} does not suffice for the {which} tasks.",
        "Name a larger --budget, or fewer tasks: --test, --validation.",
    )


def _sent(
    runs: Iterable[Trajectory], base: Mapping[str, str], wanted: Sequence[str]
) -> dict[str, str]:
    """Prompts that the runs have sent, with their texts in the source. `wanted`: names, constants
    of modules among them.
    """
    texts = PromptTexts.unchanged(base, wanted)
    sent = dict[str, str]()
    for run in runs:
        for call in run.own_calls:
            for each in texts.found_in(call.request or ()):
                if sent.setdefault(each.name, each.default) != each.default:
                    raise ConfigError(
                        f"The graph has two prompts called {each.name!r}.", "Rename one of them."
                    )
    return sent


def _start(count: int, runs: PromptRuns, wanted: Sequence[str]) -> dict[str, str]:
    """Texts at the start of the prompts to improve. `count`: number of runs that were looked at."""
    for name in wanted:
        refuse_unknown_name(name)
        if name not in runs.source:
            raise ConfigError(
                f"No request of {count} runs contains the prompt {name!r}: either its role was not"
                " asked, or the graph changes the text before it sends it.",
                f"Sent were: {', '.join(sorted(runs.source)) or 'none'}. Leave it out of"
                " --prompts-of.",
            )
    names = [*wanted] or sorted(runs.source)
    if not names:
        raise ConfigError(
            f"No request of {count} runs contains a named prompt.",
            'Name the texts in the graph, Prompt("solver", "You are ..."), or name constants of its'
            " modules: --prompts-of package.module:SYSTEM.",
        )
    return {name: runs.base.get(name) or runs.source[name] for name in names}
