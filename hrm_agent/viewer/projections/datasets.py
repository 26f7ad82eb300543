"""Data sets with their versions, the runs on each version, and the examples of one version."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

from hrm_agent.errors import HrmError, TaskError
from hrm_agent.training.datasets import (
    Dataset,
    Version,
    dataset_names,
    find_version,
    list_versions,
    read_version,
)
from hrm_agent.training.tasks.sources import DATASET, SOURCES_FILE
from hrm_agent.viewer.json_text import SHOWN, NotThere, short
from hrm_agent.viewer.projections.runs import is_own_run, place_runs
from hrm_agent.viewer.run_files import config_of, json_file

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["dataset", "datasets", "datasets_of"]

_NAMED = re.compile(
    r"dataset:([A-Za-z0-9][A-Za-z0-9._-]{0,99}@[1-9][0-9]{0,8})(?:\?(.*))?", re.DOTALL
)
"""Version of a data set in the recorded spec of a run's tasks."""
_MOST_BYTES = 64 << 20
"""Maximum bytes of a version that is read for a page."""


def datasets(places: Sequence[Place], folder: Path) -> dict[str, Any]:
    """`GET datasets`: data sets of a folder, the newest version of each first, with the runs of all
    places on each version.
    """
    runs: list[dict[str, Any]] = []
    for place in places:
        try:
            runs += place.read(lambda place=place: place_runs(place))
        except HrmError:  # the page of runs reports it
            continue
    return datasets_of(places, folder, runs)


def datasets_of(
    places: Sequence[Place], folder: Path, runs: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Data sets of a folder, with those of `runs` whose tasks are of each version. A run belongs to
    the version whose file had the digest that the run recorded, since data sets of several folders
    may have one name.
    """
    by_id = {place.id: place for place in places}
    on: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        place = by_id.get(run["place"])
        if place is not None and is_own_run(place, run["run"]):
            for version, split in _versions_of(place.folder).items():
                on.setdefault(version, []).append(_run(run, split))
    found: list[dict[str, Any]] = []
    problems: list[dict[str, str]] = []
    for name in dataset_names(folder):
        try:
            for version in reversed(list_versions(folder, name)):
                stamp = _stamp(version.path)
                known = any(version.reference == reference for reference, _ in on)
                digest = _sha256(version.path, stamp) if known else ""
                runs_on = on.get((version.reference, digest), [])
                found.append({**_facts(version, stamp), "runs": runs_on})
            find_version(folder, name)  # two branches may each have made the newest
        except TaskError as error:
            problems.append({"name": name, "message": short(error.message), "hint": error.hint})
    return {"folder": str(folder), "datasets": found, "problems": problems}


def dataset(
    places: Sequence[Place], folder: Path, name: str, version: int, after: int, limit: int
) -> dict[str, Any]:
    """`GET dataset`: examples of one version, from position `after` on."""
    del places
    try:
        wanted = find_version(folder, name, version)
        found = _read(wanted, _stamp(wanted.path))
    except TaskError as error:
        raise NotThere(short(error.message), error.hint) from error
    rows = [
        {
            "id": each.id,
            "split": each.split(found.eval_share),
            "family": short(each.family),
            "prompt": each.prompt[:SHOWN],
            "answer": None if each.answer is None else each.answer[:SHOWN],
            "run": short(each.source.run),
            "trajectory": short(each.source.trajectory),
        }
        for each in found.examples[after : after + limit]
    ]
    end = after + len(rows)
    return {
        **_facts(wanted, _stamp(wanted.path)),
        "rows": rows,
        "next": end if end < len(found.examples) else None,
    }


def _versions_of(folder: Path | None) -> dict[tuple[str, str], str]:
    """Versions of data sets that a run has its tasks from, as (name and number, SHA-256 of the
    file), with the split that it takes.
    """
    sources = json_file(folder, SOURCES_FILE)
    specs: Any = sources.get("specs")
    digests: Any = sources.get("digests")
    if not isinstance(specs, list) or not isinstance(digests, dict):
        return {}
    split = str(config_of(folder).get("split", "train"))
    found: dict[tuple[str, str], str] = {}
    for spec in cast("list[Any]", specs):
        if named := _NAMED.fullmatch(str(spec)):
            digest = str(cast("dict[str, Any]", digests).get(DATASET + named[1], ""))
            own = dict(parse_qsl(named[2] or "")).get("split", split)
            found[named[1], digest] = own if own in ("train", "eval", "all") else split
    return found


@lru_cache(maxsize=1_000)
def _sha256(path: Path, stamp: tuple[int, ...]) -> str:
    """SHA-256 of a file (empty if it cannot be read). `stamp`: changes with the file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _run(run: dict[str, Any], split: str) -> dict[str, Any]:
    names = ("place", "run", "name", "kind", "policy", "graph", "accuracy", "steps")
    return {**{name: run[name] for name in names}, "split": split}


@lru_cache(maxsize=1_000)
def _facts(version: Version, stamp: tuple[int, ...]) -> dict[str, Any]:
    found = _read(version, stamp)
    return {
        "name": version.name,
        "version": version.number,
        "digest": version.digest,
        "examples": len(found.examples),
        "eval_share": found.eval_share,
        "splits": found.splits,
        "families": {short(name): count for name, count in found.families.items()},
    }


@lru_cache(maxsize=4)
def _read(version: Version, stamp: tuple[int, ...]) -> Dataset:
    """Read a version. `stamp`: changes with the file."""
    if stamp and stamp[1] > _MOST_BYTES:
        raise TaskError(
            f"{version.path} has {stamp[1]:,} bytes, and the viewer reads at most {_MOST_BYTES:,}.",
            f"`hrm-agent dataset show {version.reference}` shows it.",
        )
    return read_version(version)


def _stamp(path: Path) -> tuple[int, ...]:
    """Inode, size and time of a file (empty if it is gone)."""
    try:
        facts = os.stat(path)  # noqa: PTH116
    except OSError:
        return ()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
