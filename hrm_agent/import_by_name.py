"""A user's module by its name, or by its file: what `package.module:attribute` and `./file.py:attribute` begin with."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.trajectory import content_hash

__all__ = ["NoFileError", "import_by_name", "imported_files", "search_in", "types_by_name"]

_LOOKED_FOR = "./file.py is looked for in the folder where the command is typed."
_PREFIX = "user_graph_"


class NoFileError(ConfigError):
    """A file that was named is not there."""


def search_in(folder: str) -> None:
    """Find modules in a folder, as `python -m` does: a user's code lies where the command is typed."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def import_by_name(name: str, folder: str) -> ModuleType:
    """Import a module, or a file whose name ends in `.py`. `folder`: where the command was typed.

    Raises whatever the module raises; `NoFileError` for a file that is not there.
    """
    search_in(folder)
    return _import_file(Path(folder, name)) if name.endswith(".py") else importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """A file as a module under a name of its own, so that `graphs.py` of a user does not take the place of ours.

    It is run once, as any module: two graphs of one file share its classes, by which their states are read back.
    """
    module_name = f"{_PREFIX}{path.stem}_{content_hash(str(path.resolve()))[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.exists():
        near = nearest(path.name, (each.name for each in path.parent.glob("*.py")))
        raise NoFileError(f"There is no file {path.name} in {path.parent.resolve()}. {near}".strip(), _LOOKED_FOR)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def types_by_name(names: Iterable[str]) -> list[str]:
    """Names of `--allow` (`package.module:Type`, `./file.py:Type`), and those by which their values are stored.

    Raises `ConfigError` for one that is no type here: its values would be lost.
    """
    known = list[str]()
    for name in names:
        module, _, attribute = name.rpartition(":")
        if not module or not attribute:
            raise ConfigError(f"--allow {name!r} names no type.", "Write --allow package.module:Type.")
        try:
            found = getattr(import_by_name(module, str(Path.cwd())), attribute, None)
        except NoFileError:
            raise
        except Exception as error:  # whatever the user's module raises
            raise ConfigError(
                f"--allow {name!r} does not import: {type(error).__name__}: {error}.",
                "Name it as its module is imported.",
            ) from error
        if not isinstance(found, type):
            raise ConfigError(f"--allow {name!r}: there is no type {attribute!r} in {module}.")
        known += [name, f"{found.__module__}:{found.__qualname__}"]
    return [*dict.fromkeys(known)]


def imported_files() -> list[str]:
    """Files that were imported so: who is handed objects of their classes in another process has to import them too."""
    found = [module.__file__ for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)]
    return [file for file in found if file]
