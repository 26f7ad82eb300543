"""Tasks of installed packages, by the name that a package registers in the entry-point group
`hrm_agent.tasks`:

    [project.entry-points."hrm_agent.tasks"]
    my-tasks = "my_tasks.problems:tasks"

`--tasks my-tasks?size=3` then equals `--tasks my_tasks.problems:tasks?size=3`, in every environment
in which the package is installed. If a registered name equals the name of a built-in family, the
family takes precedence.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.own import tasks_of_attribute
from hrm_agent.training.tasks.spec import one_line

__all__ = ["GROUP", "find_registered", "load_registered", "origin_of", "registered_names"]

GROUP = "hrm_agent.tasks"


def registered_names() -> list[str]:
    """Names that installed packages have registered, sorted."""
    return sorted({found.name for found in entry_points(group=GROUP)})


def find_registered(name: str) -> EntryPoint | None:
    """Entry point registered as `name` (None if there is none). Raises `TaskError` if two packages
    have registered the name.
    """
    found = {(each.value, origin_of(each)): each for each in entry_points(group=GROUP, name=name)}
    if len(found) > 1:
        owners = " and ".join(sorted(f"{' '.join(owner)} ({value})" for value, owner in found))
        raise TaskError(
            f"The tasks {name!r} are registered by {owners}.",
            "Name one by package.module:attribute.",
        )
    return next(iter(found.values()), None)


def origin_of(registered: EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that registers an entry point."""
    owner = registered.dist
    return (owner.name, owner.version) if owner is not None else ("an unknown package", "")


def load_registered(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load the first `count` tasks (None for all) of `NAME?query`. Raises `TaskError`."""
    name, _, query = spec.partition("?")
    registered = find_registered(name)
    assert registered is not None
    owner = " ".join(origin_of(registered))
    try:
        found = registered.load()
    except (Exception, SystemExit) as error:
        message = (
            f"The tasks {name!r} of {owner} ({registered.value}) do not import: {one_line(error)}."
        )
        raise TaskError(
            message, "Install it again, or ask its makers; --debug shows the traceback."
        ) from error
    return tasks_of_attribute(spec, found, query, split=split, seed=seed, count=count)
