"""Import a user's module by name or by file, as in `package.module:attribute` and
`./file.py:attribute`.

A module that is loaded from its file, or run as a program, has another name in this process than in
its project. Stored types carry the name in the project (the natural name), so that they are found
after the module is moved or run another way.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hrm_agent.errors import ConfigError, HrmError, nearest
from hrm_agent.trajectory import content_hash

__all__ = [
    "LOCAL_NAMES",
    "NoFileError",
    "attribute_by_name",
    "file_named",
    "import_by_name",
    "imported_files",
    "local_modules",
    "natural_name",
    "search_in",
    "stem_of",
    "types_by_name",
]

_LOOKED_FOR = "./file.py is looked for in the folder where the command is typed."
_PROGRAM = "__main__"
_PREFIX = "user_graph_"
_LOADED_FROM_FILE = re.compile(rf"{_PREFIX}(.+)_[0-9a-f]{{8}}")
LOCAL_NAMES = (_PROGRAM.encode(), _PREFIX.encode())
"""Parts of module names that differ from the natural name."""
_PROJECT_FILES = ("pyproject.toml", "langgraph.json")
_importing = threading.RLock()


class NoFileError(ConfigError):
    """The named file does not exist."""


def search_in(folder: str) -> None:
    """Put a folder first in the module search path, as `python -m` does with the working directory.
    The user's code is usually there.
    """
    if folder not in sys.path:
        sys.path.insert(0, folder)


def import_by_name(name: str, folder: str) -> ModuleType:
    """Import a module, or a file whose name ends in `.py`. `folder`: the working directory
    of the command.

    Raises whatever the module raises, and `NoFileError` for a missing file.
    """
    search_in(folder)
    return (
        _import_file(Path(folder, name)) if name.endswith(".py") else importlib.import_module(name)
    )


def attribute_by_name(spec: str, what: str, folder: str, also: str = "") -> tuple[Any, ModuleType]:
    """Import what `package.module:attribute` or `./file.py:attribute` names. Returns it with its
    module.

    `what`: kind of thing, for errors. `folder`: the working directory of the command. `also`: other names
    that may be written, for the hint. Raises `ConfigError` for whatever the module raises.
    """
    module_name, colon, attribute = spec.rpartition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(
            f"{spec!r} names no {what}.",
            f"Write package.module:attribute, ./file.py:attribute{also}.",
        )
    try:
        module = import_by_name(module_name, folder)
    except HrmError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        trial = (
            f"python {module_name}"
            if module_name.endswith(".py")
            else f"python -c 'import {module_name}'"
        )
        raise ConfigError(
            f"The {what} {spec!r} does not import: {type(error).__name__}: {error}.",
            f"Try `{trial}` in {folder}.",
        ) from error
    if not hasattr(module, attribute):
        public = ", ".join(name for name in vars(module) if not name.startswith("_")) or "nothing"
        raise ConfigError(f"{module_name} has no {attribute!r}.", f"It has {public}.")
    return getattr(module, attribute), module


def _import_file(path: Path) -> ModuleType:
    """Load a file as a module under a unique name, so that a user's `graphs.py` does not replace
    one of this package.

    The file runs once, as any module does. So two graphs of one file share its classes, by which
    their states are read back.
    """
    # Python locks its own imports. Without this lock another thread would get a half-run module
    with _importing:
        return _imported(path, f"{_PREFIX}{path.stem}_{content_hash(str(path.resolve()))[:8]}")


def _imported(path: Path, module_name: str) -> ModuleType:
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.exists():
        near = nearest(path.name, (each.name for each in path.parent.glob("*.py")))
        raise NoFileError(
            f"There is no file {path.name} in {path.parent.resolve()}. {near}".strip(), _LOOKED_FOR
        )
    root, name = _place_in_project(str(path))
    for folder in (path.resolve().parent, root):
        if str(folder) not in sys.path:
            # as if the file were run as a program: it may import modules beside itself and packages
            # of its project
            sys.path.append(str(folder))
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    _refuse_modules_of_others(path.resolve(), package)
    module = importlib.util.module_from_spec(spec)
    module.__package__ = package  # where `from .models import` searches
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _refuse_modules_of_others(path: Path, package: str) -> None:
    """Raise `ImportError` if an import of the file would find another project's module instead of
    the one beside it.
    """
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):  # running the module reports the error
        return
    imported = [
        name.name for each in statements if isinstance(each, ast.Import) for name in each.names
    ]
    froms = [each for each in statements if isinstance(each, ast.ImportFrom)]
    imported += [each.module for each in froms if each.module and not each.level]
    if package and any(each.level for each in froms):
        found = importlib.util.find_spec(package)
        folders = [*(found.submodule_search_locations or ())] if found is not None else []
        if str(path.parent) not in [str(Path(folder).resolve()) for folder in folders]:
            raise ImportError(
                f"{path} imports from its own package, {package}, but under this name Python finds"
                f" {' and '.join(folders) or 'no package'}. Name the graph as"
                " package.module:attribute"
            )
    for name in {name.partition(".")[0] for name in imported} - {path.stem}:
        beside = (path.with_name(f"{name}.py"), path.with_name(name) / "__init__.py")
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and any(place.is_file() for place in beside) and Path(file).resolve() not in beside:
            raise ImportError(
                f"{path} imports {name}, but this process has already loaded {file} under this"
                " name. Run the two files in separate processes, or rename one of them"
            )


def file_named(name: str) -> str:
    """Normalise `package.module:attribute` and `./file.py:attribute` to the file's path (unchanged
    if there is no file).
    """
    module, colon, attribute = name.rpartition(":")
    if not colon:
        return name
    parts = [] if module.endswith(".py") else module.split(".")
    ends = ((*parts[:-1], f"{parts[-1]}.py"), (*parts, "__init__.py")) if parts else ((module,),)
    places = (Path(folder, *end) for folder in (Path.cwd(), *sys.path) for end in ends)
    file = next((place.resolve() for place in places if place.is_file()), None)
    if file is None:
        return name
    return (
        f"./{file.relative_to(Path.cwd())}:{attribute}"
        if file.is_relative_to(Path.cwd())
        else f"{file}:{attribute}"
    )


def natural_name(module: str) -> str:
    """Name of a loaded module within its project (unchanged if it has no other)."""
    found = sys.modules.get(module)
    if module == _PROGRAM and (spec := getattr(found, "__spec__", None)) is not None:
        return str(spec.name)
    file = (
        getattr(found, "__file__", None)
        if module == _PROGRAM or module.startswith(_PREFIX)
        else None
    )
    return module if file is None else _place_in_project(file)[1]


@cache
def _place_in_project(file: str) -> tuple[Path, str]:
    """Folder from which a file's module is imported, and the module's name there.

    The folder is the parent of the file's outermost package. For a file without a package it is the
    nearest project folder, or that folder's `src`.
    """
    path = Path(file).resolve()
    around = next(each for each in path.parents if not (each / "__init__.py").is_file())
    root = next(
        (each for each in path.parents if any((each / name).is_file() for name in _PROJECT_FILES)),
        around,
    )
    if root / "src" in path.parents:
        root /= "src"
    if around != path.parent and root in around.parents:
        root = around
    parts = path.relative_to(root).with_suffix("").parts
    return root, ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def stem_of(module: str) -> str:
    """Last part of a module's natural name. For a local name that was stored by another process, it
    is the stem of the file that the module was loaded from.
    """
    found = _LOADED_FROM_FILE.fullmatch(natural_name(module))
    return found[1] if found else natural_name(module).rpartition(".")[2]


def local_modules(natural: str) -> list[str]:
    """Local names of modules in this process whose natural name is `natural`."""
    names = [name for name in list(sys.modules) if name == _PROGRAM or name.startswith(_PREFIX)]
    return [name for name in names if name != natural and natural_name(name) == natural]


def types_by_name(names: Iterable[str]) -> list[str]:
    """Names given to `--allow` (`package.module:Type`, `./file.py:Type`), each followed by the
    names under which values of the type are stored.

    Raises `ConfigError` for a name that cannot be imported as a type: without the type, its stored
    values could not be read.
    """
    known = list[str]()
    for name in names:
        module, _, attribute = name.rpartition(":")
        if not module or not attribute:
            raise ConfigError(
                f"--allow {name!r} names no type.", "Write --allow package.module:Type."
            )
        try:
            found = getattr(import_by_name(module, str(Path.cwd())), attribute, None)
        except NoFileError:
            raise
        except Exception as error:  # the user's module may raise anything
            raise ConfigError(
                f"--allow {name!r} does not import: {type(error).__name__}: {error}.",
                "Write the name under which the type's module is imported.",
            ) from error
        if not isinstance(found, type):
            raise ConfigError(f"--allow {name!r}: there is no type {attribute!r} in {module}.")
        known += [
            name,
            *(
                f"{each}:{found.__qualname__}"
                for each in (found.__module__, natural_name(found.__module__))
            ),
        ]
    return [*dict.fromkeys(known)]


def imported_files() -> list[str]:
    """Files that this process has imported by path. A process that receives objects of their
    classes has to import the files too.
    """
    found = [
        module.__file__ for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)
    ]
    return [file for file in found if file]
