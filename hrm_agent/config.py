"""Configurations: one pydantic object per command, filled from a TOML file and then from flags.

The config classes stand with what they configure (`training.grpo.GrpoConfig`, for example); here is what all of them
share. A key that a class does not have is refused with the nearest one that it has. What a run was started with is
saved beside it as `config.toml`, in the form in which it can be given back by `--config`, and a run is not gone on with
under another one.

TOML has no null: a key that may be None is written and read as "none".
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args

import tomli_w
from pydantic import BaseModel, ValidationError

from hrm_agent.errors import ConfigError, RunError, nearest

__all__ = [
    "COMMAND_KEY",
    "CONFIG_FILE",
    "build_config",
    "compare_on_resume",
    "read_config_file",
    "save_config",
    "to_toml",
]

CONFIG_FILE = "config.toml"
COMMAND_KEY = "command"
"""A config file may say which command it is for; the file saved beside a run always does."""

Config = TypeVar("Config", bound=BaseModel)


def build_config(model: type[Config], values: Mapping[str, Any], where: str) -> Config:
    """`model` from plain values. Raises `ConfigError`, which says `where` the key stands and what was meant perhaps."""
    for key in values:
        if key not in model.model_fields:
            raise ConfigError(
                f"There is no key {key!r} ({where}).",
                f"{nearest(key, model.model_fields)} Keys: {', '.join(model.model_fields)}.".strip(),
            )
    try:
        return model.model_validate({key: _from_none(model, key, value) for key, value in values.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = [str(part) for part in first["loc"]]
        message = f"{'.'.join(place) or model.__name__} ({where}): {first['msg']}, not {first['input']!r}."
        raise ConfigError(message, _meaning(model, place[0]) if place else "") from error


def _from_none(model: type[BaseModel], key: str, value: Any) -> Any:
    return None if value == "none" and _may_be_none(model, key) else value


def _may_be_none(model: type[BaseModel], key: str) -> bool:
    return NoneType in get_args(model.model_fields[key].annotation)


def _meaning(model: type[BaseModel], key: str) -> str:
    field = model.model_fields.get(key)
    return (field.description or "") if field else ""


def read_config_file(path: Path, command: str) -> dict[str, Any]:
    """The values of a TOML file. Raises `ConfigError` for a file that cannot be read, or is for another command."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file {path}.", "configs/ has one for each command.") from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as TOML: {error}.", "See https://toml.io, or a file of configs/."
        ) from error
    named = values.pop(COMMAND_KEY, command)
    if named != command:
        raise ConfigError(f"{path} is for `hrm-agent {named}`.", f"Run `hrm-agent {named} --config {path}`.")
    return values


def to_toml(config: BaseModel, command: str) -> str:
    """All keys of `config` with their values, as TOML."""
    return tomli_w.dumps({COMMAND_KEY: command, **_without_null(config.model_dump(mode="json"))})


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        values = cast("dict[str, Any]", value)
        return {key: _without_null(item) for key, item in values.items()}
    return "none" if value is None else value


def save_config(config: BaseModel, command: str, folder: Path) -> Path:
    """Write `config.toml` beside a run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIG_FILE
    path.write_text(to_toml(config, command), encoding="utf-8")
    return path


def compare_on_resume(config: BaseModel, command: str, folder: Path, free: frozenset[str] = frozenset()) -> None:
    """Raise `RunError` where a run in `folder` was started with other values; the keys of `free` may differ.

    A run of which half was made with one configuration and half with another is not what either of them says.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        return
    before = build_config(type(config), read_config_file(path, command), str(path)).model_dump(mode="json")
    now = config.model_dump(mode="json")
    differing = [key for key in now if now[key] != before[key] and key not in free]
    if differing:
        changes = "; ".join(f"{key}: {before[key]!r} there, {now[key]!r} now" for key in differing)
        raise RunError(
            f"The run in {folder} was started with another configuration ({changes}).",
            f"Go on with it as it was by `hrm-agent resume {folder}`, or name another folder with --out.",
        )
