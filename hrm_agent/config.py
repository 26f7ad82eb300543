"""Configurations: one pydantic object per command, filled from a TOML file and then from flags.

The config classes are in `hrm_agent.training.config.commands` and `hrm_agent.runtime.settings`.
This module has the code that they share. An unknown key is refused, with the nearest known key as a
hint. The configuration of a run is saved beside it as `config.toml`, which `--config` reads. A run
is not resumed with a different configuration.

TOML has no null: a key that may be None is written and read as "none".
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hrm_agent.basics.files import replacing
from hrm_agent.errors import ConfigError, RunError, nearest

__all__ = [
    "BY_MODEL",
    "COMMAND_KEY",
    "COMPARED",
    "CONFIG_FILE",
    "FROM_FILE",
    "ONE_BY_ONE",
    "ON_RECORD",
    "Choice",
    "ConfigPart",
    "attribute_of",
    "build_config",
    "changed_keys",
    "compare_on_resume",
    "in_tables",
    "is_own",
    "merge_values",
    "nested_model",
    "read_config_file",
    "read_config_text",
    "save_config",
    "secret_in",
    "to_toml",
    "without_secrets",
]

CONFIG_FILE = "config.toml"
COMMAND_KEY = "command"
"""Key that names the command of a config file. It is optional, and always set in a saved file."""

COMPARED = "compared"
"""Context in which two configurations are compared: an unset key counts as its default."""
ON_RECORD = "on record"
"""Context in which a config class is built from the values of a run on record."""

ONE_BY_ONE = "one by one"
"""Marks a list whose flag takes one item and can be repeated. So an argument that follows the item
is not read as another item.
"""

FROM_FILE = "from file"
"""Marks a table whose flag takes a file to read it from. The table itself is kept."""

BY_MODEL = "by model"
"""Marks a key whose default depends on the model. It is None until the model is known."""


def is_own(name: object) -> bool:
    """True if a name is that of a user's function: `package.module:attribute` or
    `./file.py:attribute`.
    """
    return isinstance(name, str) and ":" in name


def attribute_of(name: str) -> str:
    """Attribute in the name of a user's function (unchanged for a built-in name)."""
    return name.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Choice:
    """Marks a key whose value is one of `names`, or the name of a user's function (`is_own`)."""

    names: tuple[str, ...]
    """Built-in names."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def _known(self, value: str | None) -> str | None:
        if value is None or value in self.names or is_own(value):
            return value
        raise PydanticCustomError(
            "choice",
            "Input should be {names} or a function as ./file.py:name",
            {"names": ", ".join(map(repr, self.names))},
        )


Config = TypeVar("Config", bound=BaseModel)

_SECRET = re.compile(
    r"(?:^|_)(?:api_?key|secret|secret_?(?:access_?)?key|password|passwd|passphrase|pwd|credentials?|private_?key"
    r"|authorization|(?:access|auth|api|bearer|refresh|session|id|hf|github|gitlab|slack)_?token)$|^token$",
)
_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^a-zA-Z0-9]+")
"""Word boundaries in a name: `openaiApiKey`, `x-api-key`."""
_LOGIN = re.compile(r"\w://[^/?#\s]*:[^/?#\s]*@")
"""Address that contains a password."""
_LEAST_SECRET = 8
"""Minimum number of characters of a secret. Shorter ones may be parts of words."""


def secret_in(context: Mapping[Any, Any]) -> str | None:
    """Dotted path of the first option that is named like a secret or holds an address with a
    password, at any depth (None if there is none).
    """
    for name, value in context.items():
        if _SECRET.search(_JOINT.sub("_", str(name)).lower()) or (
            isinstance(value, str) and _LOGIN.search(value)
        ):
            return str(name)
        inner = value
        if isinstance(value, (list, tuple)):
            inner = dict(enumerate(cast("list[Any]", value)))
        if (
            isinstance(inner, Mapping)
            and (found := secret_in(cast("Mapping[Any, Any]", inner))) is not None
        ):
            return f"{name}.{found}"
    return None


def without_secrets(data: Any) -> Any:
    """Plain data without the values of this process's environment variables that are named like
    secrets. Errors of a program may contain them.
    """
    values = [
        value
        for name, value in os.environ.items()
        if len(value) >= _LEAST_SECRET and _SECRET.search(_JOINT.sub("_", name).lower())
    ]
    return _without(data, sorted(values, key=len, reverse=True)) if values else data


def _without(data: Any, secrets: Sequence[str]) -> Any:
    if isinstance(data, str):
        for secret in secrets:
            data = data.replace(secret, "***")
        return data
    if isinstance(data, Mapping):
        items = cast("Mapping[Any, Any]", data).items()
        return {_without(name, secrets): _without(value, secrets) for name, value in items}
    if isinstance(data, (list, tuple)):
        return [_without(each, secrets) for each in cast("list[Any]", data)]
    return data


class ConfigPart(BaseModel):
    """Table of a configuration. Its keys are unique in the whole configuration, so the flag of a
    key does not have to name the table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def in_tables(
    model: type[BaseModel], values: Mapping[str, Any], renamed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Move each top-level key of `values` that belongs to a table into that table.

    `renamed`: current names of renamed keys.
    """
    renamed = renamed or {}
    tables = {
        key: table
        for table, part in _parts(model).items()
        for key in part.model_fields
        if key not in model.model_fields
    }
    named = {renamed.get(key, key): value for key, value in values.items()}
    lifted: dict[str, Any] = {key: value for key, value in named.items() if key not in tables}
    for key, value in named.items():
        if (table := tables.get(key)) is not None:
            lifted[table] = {**lifted.get(table, {}), key: value}
    return lifted


def _parts(model: type[BaseModel]) -> dict[str, type[ConfigPart]]:
    found = {name: nested_model(field.annotation) for name, field in model.model_fields.items()}
    return {
        name: part
        for name, part in found.items()
        if part is not None and issubclass(part, ConfigPart)
    }


def build_config(
    model: type[Config], values: Mapping[str, Any], where: str, *, on_record: bool = False
) -> Config:
    """Build `model` from plain values over its defaults. `on_record`: the values were saved with a
    run, not given now.

    Raises `ConfigError`, which names `where` the key is and the nearest known key.
    """
    try:
        merged = merge_values(model, model().model_dump(), _from_none(model, values))
        return model.model_validate(merged, context=ON_RECORD if on_record else None)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _config_error(
            model, [str(part) for part in first["loc"]], dict(first), where
        ) from error


def merge_values(
    model: type[BaseModel], old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge `new` into `old`. Tables of a config class are merged key by key.

    Any other table is replaced as a whole, since options of one graph mean nothing to another.
    """
    merged = {**old, **new}
    for key, field in model.model_fields.items():
        inner = nested_model(field.annotation)
        if inner is not None and _is_table(old.get(key)) and _is_table(new.get(key)):
            merged[key] = merge_values(inner, old[key], new[key])
    return merged


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _table(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if _is_table(value) else {}


def _config_error(
    model: type[BaseModel], place: list[str], first: dict[str, Any], where: str
) -> ConfigError:
    name = ".".join(place)
    holder = _model_at(model, place[:-1])
    if first["type"] == "extra_forbidden":
        keys = holder.model_fields
        table = next(
            (table for table, part in _parts(holder).items() if place[-1] in part.model_fields),
            None,
        )
        if table is not None:
            place_in = ".".join([*place[:-1], table])
            return ConfigError(
                f"{name!r} belongs into a table ({where}).", f"Write it below [{place_in}]."
            )
        hint = f"{nearest(place[-1], keys)} Keys: {', '.join(keys)}.".strip()
        return ConfigError(f"There is no key {name!r} ({where}).", hint)
    field = holder.model_fields.get(place[-1]) if place else None
    message = f"{name or model.__name__} ({where}): {first['msg']}, not {first['input']!r}."
    return ConfigError(message, (field.description or "") if field else "")


def _model_at(model: type[BaseModel], place: list[str]) -> type[BaseModel]:
    for name in (each for each in place if not each.isdecimal()):  # numbers of tables
        field = model.model_fields.get(name)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = next((found for kind in kinds if (found := nested_model(kind))), None)
        if inner is None:
            break
        model = inner
    return model


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """Config class that a field holds (None for a plain value)."""
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    )


def _from_none(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the text "none" in `values` by None for keys that allow it."""
    read: dict[str, Any] = {}
    for key, value in values.items():
        field = model.model_fields.get(key)
        inner = nested_model(field.annotation) if field else None
        listed = next(
            filter(None, map(nested_model, get_args(field.annotation) if field else ())), None
        )
        if inner is not None and _is_table(value):
            read[key] = _from_none(inner, _table(value))
        elif listed is not None and isinstance(value, (list, tuple)):
            read[key] = [
                _from_none(listed, _table(item)) if _is_table(item) else item
                for item in cast("list[Any]", value)
            ]
        else:
            may_be_none = field is not None and NoneType in get_args(field.annotation)
            read[key] = None if value == "none" and may_be_none else value
    return read


def read_config_file(path: Path, command: str) -> dict[str, Any]:
    """Read the values of a TOML file. Raises `ConfigError` for a file that cannot be read or is for
    another command.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no file {path}.",
            "`--dry-run` prints a configuration, which you can save to this file. If you meant a"
            " value for the graph, write KEY=VALUE.",
        ) from error
    except (OSError, ValueError) as error:
        raise _no_toml(str(path), error) from error
    return read_config_text(text, command, str(path))


def read_config_text(text: str, command: str, where: str) -> dict[str, Any]:
    """Parse the text of a config file. `where` names the file in errors. Raises `ConfigError` for
    invalid TOML or another command.
    """
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        raise _no_toml(where, error) from error
    named = values.pop(COMMAND_KEY, command)
    if named != command:
        raise ConfigError(
            f"{where} is for `hrm-agent {named}`.", f"Run `hrm-agent {named} --config {where}`."
        )
    return values


def _no_toml(where: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{where} cannot be read as TOML: {error}.",
        "See https://toml.io, or an example in configs/.",
    )


def to_toml(config: BaseModel, command: str) -> str:
    """Format all keys of `config` with their values as TOML."""
    return tomli_w.dumps({COMMAND_KEY: command, **_without_null(config.model_dump(mode="json"))})


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        values = cast("dict[str, Any]", value)
        return {key: _without_null(item) for key, item in values.items()}
    if isinstance(value, list):
        return [_without_null(item) for item in cast("list[Any]", value)]
    return "none" if value is None else value


def save_config(config: BaseModel, command: str, folder: Path) -> Path:
    """Write `config.toml` beside a run and return its path."""
    path = folder / CONFIG_FILE
    with replacing(path) as part:
        part.write_text(to_toml(config, command), encoding="utf-8")
    return path


def compare_on_resume(
    config: BaseModel, command: str, folder: Path, free: frozenset[str] = frozenset()
) -> None:
    """Raise `RunError` if the run in `folder` was made with other values.

    The keys of `free` may differ. A key of a nested config class is named `outer.key`. A run made
    half with one configuration and half with another would match neither.
    """
    path = folder / CONFIG_FILE
    if path.exists() and (
        changes := changed_keys(config, read_config_file(path, command), str(path), free)
    ):
        raise RunError(
            f"The run in {folder} was started with another configuration ({changes}).",
            f"Resume it with its own configuration by `hrm-agent resume {folder}`, or name another"
            " folder with --out.",
        )


def changed_keys(
    config: BaseModel, values: Mapping[str, Any], where: str, free: frozenset[str] = frozenset()
) -> str:
    """Differences between a configuration and the values at `where`, as text. Keys of `free` are
    ignored.
    """
    before = _leaves(build_config(type(config), values, where, on_record=True))
    now = _leaves(config)
    differing = [key for key in now if now[key] != before[key] and key not in free]
    return "; ".join(f"{key}: {before[key]!r} there, {now[key]!r} now" for key in differing)


def _leaves(config: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Keys of `config` with their values. Keys of a nested config class are named `outer.key`."""
    leaves: dict[str, Any] = {}
    for key, value in config.model_dump(mode="json", context=COMPARED).items():
        inner = getattr(config, key)
        within = isinstance(inner, BaseModel)
        leaves |= _leaves(inner, f"{prefix}{key}.") if within else {f"{prefix}{key}": value}
    return leaves
