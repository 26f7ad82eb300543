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

from hrm_agent.errors import ConfigError, RunError, TaskError
from hrm_agent.prompts import PromptTexts, refuse_unknown_name
from hrm_agent.training.evaluation.compare import Comparison, compare
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.prompts.evolution import Evolution, Places, evolve
from hrm_agent.training.prompts.rollouts import OutOfBudget, PromptRuns
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import Trajectory

__all__ = ["Improvement", "TaskSplits", "improve_prompts", "split_tasks"]


@dataclass(frozen=True, slots=True)
class TaskSplits:
    """Disjoint tasks with their places."""

    train: Places
    """Tasks whose runs the reflection model sees."""
    validation: Places
    """Tasks by which the best texts are chosen."""
    test: Places
    """Held-out tasks."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """Result of a search."""

    start: dict[str, str]
    """Texts at the start, of all prompts that were to be improved."""
    evolution: Evolution
    """Candidates and proposals."""
    comparison: Comparison
    """Held-out tasks with the texts of the start, against those with the best texts."""
    tested: int
    """Number of held-out tasks that were run with the best texts."""
    unjudged: int
    """Number of held-out runs that could not be judged, and count as wrong."""

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
    """Distribute tasks such that no task is in two parts. `learned`: tasks to learn from, in which
    held-out ones may be, since a plain file has no splits. Raises `TaskError` if there are too few.
    """
    test = _distinct(held_out, ())
    others = _distinct(learned, test)
    if len(others) < train + validation:
        raise TaskError(
            f"There are {len(test)} held-out tasks and {len(others)} others, but {train} + "
            f"{validation} others are needed.",
            "Lower --train, --validation or --test.",
        )
    return TaskSplits(
        [*enumerate(others[:train])],
        [*enumerate(others[train : train + validation], train)],
        [*enumerate(test)],
    )


def _distinct(tasks: Iterable[Task], without: Iterable[Task]) -> list[Task]:
    seen = {(task.id, task.prompt) for task in without}
    found = list[Task]()
    for task in tasks:
        if (task.id, task.prompt) not in seen:
            seen.add((task.id, task.prompt))
            found.append(task)
    return found


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
    return Improvement(
        start,
        evolution,
        compare(
            samples_of(a for a, _ in pairs), samples_of(b for _, b in pairs), ("start", "best")
        ),
        len(pairs),
        sum(fault_of(each) is not None for pair in pairs for each in pair),
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
