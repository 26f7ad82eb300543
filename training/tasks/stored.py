"""Tasks of recorded runs: `store:RUN`, `store:RUN?rubric=feedback`.

RUN is a run folder or a store, by its path or URL. Each distinct prompt in its runs becomes one
task, with its reference answer if it has one. `rubric` takes only the tasks of runs that have
scores of that name: user feedback (`feedback`), or scores by `hrm-agent rescore`. `run` takes only
the tasks of one run.

A task is verified as in its original family. A task without a verifier, such as a prompt from a
chat, needs `--rewards`. The order is a permutation drawn from the seed. Both splits have all tasks
of a store.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

from hrm_agent.errors import HrmError, TaskError, nearest
from hrm_agent.runtime.episode import HISTORY
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.run_store import own_run
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.trajectory import TaskRef, Trajectory, content_hash, derive_seed

__all__ = ["load_stored", "original_of", "with_origin"]

_ORIGIN = "stored"
"""Key in a task's metadata for the family and id of the original task."""
_PARAMETERS = ("rubric", "run")


def load_stored(
    spec: str,
    verifier_of: Callable[[TaskRef, Path], Verifier | None],
    *,
    split: str,
    seed: int,
    count: int | None = None,
    folder: Path | None = None,
) -> list[Task]:
    """Load at most `count` tasks (None for all) of `RUN?query`. Raises `TaskError`.

    `verifier_of`: function (recorded task, folder of its run) -> verifier. `folder`: folder in
    which a relative path is resolved (None: the working directory).
    """
    del split
    where, _, query = spec.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name in given:
        if name not in _PARAMETERS:
            hint = f"{nearest(name, _PARAMETERS)} Known: {', '.join(_PARAMETERS)}.".strip()
            raise TaskError(f"store: has no parameter {name!r}.", hint)
    place = where if "://" in where else str(Path(folder or "", where).expanduser())
    try:
        with open_store(place, create=False) as store:
            found = _scored(
                store, _headers(store, place, given.get("run")), given.get("rubric"), where
            )
            run = Path(place) if Path(place).is_dir() else store.folder
    except TaskError:
        raise
    except HrmError as error:
        raise TaskError(f"store:{spec}: {error.message}", error.hint) from error
    # of equal tasks, the one that ran first is kept
    refs = {_id_of(ref): ref for ref in (original_of(header.task) for header in reversed(found))}
    names = sorted(refs)  # the order does not depend on which task ran first
    random.Random(derive_seed(seed, "store")).shuffle(names)
    return [
        Task(
            id=name,
            family=f"store:{spec}",
            prompt=refs[name].prompt,
            answer=refs[name].answer,
            metadata=with_origin(refs[name]),
            verify=cast("Any", verifier_of(refs[name], run)),  # None: needs custom rewards
        )
        for name in names[:count]
    ]


def with_origin(task: TaskRef) -> dict[str, Any]:
    """Metadata of a task that is derived from a recorded task. `original_of` reverts it."""
    return {**task.metadata, _ORIGIN: {"family": task.family, "id": task.id}}


def original_of(task: TaskRef) -> TaskRef:
    """Original of a task from a store or a data set (the task itself if it comes from neither)."""
    origin: Any = task.metadata.get(_ORIGIN)
    try:
        family = str(origin["family"])
        id_ = str(origin["id"])
    except (KeyError, TypeError):
        return task
    metadata = {key: value for key, value in task.metadata.items() if key != _ORIGIN}
    return task.model_copy(update={"family": family, "id": id_, "metadata": metadata})


def _headers(store: RunStore, where: str, run_id: str | None) -> list[Trajectory]:
    """Trajectories of the run `run_id`. If none is named and `where` is a folder that shares its
    store with others, they are those of the folder's run; else they are all of the store.
    """
    run_id = own_run(where) if run_id is None else run_id
    found = (
        store.journal.headers()
        if run_id is None
        else store.journal.headers("run_id = ?", (run_id,))
    )
    if not found:
        raise TaskError(
            f"store:{where} has no runs" + (f" of {run_id!r}." if run_id else "."),
            "Record some runs first.",
        )
    return found


def _scored(
    store: RunStore, headers: list[Trajectory], rubric: str | None, where: str
) -> list[Trajectory]:
    if rubric is None:
        return headers
    scorings = store.scorings.by_rubric(rubric)
    found = [header for header in headers if header.id in scorings]
    if not found:
        known = ", ".join(store.scorings.rubrics()) or "none"
        raise TaskError(
            f"store:{where} has no run with scores by {rubric!r}.", f"Scores that it has: {known}."
        )
    return found


def _id_of(ref: TaskRef) -> str:
    """Identifier of a task. It is equal for tasks with the same prompt, the same answer and the
    same earlier turns of a conversation.
    """
    said = json.dumps(ref.metadata.get(HISTORY), sort_keys=True, default=str)
    return content_hash(ref.family, ref.prompt, ref.answer or "", said)[:16]
