"""Task families by name, and mixtures of them.

| spec | tasks |
|---|---|
| `word_problems` | word problems of ten templates, without end |
| `jsonl:FILE?question=KEY&answer=KEY&id=KEY` | the rows of a file; GSM8K's are understood |
| `aime:FILE?...` | likewise, with answers from 0 to 999 |
| `arc_agi` | ARC-AGI-1: its training tasks, or its evaluation tasks, each test grid once, as published |
| `reasoning_gym:NAME?parameter=value` | a generator of reasoning-gym |
| `mix:WEIGHT*SPEC,WEIGHT*SPEC` | some of each |

A family is a function of (rest of the spec, split, seed, count), and of nothing else: a resumed run and another
rank see the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hrm_agent.errors import HrmError, TaskError, nearest
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.jsonl import load_aime, load_jsonl
from hrm_agent.training.tasks.mixture import MixturePart, mixed, read_mixture
from hrm_agent.training.tasks.reasoning_gym import load_arc_agi, load_reasoning_gym
from hrm_agent.training.tasks.verify import contest_verifier, exact_verifier, grid_verifier
from hrm_agent.trajectory import TaskRef

__all__ = ["FAMILIES", "load_tasks", "verifier_of"]

_WORD_PROBLEM_SPLITS: dict[str, Literal["train", "eval"]] = {"train": "train", "eval": "eval"}


def _word_problems(spec: str, *, split: str, seed: int, count: int | None = None) -> list[Task]:
    from hrm_agent.training.tasks.word_problems import word_problems

    if spec:
        raise TaskError(f"word_problems takes no parameters, {spec!r} was given.", "Write: word_problems")
    if count is None:
        raise TaskError("word_problems is endless.", "Say how many problems are wanted: --count N.")
    if split not in _WORD_PROBLEM_SPLITS:
        raise TaskError(f"word_problems has no split {split!r}.", f"Splits: {', '.join(_WORD_PROBLEM_SPLITS)}.")
    return word_problems(_WORD_PROBLEM_SPLITS[split], seed, count)


def _mix(spec: str, *, split: str, seed: int, count: int | None = None) -> list[Task]:
    def load(part: MixturePart, wanted: int) -> list[Task]:
        return load_tasks(part.spec, split=split, seed=seed, count=wanted)

    return mixed(read_mixture(spec, FAMILIES), load, seed=seed, split=split, count=count)


FAMILIES: dict[str, Callable[..., list[Task]]] = {
    "aime": load_aime,
    "arc_agi": load_arc_agi,
    "jsonl": load_jsonl,
    "mix": _mix,
    "reasoning_gym": load_reasoning_gym,
    "word_problems": _word_problems,
}
"""By the part of the spec before the colon."""

_BY_ANSWER: dict[str, Callable[[str], Verifier]] = {
    "aime": contest_verifier,
    "arc_agi": grid_verifier,
    "jsonl": exact_verifier,
    "word_problems": exact_verifier,
}
"""Families whose verifier is a function of the reference answer."""


def load_tasks(spec: str, *, split: str, seed: int, count: int | None = None) -> list[Task]:
    """`count` tasks of `spec`. A finite family gives no more than it has, and all of them for None.

    Raises `TaskError` for an unknown family or a malformed file.
    """
    name, _, rest = spec.partition(":")
    family = FAMILIES.get(name)
    if family is None:
        hint = f"{nearest(name, FAMILIES)} Families: {', '.join(sorted(FAMILIES))}.".strip()
        raise TaskError(f"There is no task family {name!r}.", hint)
    if count is not None and count < 0:
        raise TaskError(f"{count} tasks were asked for.", "Ask for 0 or more.")
    return family(rest, split=split, seed=seed, count=count)


def verifier_of(task: TaskRef) -> Verifier | None:
    """The verifier of a task on record; None where its family has none, or can no longer be asked for it."""
    name = task.family.partition(":")[0]
    if name == "reasoning_gym":
        return _from_its_generator(task)
    return _BY_ANSWER[name](task.answer) if name in _BY_ANSWER and task.answer is not None else None


def _from_its_generator(task: TaskRef) -> Verifier | None:
    """reasoning-gym scores an answer with what it generated: it is generated again."""
    _, split, seed, index = task.id.rsplit(":", 3)
    try:
        tasks = load_tasks(task.family, split=split, seed=int(seed), count=int(index) + 1)
    except HrmError:
        return None
    return tasks[-1].verify if tasks[-1].prompt == task.prompt else None
