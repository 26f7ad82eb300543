"""Name by which a graph object can be loaded again: its place in an imported module."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import ref

from langchain_core.runnables import Runnable
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from hrm_agent.runtime.execution.loading import BUILTIN_GRAPHS, unnamed

__all__ = ["graph_name"]

_PROGRAM = "__main__"
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PYTHON = sysconfig.get_path("stdlib")
"""Folder of Python's own modules."""
_without_graphs = set[str]()
"""Names of installed modules that held no graph when they were first checked."""
_known: dict[int, tuple[ref[Any], str]] = {}
"""Names by the identity of the object, since many runnables have no hash."""


def graph_name(graph: Any) -> str:
    """Name of a graph: `package.module:attribute`, or `./file.py:attribute` of a script.

    A copy of a graph (`with_config`), and one that was compiled from a builder, has the name of its
    origin. A graph that no module holds has its own name in parentheses, which cannot be loaded.
    """
    key = id(graph)
    if key in _known and _known[key][0]() is graph:
        return _known[key][1]
    name = _found_name(graph)
    with suppress(TypeError):  # some objects take no weak reference
        _known[key] = ref(graph, lambda _: _known.pop(key, None)), name
    return name


def _found_name(graph: Any) -> str:
    best = min(_holders(graph), default=None)
    place = _place_of(sys.modules[best[-2]]) if best is not None else None
    if best is None or place is None:
        return unnamed(
            graph.get_name()
            if isinstance(graph, Runnable)
            else str(getattr(graph, "__qualname__", type(graph).__name__))
        )
    name = f"{place}:{best[-1]}"
    return {target: short for short, target in BUILTIN_GRAPHS.items()}.get(name, name)


def _holders(graph: Any) -> Iterator[tuple[bool, int, bool, bool, bool, int, int, str, str]]:
    """Modules and attributes that hold the graph; the smallest is the best.

    They are ordered by these criteria, the most important first:

    1. names that importing a program's file creates, before names under `if __name__ ==
       "__main__"`;
    2. the nearer object (`_distance`);
    3. other modules, before the program's own;
    4. public names, before private ones;
    5. the module of the nodes' functions, before a module that has imported the graph;
    6. the newest import, since an importer begins before the modules that it imports;
    7. the first name in a module.
    """
    homes = _homes(graph)
    builder = getattr(graph, "builder", None)
    builder = builder if isinstance(builder, StateGraph) else None
    numbers = {name: number for number, name in enumerate(list(sys.modules))}
    for module_name in (_watched() | homes) & numbers.keys():
        module = sys.modules.get(module_name)
        if not isinstance(module, ModuleType) or module_name == "__mp_main__":
            continue
        held = [
            (place, attribute, distance)
            for place, (attribute, value) in enumerate(list(vars(module).items()))
            # `isinstance` would resolve proxies.
            if (value is graph or value is builder or Pregel in type(value).__mro__)
            and (distance := _distance(value, graph, builder)) is not None
        ]
        if held:
            program = getattr(module, "__file__", None) if module_name == _PROGRAM else None
            of_run = _made_where_run(program) if program is not None else frozenset[str]()
            number = numbers[module_name]
            for place, attribute, distance in held:
                private = attribute.startswith("_")
                elsewhere = module_name not in homes
                order = (module_name == _PROGRAM, private, elsewhere, -number, place)
                yield attribute in of_run, distance, *order, module_name, attribute


def _watched() -> set[str]:
    """Names of modules that may hold a graph.

    An installed module without a graph after its import is not checked again, since there are
    thousands of them. A module that the user edits is always checked.
    """
    watched = list(sys.modules.keys() - _without_graphs)
    for name in watched:
        module = sys.modules.get(name)
        if (
            name != _PROGRAM
            and isinstance(module, ModuleType)
            and _is_installed(module)
            and not _holds_graphs(module)
        ):
            _without_graphs.add(name)
    return set(watched)


def _is_installed(module: ModuleType) -> bool:
    """True if a module belongs to Python or an installed package, and its import has ended."""
    spec = getattr(module, "__spec__", None)
    if spec is None:  # made by a package's own code
        package, _, inner = module.__name__.partition(".")
        above = sys.modules.get(package)
        return (
            bool(inner)
            and isinstance(above, ModuleType)
            and above is not module
            and _is_installed(above)
        )
    if getattr(spec, "_initializing", False):
        return False
    origin = spec.origin or ""
    return (
        not spec.has_location
        or origin.startswith(_PYTHON)
        or any(part in origin for part in _INSTALLED)
    )


def _holds_graphs(module: ModuleType) -> bool:
    kinds = {id(kind): kind for kind in map(type, list(vars(module).values()))}.values()
    return any(Runnable in kind.__mro__ or StateGraph in kind.__mro__ for kind in kinds)


@cache
def _made_where_run(program: str) -> frozenset[str]:
    """Names that a program's file binds under a condition on `__name__`, and nowhere else outside
    of functions.
    """
    try:
        body = ast.parse(Path(program).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    under = [
        each
        for each in body
        if isinstance(each, ast.If) and "__name__" in _names(each.test, ast.Load)
    ]
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    outside = [each for each in body if each not in under and not isinstance(each, scopes)]
    others = [name for each in outside for name in _names(each, ast.Store)]
    return frozenset(name for each in under for name in _names(each, ast.Store)).difference(others)


def _names(node: ast.AST, use: type[ast.expr_context]) -> list[str]:
    return [
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, use)
    ]


def _homes(graph: Any) -> set[str]:
    """Modules of the functions of a graph's nodes."""
    if not isinstance(graph, (Pregel, StateGraph)):
        return {str(getattr(graph, "__module__", ""))}
    nodes: Any = getattr(getattr(graph, "builder", graph), "nodes", {}).values()
    runnables = [getattr(node, "runnable", None) for node in nodes]
    functions = [getattr(each, "func", None) or getattr(each, "afunc", None) for each in runnables]
    return {str(getattr(function, "__module__", "")) for function in functions}


def _distance(value: Any, graph: Any, builder: Any) -> int | None:
    """0 for the graph itself, 1 for another graph of its builder, 2 for the builder (None for any
    other value).
    """
    if value is graph:
        return 0
    if builder is None:
        return None
    if value is builder:
        return 2
    return 1 if getattr(value, "builder", None) is builder else None


def _place_of(module: ModuleType) -> str | None:
    """Import path of a module: its name, or its file if no folder of `sys.path` has it under that
    name (None for a module that cannot be imported again, such as a notebook's).
    """
    spec = getattr(module, "__spec__", None)
    name = spec.name if spec is not None else module.__name__
    file = getattr(module, "__file__", None)
    if file is None:
        return None if name == _PROGRAM else name
    if name != _PROGRAM and _is_importable(name, Path(file)):
        return name
    path = Path(file).resolve()
    return f"./{path.relative_to(Path.cwd())}" if path.is_relative_to(Path.cwd()) else str(path)


def _is_importable(name: str, file: Path) -> bool:
    """True if `import name` finds the file. Finders of editable installs show no files, so a module
    of an imported package counts as found.
    """
    parts = name.split(".")
    if len(parts) > 1 and parts[0] in sys.modules:
        return True
    places = (Path(folder or ".").joinpath(*parts) for folder in sys.path)
    return any(file in (place.with_suffix(".py"), place / "__init__.py") for place in places)
