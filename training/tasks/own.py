"""Tasks in a user's code: `package.module:attribute`, or `./file.py:attribute`, with `?size=3` for
a function's parameters.

The attribute is a list or another iterable of items (`hrm_agent.training.tasks.items`), a mapping
`{"train": items, "eval": items}`, or a function that returns items. If a function has parameters
named `split` ("train" or "eval"), `seed` or `count` (None: all), it gets these values, and also the
parameters in the query.

Items keep their order, and the first `count` items are taken. A list, or a function without the
parameter `split`, gives training and evaluation the same tasks. A mapping without the requested
split is an error.

A registered name (`hrm_agent.training.tasks.packages`) leads to such an attribute of an installed
package.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from pathlib import Path
from typing import Any, cast

from hrm_agent.errors import TaskError, nearest
from hrm_agent.import_by_name import NoFileError, import_by_name
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.items import tasks_of_items
from hrm_agent.training.tasks.spec import module_name, one_line, read_parameters

__all__ = ["load_own", "tasks_of_attribute"]

MAX_ITEMS = 200_000
"""Maximum number of items of an iterable without a length, if no count is given. A longer iterable
is assumed to be endless.
"""
_GIVEN = ("split", "seed", "count")


def load_own(
    spec: str,
    *,
    split: str,
    seed: int,
    count: int | None = None,
    folder: Path | None = None,
    known: Iterable[str] = (),
) -> list[Task]:
    """Load the first `count` tasks (None: all) of `module:attribute?query`. `known`: names of
    families, for a hint.
    """
    name, attribute, query = module_name(spec)
    place = Path(folder or "").resolve()
    # refuse Python's modules, since the attribute would be called with parameters of the spec
    if name.partition(".")[0] in sys.stdlib_module_names:
        raise TaskError(
            f"{name!r} is a module of Python itself.",
            f"Name a file of your own as ./{name}.py:NAME.",
        )
    try:
        module = import_by_name(name, str(place))
    except (Exception, SystemExit) as error:
        if isinstance(error, NoFileError):
            raise TaskError(error.message, error.hint) from None
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            families = f"{nearest(name, known)} Families: {', '.join(sorted(known))}.".strip()
            message = f"There is no task family {name!r}, and no module of that name in {place}."
            raise TaskError(message, families) from error
        trial = f"python {name}" if name.endswith(".py") else f"python -c 'import {name}'"
        message = f"The tasks {spec!r} do not import: {one_line(error)}."
        raise TaskError(
            message, f"Try `{trial}` in {place}; --debug shows the traceback."
        ) from error
    if not hasattr(module, attribute):
        public = [each for each in vars(module) if not each.startswith("_")]
        hint = (
            f"{nearest(attribute, public)} It has: {', '.join(public[:20]) or 'nothing'}.".strip()
        )
        raise TaskError(f"{name} has no attribute {attribute!r}.", hint)
    return tasks_of_attribute(
        spec, getattr(module, attribute), query, split=split, seed=seed, count=count
    )


def tasks_of_attribute(
    spec: str, found: Any, query: str = "", *, split: str, seed: int, count: int | None = None
) -> list[Task]:
    """Return the first `count` tasks of an attribute that was found by `spec`."""
    parameters = read_parameters(query)
    drawn: dict[str, Any] = {}
    if isinstance(found, Iterator):
        message = f"{spec!r} is an iterator: it can be read only once, and tasks may be read again."
        raise TaskError(message, "Make it a list, or a function that gives it.")
    if isinstance(found, Mapping):
        by_split = cast("Mapping[str, Any]", found)
        if split not in by_split:
            hint = f"It has: {', '.join(map(str, by_split)) or 'nothing'}."
            raise TaskError(f"{spec!r} is a mapping without the split {split!r}.", hint)
        found = by_split[split]
        drawn = {"split": split}
    elif callable(found) and not isinstance(found, Iterable):
        given = {"split": split, "seed": seed, "count": count}
        drawn = _arguments(spec, found, given, parameters)
        found = _guarded(spec, lambda: found(**drawn))
        drawn = {name: value for name, value in drawn.items() if name in _GIVEN}
        parameters = {}
    if parameters:
        raise TaskError(
            f"{spec!r} is a list: it takes no parameters.", "Make it a function that has them."
        )
    items = _guarded(spec, lambda: _first(spec, found, count))
    if not items and count != 0:
        raise TaskError(f"{spec!r} has no task.", "Name a list that has some.")
    return tasks_of_items(spec, items, drawn)


def _arguments(
    spec: str, function: Callable[..., Any], given: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments for a function that returns tasks. Raises `TaskError` if the function cannot be
    called with them.
    """
    if (
        inspect.isclass(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        kind = "a class" if inspect.isclass(function) else "an async function"
        raise TaskError(
            f"{spec!r} is {kind}.", "Name a list of tasks, or a function that is not async."
        )
    own = _guarded(spec, lambda: inspect.signature(function)).parameters.values()
    takes = [
        each.name for each in own if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in own)
    for name in parameters:
        if name in given:
            raise TaskError(
                f"{spec!r}: {name} cannot be given in the tasks' name.", f"Give it by --{name}."
            )
        if name not in takes and not takes_any:
            others = [each for each in takes if each not in given]
            hint = f"{nearest(name, others)} It has: {', '.join(others) or 'none'}.".strip()
            raise TaskError(f"{spec!r}: the function has no parameter {name!r}.", hint)
    arguments = {name: value for name, value in given.items() if name in takes} | dict(parameters)
    needed = [
        each.name
        for each in own
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, *_NAMED)
    ]
    if lacking := [name for name in needed if name not in arguments]:
        name = lacking[0]
        message = f"{spec!r}: the function needs {', '.join(lacking)}."
        raise TaskError(
            message, f"It is given split, seed and count; say the rest: '{spec}?{name}=VALUE'."
        )
    return arguments


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _guarded(spec: str, work: Callable[[], Any]) -> Any:
    """Call `work` and return its result. An error in the user's code becomes a `TaskError` that
    names the line.
    """
    try:
        return work()
    except TaskError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = (
            f"The tasks {spec!r} failed: {one_line(error)} ({frame.filename}, line {frame.lineno})."
        )
        raise TaskError(message, "--debug shows the traceback.") from error


def _first(spec: str, found: Any, count: int | None) -> list[Any]:
    if isinstance(found, AsyncIterable) or inspect.isawaitable(found):
        raise TaskError(
            f"{spec!r} is async.", "Name a list of tasks, or a function that is not async."
        )
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        hint = "It must be a list of tasks, or a function that gives one."
        raise TaskError(
            f"{spec!r} is of type {type(cast('Any', found)).__name__}, not a list of tasks.", hint
        )
    items = cast("Iterable[Any]", found)
    if count is not None or isinstance(items, Sized):
        return list(islice(items, count))
    listed = list(islice(items, MAX_ITEMS + 1))
    if len(listed) > MAX_ITEMS:
        message = (
            f"{spec!r} gives more than {MAX_ITEMS:,} tasks and does not say how many there are."
        )
        raise TaskError(
            message, "If it is endless, say how many are wanted: --count N; else make it a list."
        )
    return listed
