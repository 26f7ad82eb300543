"""Tasks of a data set: `dataset:NAME@2`, `dataset:NAME` for the newest version.

| parameter | |
|---|---|
| `split=all` | all examples, in place of the split that is asked for |
| `folder=PATH` | folder of data sets [`datasets`] |
| `run=FOLDER` | run whose tasks' own code verifies examples of a user's list |

An example is verified as in the family of its recorded task. The file of a data set may come from
anyone, so it names no code to run: verifiers in a user's code need `run`, which the user names. The
order is a permutation drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from hrm_agent.errors import HrmError, TaskError, nearest
from hrm_agent.training.datasets import (
    FOLDER,
    Dataset,
    DatasetExample,
    ExampleSource,
    Version,
    file_of_version,
    make_example,
    read_version,
)
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.items import DRAWN
from hrm_agent.training.tasks.mixture import read_mixture
from hrm_agent.training.tasks.spec import FAMILY_NAMES, kind_of
from hrm_agent.training.tasks.stored import original_of, with_origin
from hrm_agent.trajectory import RunStatus, TaskRef, Trajectory, derive_seed

__all__ = ["evaluated_by", "example_of", "load_dataset", "version_of_spec", "with_versions"]

_FAMILY = "dataset"
_PARAMETERS = ("folder", "run", "split")
_MOST_DRAWN = 100_000
"""Maximum index of a generated task that is made again for its verifier."""


def example_of(trajectory: Trajectory, *, answers: bool = False) -> DatasetExample | None:
    """Example of a run's task (None if the run has no task).

    `answers`: True to take the answer of a completed run as the reference answer of a task without
    one. Of a conversation, the first turn is taken.
    """
    task = original_of(trajectory.task)
    if not task.prompt.strip() and not task.metadata.get("inputs"):
        return None
    answer = task.answer
    first = trajectory.turns[0].before if trajectory.turns else trajectory
    if answer is None and answers and first.status is RunStatus.COMPLETED:
        answer = first.answer
    trace: Any = task.metadata.get("trace")
    named: Any = cast("dict[str, Any]", trace).get("id") if isinstance(trace, dict) else None
    return make_example(
        family=task.family,
        prompt=task.prompt,
        answer=answer,
        metadata=task.metadata,
        task=task.id,
        source=ExampleSource(
            run=trajectory.run_id,
            trajectory=trajectory.id,
            trace=named if isinstance(named, str) else "",
        ),
    )


def load_dataset(
    spec: str,
    verifier_of: Callable[[TaskRef, Path | None], Verifier | None],
    run_verifier_of: Callable[[TaskRef], Any],
    families_of: Callable[[Path], Collection[str]],
    *,
    split: str,
    seed: int,
    count: int | None = None,
    folder: Path | None = None,
) -> list[Task]:
    """Load at most `count` tasks (None: all) of `NAME@2?query`. Raises `TaskError`.

    `verifier_of`: function (recorded task, folder of its run or None) -> verifier.
    `run_verifier_of`: the same for verifiers of whole runs. `families_of`: function (folder of a
    run) -> families of its tasks. `folder`: folder in which relative paths are resolved (None: the
    working directory).
    """
    given = _parameters(spec)
    found = read_version(version_of_spec(spec, folder))
    wanted = given.get("split", split)
    chosen = [
        each for each in found.examples if wanted == "all" or each.split(found.eval_share) == wanted
    ]
    if not chosen:
        raise _empty(found, wanted)
    query = spec.partition("?")[2]
    family = f"{_FAMILY}:{found.version.reference}" + (f"?{query}" if query else "")
    run = None
    if "run" in given:
        run = Path(folder or "", Path(given["run"]).expanduser())
        _refuse_foreign(found, families_of(run), given["run"])
    random.Random(derive_seed(seed, _FAMILY)).shuffle(chosen)
    tasks: list[Task] = []
    for example in chosen[:count]:
        ref = _ref_of(example)
        verify, verify_run = _verifiers(ref, run, verifier_of, run_verifier_of)
        tasks.append(
            Task(
                id=example.id[:16],
                family=family,
                prompt=example.prompt,
                answer=example.answer,
                metadata=with_origin(ref),
                verify=verify,
                verify_run=verify_run,
            )
        )
    return tasks


def version_of_spec(spec: str, folder: Path | None) -> Version:
    """Version that `NAME@2?query` names (without a number: the newest). Raises `TaskError`."""
    place = Path(_parameters(spec).get("folder", FOLDER)).expanduser()
    return file_of_version(Path(folder or "", place), spec.partition("?")[0])


def with_versions(spec: str, began: Iterable[str], folder: Path | None = None) -> str:
    """Spec of `--tasks` in which each data set has a version, so that a resumed run has the same
    examples.

    `began`: specs with which the run began, whose versions are preferred to the newest ones.
    """
    kind, rest = kind_of(spec)
    if kind == "mix" and f"{_FAMILY}:" in rest:
        parts = read_mixture(rest, FAMILY_NAMES)
        fixed = [with_versions(part.spec, began, folder) for part in parts]
        if fixed == [part.spec for part in parts]:
            return spec
        weights = [f"{part.weight:.9f}".rstrip("0").rstrip(".") for part in parts]
        return f"mix:{','.join(f'{a}*{b}' for a, b in zip(weights, fixed, strict=True))}"
    name, _, query = rest.partition("?")
    if kind != _FAMILY or "@" in name:
        return spec
    tail = f"?{query}" if query else ""
    for known in began:
        known_kind, known_rest = kind_of(known)
        reference, _, known_query = known_rest.partition("?")
        if (known_kind, known_query) == (kind, query) and reference.partition("@")[0] == name:
            return known
    return f"{_FAMILY}:{version_of_spec(rest, folder).reference}{tail}"


def _parameters(spec: str) -> dict[str, str]:
    given = dict(parse_qsl(spec.partition("?")[2], keep_blank_values=True))
    for name in given:
        if name not in _PARAMETERS:
            hint = f"{nearest(name, _PARAMETERS)} Known: {', '.join(_PARAMETERS)}.".strip()
            raise TaskError(f"dataset: has no parameter {name[:80]!r}.", hint)
    if given.get("split", "all") not in ("all", "train", "eval"):
        raise TaskError(
            f"dataset: has no split {given['split'][:80]!r}.", "Splits: train, eval, all."
        )
    return given


def _empty(found: Dataset, split: str) -> TaskError:
    counts = ", ".join(f"{count} {name}" for name, count in found.splits.items())
    name = found.version.reference
    return TaskError(
        f"The data set {name} has no example in the split {split[:80]!r} ({counts}).",
        f"`--tasks 'dataset:{name}?split=all'` takes all examples.",
    )


def _refuse_foreign(found: Dataset, families: Collection[str], run: str) -> None:
    """Raise `TaskError` if a run has tasks of none of the examples' families."""
    if not found.families.keys() & {*families}:
        raise TaskError(
            f"The tasks of the run {run[:200]!r} are of {', '.join(families)[:200]}, and no example"
            f" of {found.version.reference} is.",
            f"The examples are of {', '.join(found.families)[:200]}: name a run of these tasks.",
        )


def evaluated_by(
    found: Dataset,
    folder: Path,
    runs: Iterable[str],
    verifier_of: Callable[[TaskRef, Path | None], Verifier | None],
    run_verifier_of: Callable[[TaskRef], Any],
    families_of: Callable[[Path], Collection[str]],
) -> tuple[str, bool]:
    """Spec of `--tasks` that evaluates a version, and True if all its examples have a verifier.

    `runs`: runs that may have the code of a user's tasks. No code of them is run.
    """
    query: dict[str, str] = {}
    if str(folder) != FOLDER:
        query["folder"] = str(folder)
    if not found.splits["eval"]:
        query["split"] = "all"
    own = {each.family for each in found.examples if each.drawn is not None}
    named = next((run for run in runs if own and own <= {*_families(run, families_of)}), None)
    if named is not None:
        query["run"] = named
    # examples that are alike in this have verifiers alike
    kinds = {
        (each.family, each.answer is None): _ref_of(each)
        for each in found.examples
        if each.drawn is None and kind_of(each.family)[0] != "reasoning_gym"
    }
    verified = all(
        _verifiers(ref, None, verifier_of, run_verifier_of) != (None, None)
        for ref in kinds.values()
    )
    tail = f"?{urlencode(query, safe='/~')}" if query else ""
    return f"{_FAMILY}:{found.version.reference}{tail}", verified and (not own or named is not None)


def _verifiers(
    ref: TaskRef,
    run: Path | None,
    verifier_of: Callable[[TaskRef, Path | None], Verifier | None],
    run_verifier_of: Callable[[TaskRef], Any],
) -> tuple[Verifier | None, Any]:
    """Verifier of texts and verifier of runs of a recorded task."""
    verify = None
    # the values of a data set may be invalid, and a task without a verifier is refused later
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        verify = verifier_of(ref, run) if _can_be_made(ref) else None
    verify_run = None
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        verify_run = run_verifier_of(ref)
    return verify, verify_run


def _families(run: str, families_of: Callable[[Path], Collection[str]]) -> Collection[str]:
    """Families of a run's tasks (empty if it has no folder)."""
    with suppress(HrmError):
        return families_of(Path(run))
    return ()


def _ref_of(example: DatasetExample) -> TaskRef:
    drawn = {} if example.drawn is None else {DRAWN: example.drawn}
    return TaskRef(
        id=example.task,
        family=example.family,
        prompt=example.prompt,
        answer=example.answer,
        metadata={**example.metadata, **drawn},
    )


def _can_be_made(ref: TaskRef) -> bool:
    """False for a generated task whose index would keep the generator busy without end."""
    if kind_of(ref.family)[0] != "reasoning_gym":
        return True
    return int(ref.id.rpartition(":")[2]) <= _MOST_DRAWN
