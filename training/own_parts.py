"""A user's own parts of the algorithm: functions that the configuration names as
`package.module:attribute` or `./file.py:attribute` in place of a built-in choice.

The signature of each part, and the check of what a user's function returns, are beside the built-in
parts: advantages and credit in `hrm_agent.training.update.advantages`, objective and aggregation in
`hrm_agent.training.update.objectives`, selection and penalties in `hrm_agent.training.select.roc`.
docs/algorithms.md lists all of them.

A run stores the SHA-256 of the files. It is not resumed with changed files, since its steps would
be of two algorithms. (Modules that a file imports are not compared.)
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from hrm_agent.basics.files import replacing
from hrm_agent.config import is_own
from hrm_agent.errors import ConfigError, HrmError, RunError, nearest, place_of
from hrm_agent.import_by_name import attribute_by_name
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.metrics import METRICS_FILE, read_metrics

__all__ = [
    "OWN_PARTS_FILE",
    "OwnFunction",
    "digests_of",
    "keep_own_parts",
    "own_parts",
    "part_by_name",
    "refuse_other_parts",
    "refuse_parts_changed_since",
]

OWN_PARTS_FILE = "own-parts.json"
"""File in the run's folder with the SHA-256 of each user's function's file, by key."""
_PARAMETERS = {
    "algorithm": ("candidates", "keep", "rng", "options"),
    "selection": ("positives", "count", "rng", "eps"),
    "penalties": ("trajectory",),
    "advantages": ("rewards", "eps"),
    "credit": ("trajectories", "overlays"),
    "objective": ("tokens", "options"),
    "aggregation": ("loss_K", "tokens", "counts", "options"),
}
"""Keys whose value may be a user's function, with the function's arguments, by position."""
_PAGE = "docs/algorithms.md has what it is given and what it returns."

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """Function of a user. Calling it raises `ConfigError` for whatever the function raises."""

    key: str
    """Key of the configuration that names it, such as advantages."""
    name: str
    """Name in the configuration."""
    function: Callable[..., Any]
    """Imported function."""

    @classmethod
    def load(cls, key: str, name: str) -> OwnFunction:
        """Import the function. Raises `ConfigError` if there is none of this name."""
        found, _ = attribute_by_name(name, f"{key} function", str(Path.cwd()))
        if not callable(found):
            raise ConfigError(f"{key} = {name} is {type(found).__name__}, not a function.", _PAGE)
        own = cls(key, name, cast("Callable[..., Any]", found))
        own._require_parameters()
        return own

    def _require_parameters(self) -> None:
        try:
            signature = inspect.signature(self.function)
        except ValueError:  # a function of C may not tell its signature
            return
        given = _PARAMETERS[self.key]
        try:
            signature.bind(*given)
        except TypeError:
            raise self.wrong(f"takes {signature}, but is called with {', '.join(given)}") from None

    def __call__(self, *given: Any) -> Any:
        try:
            return self.function(*given)
        except HrmError:
            raise
        except Exception as error:  # a user's function may raise anything
            called = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            at = f" at {place_of(error)}" if called else ""
            raise self.wrong(f"raised {type(error).__name__}: {error}{at}") from error

    def wrong(self, what: str) -> ConfigError:
        """Error of this function. `what`: its fault, as the end of a sentence."""
        return ConfigError(f"{self.key} = {self.name} {what}.", _PAGE)

    def number(self, value: Any, of: str) -> float:
        """Finite number that the function returned for the thing `of`."""
        try:
            found = float(value)
        except (TypeError, ValueError):
            raise self.wrong(f"returned {type(value).__name__} for {of}, not a number") from None
        if not math.isfinite(found):
            raise self.wrong(f"returned {found} for {of}")
        return found

    def items(self, value: Any, count: int, of: str) -> list[Any]:
        """List of `count` items that the function returned for the thing `of`."""
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise self.wrong(f"returned {type(value).__name__} for {of}, not a list")
        found = list(cast("Iterable[Any]", value))
        if len(found) != count:
            raise self.wrong(f"returned {len(found)} items for {of}")
        return found


def part_by_name(
    key: str, name: str, built_in: Mapping[str, Part], own: Callable[[OwnFunction], Part]
) -> Part:
    """Part that the configuration's `key` names: one of `built_in`, or a user's function that `own`
    has given the checks of this part.

    Raises `ConfigError` for an unknown name, and for a function that does not import.
    """
    if is_own(name):
        return own(OwnFunction.load(key, name))
    if name not in built_in:
        near = nearest(name, built_in)
        raise ConfigError(
            f"{name!r} is an unknown value of {key}.",
            f"{near} Choices: {', '.join(built_in)}, or a function as ./file.py:name.".strip(),
        )
    return built_in[name]


def own_parts(config: GrpoConfig) -> dict[str, str]:
    """Names of the user's functions in a configuration, by key."""
    values = {**config.select.model_dump(), **config.loss.model_dump()}
    return {key: values[key] for key in _PARAMETERS if is_own(values[key])}


def digests_of(config: GrpoConfig) -> dict[str, str]:
    """SHA-256 of the file of each user's function in a configuration, by key."""
    return {key: _digest(key, name) for key, name in own_parts(config).items()}


def refuse_other_parts(config: GrpoConfig, digests: Mapping[str, str], whose: str) -> None:
    """Raise `RunError` if a user's function has another file here than `digests` say. `whose`:
    place of these digests, for the message.
    """
    found = digests_of(config)
    for key, name in own_parts(config).items():
        if digests.get(key) != found[key]:
            raise RunError(
                f"{name.rpartition(':')[0]} ({key}) differs from the file {whose}, and the steps"
                " would be of two algorithms.",
                "Put the same file there, or begin a new run with another --out.",
            )


def refuse_parts_changed_since(config: GrpoConfig, folder: Path) -> None:
    """Raise `RunError` if steps of the run in `folder` were taken with other files."""
    path = folder / OWN_PARTS_FILE
    if path.exists():
        refuse_other_parts(config, _read(path), f"with which the run in {folder} began")


def keep_own_parts(config: GrpoConfig, folder: Path) -> None:
    """Store the digests of the user's functions in the folder of a run that has taken no step yet.

    Raises `RunError` if steps of the run in `folder` were taken with other files.
    """
    path = folder / OWN_PARTS_FILE
    if path.exists() and read_metrics(folder / METRICS_FILE):
        refuse_parts_changed_since(config, folder)
    elif digests := digests_of(config):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, str]:
    """Stored digests. Raises `RunError` if they cannot be read."""
    try:
        return TypeAdapter(dict[str, str]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(
            f"{path} cannot be read, so the functions with which the run began are unknown.",
            "Restore the file, or begin a new run with another --out.",
        ) from error


def _digest(key: str, name: str) -> str:
    """SHA-256 of the file of a function (of its name if it has no file)."""
    _, module = attribute_by_name(name, f"{key} function", str(Path.cwd()))
    file = getattr(module, "__file__", None)
    content = Path(file).read_bytes() if file else name.encode()
    return hashlib.sha256(content).hexdigest()
