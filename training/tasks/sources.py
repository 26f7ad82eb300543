"""Sources of a run's tasks, which are stored beside the run as `tasks.json` and compared when the
run is resumed.

The folder for relative names of files and modules is stored, so that a run can be resumed from any
folder. The SHA-256 of a module's source, or of a file's content, is stored. If it differs, a
resumed run reports this and continues, since the tasks may still be the same. (Modules that the
module imports are not checked.) The version of an installed package is stored. Another version is
an error, since its changes are unknown.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from hrm_agent.basics.files import replacing
from hrm_agent.config import CONFIG_FILE
from hrm_agent.errors import RunError, TaskError
from hrm_agent.import_by_name import search_in
from hrm_agent.training.tasks.dataset import version_of_spec, with_versions
from hrm_agent.training.tasks.mixture import read_mixture
from hrm_agent.training.tasks.packages import find_registered, origin_of
from hrm_agent.training.tasks.published.bfcl import answers_file
from hrm_agent.training.tasks.spec import (
    FAMILY_NAMES,
    MODULE,
    PACKAGE,
    file_of,
    kind_of,
    module_name,
)

__all__ = [
    "DATASET",
    "SOURCES_FILE",
    "TaskSources",
    "changed_sources",
    "fixed_tasks",
    "keep_sources",
    "read_sources",
    "tasks_folder",
]

SOURCES_FILE = "tasks.json"
DATASET = "the data set "
"""Beginning of the name of a data set's version among the digests."""
_FILES = ("aime", "bfcl", "csv", "gpqa", "gsm8k", "ifeval", "jsonl", "math500", "parquet")


class TaskSources(BaseModel):
    """Sources of a run's tasks when it began."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: str
    """Absolute path of the folder in which relative names are resolved."""
    specs: tuple[str, ...] = ()
    """Families as given to `--tasks`. A mixture is listed by its parts."""
    digests: dict[str, str] = {}
    """Name of a module or file in `--tasks` -> SHA-256 of its content."""
    versions: dict[str, str] = {}
    """Name of an installed package -> version."""


def tasks_folder(run: Path) -> Path:
    """Folder in which the relative names of a run's tasks are resolved: the folder in which the run
    was begun, or the working directory if that folder is gone.
    """
    kept = read_sources(run)
    began = Path.cwd() if kept is None else Path(kept.folder)
    return began if began.is_dir() and began != Path.cwd() else Path()


def read_sources(run: Path) -> TaskSources | None:
    """Read the sources stored in the folder of a run (None if there are none). Raises `RunError` if
    they cannot be read.
    """
    path = run / SOURCES_FILE
    try:
        return TaskSources.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        lines = str(error).splitlines()
        raise RunError(
            f"{path} cannot be read: {lines[0]}.", "Delete it to take the tasks as they are now."
        ) from error


def fixed_tasks(spec: str, run: Path) -> str:
    """Spec of `--tasks` in which each data set has the version that the run began with, else the
    newest one. Raises `TaskError` for a missing data set.
    """
    kept = read_sources(run)
    began = _configured(run) if kept is None else kept.specs
    return with_versions(spec, began, tasks_folder(run))


def _configured(run: Path) -> list[str]:
    """Families in the configuration of a run that ended before it wrote its sources."""
    try:
        values = tomllib.loads((run / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    stages: Any = values.get("stages")
    given: list[Any] = [values, *(stages if isinstance(stages, list) else [])]
    return [
        spec
        for each in given
        if isinstance(each, dict)
        and isinstance(tasks := cast("dict[str, Any]", each).get("tasks"), str)
        for spec in _parts_of(tasks)
    ]


def _parts_of(spec: str) -> list[str]:
    """Families of a mixture (the spec itself if it is none)."""
    kind, rest = kind_of(spec)
    return [part.spec for part in read_mixture(rest, FAMILY_NAMES)] if kind == "mix" else [spec]


def keep_sources(spec: str, split: str, run: Path, *others: str) -> None:
    """Write `tasks.json` of a new run. The file of a resumed run is not changed.

    `others`: families of the run's stages that differ from `spec`.
    """
    if not (run / SOURCES_FILE).exists():
        with replacing(run / SOURCES_FILE) as part:
            part.write_text(
                _sources_of((spec, *others), split, Path.cwd()).model_dump_json(indent=2) + "\n",
                encoding="utf-8",
            )


def changed_sources(spec: str, split: str, run: Path, *others: str) -> list[str]:
    """Names of modules and files whose source or content has changed since the run began.

    Raises `RunError` if a package has another version.
    """
    kept = read_sources(run)
    if kept is None:
        return []
    now = _sources_of((spec, *others), split, tasks_folder(run))
    if now.specs != kept.specs:  # other tasks: the check of the options reports this
        return []
    for name, version in kept.versions.items():
        if (installed := now.versions.get(name)) != version:
            found = f"version {installed} is installed" if installed else "it is not installed"
            raise RunError(
                f"The tasks of {run} are of {name} {version}, but {found}.",
                f"Run `pip install {name}=={version}`, or begin a new run in another folder.",
            )
    return [name for name, digest in kept.digests.items() if now.digests.get(name) != digest]


def _sources_of(given: Iterable[str], split: str, folder: Path) -> TaskSources:
    specs = [part for spec in given for part in _parts_of(spec)]
    digests: dict[str, str] = {}
    versions: dict[str, str] = {}
    for each in specs:
        digests |= {name: _digest(path) for name, path in _files_of(each, split, folder)}
        versions |= dict(_packages_of(each))
    return TaskSources(
        folder=str(folder.resolve()), specs=tuple(specs), digests=digests, versions=versions
    )


def _files_of(spec: str, split: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Files from which a spec is read, each as (name shown to the user, path)."""
    kind, rest = kind_of(spec)
    if kind in _FILES:
        yield rest.partition("?")[0], file_of(rest, split, folder)[0]
        if kind == "bfcl" and (answers := answers_file(rest, split, folder)).exists():
            yield f"the answers {answers.name}", answers
    elif kind == "dataset":
        with suppress(TaskError):  # the loader reports it
            version = version_of_spec(rest, folder)
            yield f"{DATASET}{version.reference}", version.path
    elif kind == "hf":
        place, _ = file_of(rest, split, folder)
        paths = (path for path in sorted(place.rglob("*")) if path.is_file())
        yield from ((f"{place.name}/{path.relative_to(place)}", path) for path in paths)
    elif kind == MODULE:
        yield from _source_of(module_name(spec)[0], folder)
    elif kind == "verifiers":
        yield from _source_of(_environment_module(rest), folder)
    elif kind == PACKAGE and (registered := find_registered(spec.partition("?")[0])) is not None:
        yield from _source_of(registered.module, folder)


def _source_of(module: str, folder: Path) -> Iterator[tuple[str, Path]]:
    if module.endswith(".py"):
        yield module, Path(folder, Path(module).expanduser())
        return
    search_in(str(folder.resolve()))
    try:
        found = (
            sys.modules[module].__spec__
            if module in sys.modules
            else importlib.util.find_spec(module)
        )
    except (ImportError, ValueError):  # raised by a package around the module
        return
    if found is not None and found.has_location and found.origin:
        yield module, Path(found.origin)


def _environment_module(spec: str) -> str:
    """Module of an environment of the library verifiers: for `owner/my-env` it is `my_env`."""
    return spec.partition("?")[0].rpartition("/")[2].replace("-", "_")


def _packages_of(spec: str) -> Iterator[tuple[str, str]]:
    kind, rest = kind_of(spec)
    if kind == "verifiers":
        owners = metadata.packages_distributions().get(_environment_module(rest), [])
        with suppress(metadata.PackageNotFoundError):
            yield from ((name, metadata.version(name)) for name in ("verifiers", *owners))
    elif kind == PACKAGE and (registered := find_registered(spec.partition("?")[0])) is not None:
        yield origin_of(registered)


def _digest(path: Path) -> str:
    """SHA-256 of a file (empty if it cannot be read)."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
