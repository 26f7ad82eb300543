"""Task families by name, and mixtures of them.

| spec | tasks |
|---|---|
| `word_problems` | word problems of ten templates, without end |
| `jsonl:FILE?question=KEY&answer=KEY&id=KEY` | the rows of a file; GSM8K's are supported |
| `aime:FILE?...` | the rows of a file, with answers from 0 to 999 |
| `gsm8k:FILE`, `math500:FILE`, `gpqa:FILE`, `ifeval:FILE`, `bfcl:FILE` | an evaluation as published |
| `csv:FILE?...`, `parquet:FILE?...` | the rows of a table |
| `FILE.jsonl?...`, `FILE.csv?...`, `FILE.parquet?...` | the rows of a file, read by its ending |
| `hf:NAME_OR_FOLDER?config=NAME&split=NAME&...` | the rows of a data set of Hugging Face |
| `arc_agi` | ARC-AGI-1: its training tasks, or its evaluation tasks, each test grid once, as published |
| `reasoning_gym:NAME?parameter=value` | a generator of reasoning-gym |
| `verifiers:NAME?argument=value` | an environment of the library verifiers, with its rubric or rewards |
| `openenv:URL?...`, `openenv:PACKAGE?...` | episodes of an environment of OpenEnv |
| `store:RUN?rubric=NAME` | the prompts of the runs of a store (`hrm_agent.training.tasks.stored`) |
| `dataset:NAME@VERSION` | the examples of a data set (`hrm_agent.training.tasks.dataset`) |
| `mix:WEIGHT*SPEC,WEIGHT*SPEC` | a mixture of families |
| `package.module:attribute?...`, `./file.py:attribute?...` | the tasks in a user's code |
| `NAME?...` | the tasks that an installed package has registered as NAME |

The tasks of a family depend only on the rest of the spec, split, seed and count, so that a resumed
run and another rank see the same tasks. The text before the colon is a family if one has this name,
else a module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

from hrm_agent.errors import HrmError, TaskError, nearest
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.dataset import load_dataset
from hrm_agent.training.tasks.environments import EpisodeReturn, load_openenv, played_source
from hrm_agent.training.tasks.items import DRAWN
from hrm_agent.training.tasks.mixture import MixturePart, mixed, read_mixture
from hrm_agent.training.tasks.own import load_own
from hrm_agent.training.tasks.packages import find_registered, load_registered, registered_names
from hrm_agent.training.tasks.published.bfcl import RunVerifier, bfcl_run_verifier, load_bfcl
from hrm_agent.training.tasks.published.ifeval import ifeval_verifier, load_ifeval
from hrm_agent.training.tasks.published.questions import load_gpqa, load_gsm8k, load_math500
from hrm_agent.training.tasks.reasoning_gym import load_arc_agi, load_reasoning_gym
from hrm_agent.training.tasks.sources import SOURCES_FILE, read_sources, tasks_folder
from hrm_agent.training.tasks.spec import FAMILY_NAMES, MODULE, Loader, kind_of
from hrm_agent.training.tasks.stored import load_stored, original_of
from hrm_agent.training.tasks.tables import TABLES, load_table
from hrm_agent.training.tasks.verifiers_environments import load_verifiers
from hrm_agent.training.tasks.verify import (
    contest_verifier,
    exact_verifier,
    grid_verifier,
    letter_verifier,
    math_verifier,
    number_verifier,
)
from hrm_agent.trajectory import TaskRef

__all__ = [
    "FAMILIES",
    "families_of",
    "load_tasks",
    "refuse_unscored",
    "run_verifier_of",
    "verifier_of",
]

_WORD_PROBLEM_SPLITS: dict[str, Literal["train", "eval"]] = {"train": "train", "eval": "eval"}


def _word_problems(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    from hrm_agent.training.tasks.word_problems import word_problems

    if spec:
        raise TaskError(
            f"word_problems takes no parameters, {spec!r} was given.", "Write: word_problems"
        )
    if count is None:
        raise TaskError("word_problems is endless.", "Say how many problems are wanted: --count N.")
    if split not in _WORD_PROBLEM_SPLITS:
        raise TaskError(
            f"word_problems has no split {split!r}.", f"Splits: {', '.join(_WORD_PROBLEM_SPLITS)}."
        )
    return word_problems(_WORD_PROBLEM_SPLITS[split], seed, count)


def _mix(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    def load(part: MixturePart, wanted: int) -> list[Task]:
        return load_tasks(part.spec, split=split, seed=seed, count=wanted, folder=folder)

    return mixed(read_mixture(spec, FAMILIES), load, seed=seed, split=split, count=count)


FAMILIES: dict[str, Loader] = {
    **{family: partial(load_table, family) for family in TABLES},
    "arc_agi": load_arc_agi,
    "bfcl": load_bfcl,
    "dataset": lambda spec, **options: load_dataset(
        spec,
        partial(verifier_of, load=lru_cache(maxsize=8)(load_tasks)),
        run_verifier_of,
        families_of,
        **options,
    ),
    "gpqa": load_gpqa,
    "gsm8k": load_gsm8k,
    "ifeval": load_ifeval,
    "math500": load_math500,
    "mix": _mix,
    "openenv": load_openenv,
    "reasoning_gym": load_reasoning_gym,
    # original tasks are loaded once for all tasks of a list
    "store": lambda spec, **options: load_stored(
        spec, partial(verifier_of, load=lru_cache(maxsize=8)(load_tasks)), **options
    ),
    "verifiers": load_verifiers,
    "word_problems": _word_problems,
}
"""Family, which is the part of a spec before the colon -> loader of its tasks."""

_BY_ANSWER: dict[str, Callable[[str], Verifier]] = {
    **dict.fromkeys(TABLES, exact_verifier),
    "aime": contest_verifier,
    "arc_agi": grid_verifier,
    "gpqa": letter_verifier,
    "gsm8k": number_verifier,
    "math500": math_verifier,
    "word_problems": exact_verifier,
}
"""Family -> function that makes a verifier from the reference answer, for families that need
nothing else.
"""


def load_tasks(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` tasks of `spec` (None: all tasks of a finite family).

    `folder`: folder in which relative names of files and modules are resolved (None: the working
    directory).

    Raises `TaskError` for an unknown family or a malformed file.
    """
    if count is not None and count < 0:
        raise TaskError(f"{count} tasks were asked for.", "Ask for 0 or more.")
    kind, rest = kind_of(spec)
    name = spec.partition("?")[0]
    if kind in FAMILIES:
        load = FAMILIES[kind]
    elif kind == MODULE:
        load = partial(load_own, known=FAMILY_NAMES)
    elif find_registered(name) is not None:
        load = load_registered
    else:
        registered = registered_names()
        told = [f"Families: {', '.join(FAMILY_NAMES)}."]
        told += [f"Of installed packages: {', '.join(registered)}."] if registered else []
        hint = (
            "Name your own as package.module:attribute, or a file that ends in .jsonl, .csv or"
            " .parquet."
        )
        near = nearest(name.partition(":")[0], [*FAMILY_NAMES, *registered])
        raise TaskError(
            f"There is no task family {name.partition(':')[0]!r}.",
            " ".join([near, *told, hint]).strip(),
        )
    return load(rest, split=split, seed=seed, count=count, folder=folder)


def refuse_unscored(tasks: Sequence[Task], spec: str) -> None:
    """Raise `TaskError` if a task has no verifier, since it cannot be scored."""
    without = [task for task in tasks if task.verify is None and task.verify_run is None]
    if not without:
        return
    first = without[0]
    answered = first.answer is not None
    lacks = "no verifier" if answered else "neither a reference answer nor a verifier"
    hint = "Give them an answer or a verifier, or name rewards: --rewards module:attribute."
    if (kind := kind_of(first.family)[0]) in ("dataset", "store"):
        original = original_of(first.ref())
        hint = "Name rewards: --rewards module:attribute."
        if kind == "dataset" and DRAWN in original.metadata:
            said = "Verifiers of your own tasks are in the code of their run"
            hint = (
                f"{said}: {first.family.partition('?')[0]}?run=FOLDER. Or name rewards: --rewards"
            )
            hint += " module:attribute."
        elif answered:
            lacks += f", since the family {original.family[:80]!r} has none for their answers"
    raise TaskError(
        f"{len(without)} of {len(tasks)} tasks of {spec!r} have {lacks} (the first: {first.id!r}):"
        " there is no reward to evaluate or train by.",
        hint,
    )


def families_of(run: Path) -> tuple[str, ...]:
    """Families of the tasks of the run in a folder. Raises `TaskError` if it has none on record."""
    kept = read_sources(run)
    if kept is None:
        raise TaskError(
            f"{run} is not the folder of a run with tasks: there is no {SOURCES_FILE} in it.",
            "Name the folder that was --out of the run.",
        )
    return kept.specs


def verifier_of(
    task: TaskRef, run: Path | None = None, *, load: Callable[..., list[Task]] = load_tasks
) -> Verifier | None:
    """Verifier of a recorded task (None if its family has no verifier, or can no longer make it).

    `run`: folder of the task's run. The verifier of a user's task is in the user's code. This code
    is run again only if `run` was begun with it, since a record from elsewhere may name any code.
    Verifiers of whole runs are not returned (`run_verifier_of`). `load`: `load_tasks`, or a cached
    version.
    """
    name, _ = kind_of(task.family)
    if played_source(task) is not None:
        return None
    if name in ("dataset", "store") and (original := original_of(task)) is not task:
        return verifier_of(original, load=load)
    if name == "reasoning_gym":
        # scoring needs the entry, so the generator makes it again
        _, split, seed, index = task.id.rsplit(":", 3)
        try:
            tasks = load_tasks(task.family, split=split, seed=int(seed), count=int(index) + 1)
        except HrmError:
            return None
        return tasks[-1].verify if tasks[-1].prompt == task.prompt else None
    if name == "ifeval":
        return ifeval_verifier(task.metadata)
    if DRAWN in task.metadata:
        return _drawn_again(task, run, load)
    return _BY_ANSWER[name](task.answer) if name in _BY_ANSWER and task.answer is not None else None


def run_verifier_of(task: TaskRef) -> RunVerifier | None:
    """Verifier of whole runs of a recorded task (None if its family verifies the final text, or if
    it cannot be made from the record).
    """
    if (source := played_source(task)) is not None:
        return EpisodeReturn(source)
    task = original_of(task)
    return bfcl_run_verifier(task.metadata) if kind_of(task.family)[0] == "bfcl" else None


def _drawn_again(
    task: TaskRef, run: Path | None, load: Callable[..., list[Task]]
) -> Verifier | None:
    drawn = task.metadata[DRAWN]
    try:
        kept = None if run is None else read_sources(run)
        if run is None or kept is None or task.family not in kept.specs:
            return None
        place = int(drawn["place"])
        split = str(drawn.get("split", "train"))
        seed = int(drawn.get("seed", 0))
        count = drawn.get("count", place + 1)
        tasks = load(
            task.family, split=split, seed=seed, count=count, folder=tasks_folder(run).absolute()
        )
    # a record may come from anyone, so its values may be invalid
    except (HrmError, AttributeError, KeyError, TypeError, ValueError):
        return None
    same = place < len(tasks) and (tasks[place].id, tasks[place].prompt) == (task.id, task.prompt)
    return tasks[place].verify if same and tasks[place].verify_run is None else None
