"""Command-line flags: argparse with this project's errors and one flag for each key of a config
class.

argparse is used for three reasons. An option is declared once, as a field of a pydantic class. Some
options are open tables (`--context max_turns=6`). An unknown flag gives an error of the same form
as other errors of this program. tyro and typer each support only two of these, and take four to
nine times as long to import.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import types
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hrm_agent.basics.unicode import find_surrogate
from hrm_agent.cli.main import fitted
from hrm_agent.config import (
    BY_MODEL,
    FROM_FILE,
    ONE_BY_ONE,
    Choice,
    ConfigPart,
    build_config,
    merge_values,
    nested_model,
    read_config_file,
    to_toml,
)
from hrm_agent.errors import ConfigError, nearest

__all__ = [
    "Parser",
    "add_config",
    "add_graph_options",
    "as_pairs",
    "config_from",
    "print_config",
    "refuse_broken",
]

Config = TypeVar("Config", bound=BaseModel)
Arguments = argparse.Namespace
_PAIR = re.compile(r"[A-Za-z_][\w.-]*=")
_DEST = "config:"
"""Prefix of the attributes of parsed arguments that belong to the configuration. A command has
other arguments, too.
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help in which lines only break between words. The usage line leaves out options, which are
    listed below it.
    """

    def _format_usage(
        self, usage: str | None, actions: Any, groups: Any, prefix: str | None
    ) -> str:
        if usage is None:
            needed = [action for action in actions if not action.option_strings or action.required]
            words = [self._usage_of(action) for action in needed]
            usage = " ".join(["%(prog)s [OPTIONS]", *words]).replace("%(prog)s", self._prog)
        return super()._format_usage(usage.replace("%", "%%"), actions, groups, prefix)

    def _usage_of(self, action: argparse.Action) -> str:
        flag = f"{action.option_strings[0]} " if action.option_strings else ""
        metavar = self._metavar_formatter(action, str(action.metavar or action.dest))
        return flag + str(self._format_args(action, metavar(1)[0]))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Break a long list of choices into several lines, indented below the first line."""
        text = super()._format_action_invocation(action)
        room = self._width - self._current_indent
        flag, space, choices = text.partition(" ")
        if len(text) <= room or "|" not in choices:
            return text
        lines = (
            fitted(choices.replace("|", "| "), room - len(flag) - 1).replace("| ", "|").split("\n")
        )
        return flag + space + f"\n{' ' * (self._current_indent + len(flag) + 1)}".join(lines)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return fitted(" ".join(text.split()), width).split("\n")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in fitted(text, width - len(indent)).split("\n"))


class _HelpAll(argparse.Action):
    """Action that prints the help with all flags."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        for action, text in parser.rare:
            action.help = text
        parser.epilog = None
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Parser of one command. It knows --json and --debug, and raises `ConfigError` instead of
    exiting. `--help` leaves out rare flags, and `--help-all` shows all flags.
    """

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            f"hrm-agent {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=_Help,
        )
        self.command = command
        self.rare: list[tuple[argparse.Action, str]] = []
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags and exit")
        self.add_argument("--json", action="store_true", help="results as JSON on stdout")
        self.add_argument("--debug", action="store_true", help="show tracebacks")

    def read(
        self, words: Sequence[str], *, surplus: str = "", intermixed: bool = False
    ) -> Arguments:
        """Parse `words`. Raises `ConfigError` for an unknown flag, with the most similar flag as a
        hint.

        `surplus`: hint of the error for a surplus argument. `intermixed`: arguments may follow
        flags.
        """
        parse = self.parse_known_intermixed_args if intermixed else self.parse_known_args
        arguments, unknown = parse(_pairs_apart(words))
        if unknown:
            flag = unknown[0].partition("=")[0]
            what = "flag" if flag.startswith("-") else "argument"
            known = [name for action in self._actions for name in action.option_strings]
            flags = [name for name in known if name.startswith("--")]
            hint = (surplus if what == "argument" else nearest(flag, flags)) or self._see_help()
            raise ConfigError(f"{self.prog} has no {what} {flag!r}.", hint)
        return arguments

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}.", self._see_help())

    def _see_help(self) -> str:
        return f"`{self.prog} --help{'-all' if self.rare else ''}` lists its arguments."


def add_graph_options(parser: Parser, before: str = "") -> None:
    """Add `--config` (or `--configurable`) and `--context`, each with pairs KEY=VALUE, for a
    command without a config class.
    """
    pairs: dict[str, Any] = {"action": _Pairs, "nargs": "*", "metavar": "KEY=VALUE", "default": {}}
    recorded = "[what the run was given]"
    help_ = f"{before}what the graph reads from config['configurable'], over {recorded}"
    parser.add_argument("--config", "--configurable", dest="configurable", help=help_, **pairs)
    parser.add_argument("--context", help=f"{before}options of the graph, over {recorded}", **pairs)


def add_config(
    parser: Parser, model: type[BaseModel], usual: Collection[str] | None = None
) -> None:
    """Add one flag for each key of `model`, `--config FILE` and `--dry-run`.

    `usual`: names of the flags that `--help` shows, without dashes in front (None: all).
    """
    pairs = "configurable" in model.model_fields
    parser.add_argument(
        "--config",
        action=_FileOrPair if pairs else "store",
        type=str if pairs else Path,
        metavar="FILE",
        help="TOML file; flags override it"
        + ("; KEY=VALUE is --configurable KEY=VALUE" if pairs else ""),
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration as TOML and stop"
    )
    _add_fields(parser, model, usual)
    if parser.rare:
        parser.epilog = f"{len(parser.rare)} further flags: `{parser.prog} --help-all`."


def _add_fields(
    parser: Parser,
    model: type[BaseModel],
    usual: Collection[str] | None,
    prefix: str = "",
    flags: str = "",
) -> None:
    """Add flags for the fields of `model`. `prefix`: path of its keys in the configuration.
    `flags`: prefix of the flags.
    """
    group = parser.add_argument_group(f"configuration {prefix}".rstrip(" ."))
    for name, field in model.model_fields.items():
        inner = nested_model(field.annotation)
        if inner is not None:
            part = issubclass(inner, ConfigPart)
            inner_flags = flags if part else f"{flags}{name}."
            _add_fields(parser, inner, usual, f"{prefix}{name}.", inner_flags)
        # a field that is a list of tables gets no flag
        elif not any(nested_model(item) for item in get_args(field.annotation)):
            flag = f"{flags}{name}".replace("_", "-")
            action = group.add_argument(
                f"--{flag}", dest=_DEST + prefix + name, default=None, **_kind(field)
            )
            default = field.get_default(call_default_factory=True, validated_data={})
            shown = (
                "none"
                if default is None
                else json.dumps(default)
                if isinstance(default, dict)
                else str(default)
            )
            shown = BY_MODEL if BY_MODEL in field.metadata else shown
            text = " ".join((field.description or "").split())
            action.help = f"{text} [{shown}]".strip().replace("%", "%%")
            if usual is not None and flag not in usual:
                parser.rare.append((action, action.help))
                action.help = argparse.SUPPRESS


def _kind(field: FieldInfo) -> dict[str, Any]:
    """Argparse options of a flag. Values stay text, since pydantic parses them."""
    annotation = field.annotation
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    if FROM_FILE in field.metadata:
        return {"metavar": "FILE"}
    if get_origin(annotation) in (dict, Mapping):
        return {"action": _Pairs, "nargs": "*", "metavar": "KEY=VALUE"}
    if ONE_BY_ONE in field.metadata:
        return {"action": "append", "metavar": "VALUE"}
    if get_origin(annotation) in (list, tuple):
        return {"nargs": "+", "metavar": "VALUE"}
    for choice in (each for each in field.metadata if isinstance(each, Choice)):
        return {"metavar": "|".join((*choice.names, "FILE:NAME"))}
    return {"metavar": _metavar(annotation)}


def _metavar(annotation: Any) -> str:
    origin = get_origin(annotation)
    options = get_args(annotation)
    if origin is Literal:
        return "|".join(str(option) for option in options)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(option.value) for option in annotation)
    if origin in (Union, types.UnionType):
        return "|".join(
            "none" if option is types.NoneType else _metavar(option) for option in options
        )
    names = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}
    return names.get(annotation, "VALUE")


def _pairs_apart(words: Sequence[str]) -> list[str]:
    """Rewrite `--config a=1 b=2` as `--config a=1 --config b=2`. argparse would take `b=2` as
    another argument, as it must do for a word after `--config FILE`.
    """
    apart = list[str]()
    follows = False
    for number, word in enumerate(words):
        if word == "--":
            return [*apart, *words[number:]]
        given = words[number - 1] == "--config" if number else False
        if follows and not given and _PAIR.match(word):
            apart.append("--config")
        follows = _PAIR.match(word.removeprefix("--config=")) is not None and (
            given or follows or word.startswith("--config=")
        )
        apart.append(word)
    return apart


class _Pairs(argparse.Action):
    """Action that turns `--context max_turns=6 max_tokens=256` into a table. A value is parsed as
    TOML, or else is text.

    `--context` alone gives the empty table.
    """

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        table: dict[str, Any] = dict(getattr(namespace, self.dest) or {})
        for pair in values:
            key, equals, value = pair.partition("=")
            if not equals:
                raise ConfigError(
                    f"{option_string}: {pair!r} is not KEY=VALUE.",
                    f"Write {option_string} {pair}=VALUE.",
                )
            table[key] = _toml_value(value)
        setattr(namespace, self.dest, table)


class _FileOrPair(argparse.Action):
    """Action for `--config FILE`, or any number of `--config KEY=VALUE` for LangGraph's
    `config["configurable"]`.
    """

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        key, equals, value = str(values).partition("=")
        if not equals or Path(values).exists():
            namespace.config = Path(values)
            return
        dest = f"{_DEST}configurable"
        setattr(
            namespace, dest, {**(getattr(namespace, dest, None) or {}), key: _toml_value(value)}
        )


def _toml_value(text: str) -> Any:
    """Value parsed as TOML or JSON, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return json.loads(text)
    except ValueError:
        return text


def as_pairs(table: Mapping[str, Any]) -> list[str]:
    """Pairs KEY=VALUE from which `--context` reads the table."""
    texts = {
        key: value if isinstance(value, str) and _toml_value(value) == value else json.dumps(value)
        for key, value in table.items()
    }
    return [f"{key}={text}" for key, text in texts.items()]


def config_from(
    arguments: Arguments, model: type[Config], command: str, base: Mapping[str, Any] | None = None
) -> Config:
    """Configuration of a command: defaults (and `base`), then the file, then the flags."""
    values = {
        **(base or {}),
        **(read_config_file(arguments.config, command) if arguments.config else {}),
    }
    # an error in the file is raised with the file's name
    build_config(model, values, str(arguments.config))
    given: dict[str, Any] = {}
    for dest, value in vars(arguments).items():
        if dest.startswith(_DEST) and value is not None:
            *tables, key = dest.removeprefix(_DEST).split(".")
            inner = given
            for name in tables:
                inner = inner.setdefault(name, {})
            inner[key] = value
    # options replace those of the recorded thread key by key
    if base and given.get("graph", base.get("graph")) == base.get("graph"):
        for table in (name for name in ("configurable", "context") if given.get(name)):
            given[table] = {**values.get(table, {}), **given[table]}
    return build_config(model, merge_values(model, values, given), "from the flags")


def print_config(config: BaseModel, command: str, *, as_json: bool) -> None:
    """Print the configuration for `--dry-run`, as TOML or JSON."""
    print(
        config.model_dump_json(indent=2) if as_json else to_toml(config, command),
        end="\n" if as_json else "",
    )


def refuse_broken(text: str, what: str = "The task") -> None:
    """Raise `ConfigError` for text that was not UTF-8. Python has decoded its bytes to surrogates,
    which no store can hold.
    """
    if find_surrogate(text) is not None:
        raise ConfigError(f"{what} is not UTF-8.", "Convert it, or set the terminal to UTF-8.")
