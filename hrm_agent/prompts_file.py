"""Prompts files: texts by prompt name, and how they came about, as TOML.

    graph = "reasoning"

    [prompts]
    critic = "..."

    [[changes]]
    prompt = "critic"
    ...

`prompts` is required. `graph`, `evidence` and `changes` are written by `hrm-agent optimize` for
people, and are not read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import tomli_w
from pydantic import BeforeValidator

from hrm_agent.basics.files import replacing
from hrm_agent.config import FROM_FILE
from hrm_agent.errors import ConfigError, nearest

__all__ = ["PromptsByName", "read_prompts_file", "write_prompts_file"]

_KEYS = ("graph", "prompts", "evidence", "changes")
_FORM = "Write texts by name below [prompts], such as critic = '''You are the critic. ...'''."


def read_prompts_file(path: Path) -> dict[str, str]:
    """Texts by name. Raises `ConfigError` for a file that cannot be read, or has another form."""
    if path == Path():
        raise ConfigError("--prompts has no file name.", "Name a file: --prompts prompts.toml.")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"The prompts file {path} cannot be read: {error.strerror}.", "Name a file: --prompts."
        ) from error
    except ValueError as error:
        raise ConfigError(f"The prompts file {path} is not TOML: {error}.", _FORM) from error
    for key in found:
        if key not in _KEYS:
            near = nearest(key, _KEYS)
            raise ConfigError(f"{path} has an unknown key {key!r}. {near}".strip(), _FORM)
    texts: Any = found.get("prompts")
    if not isinstance(texts, dict) or not texts:
        raise ConfigError(f"{path} has no prompts.", _FORM)
    return _texts(texts, str(path))


def write_prompts_file(
    path: Path,
    graph: str,
    texts: Mapping[str, str],
    evidence: Mapping[str, Any],
    changes: Sequence[Mapping[str, Any]],
) -> None:
    """Write a prompts file. Long texts are on lines of their own, so that a diff shows them."""
    content: dict[str, Any] = {"graph": graph, "prompts": dict(texts)}
    content |= {"evidence": dict(evidence)} if evidence else {}
    content |= {"changes": [dict(each) for each in changes]} if changes else {}
    # TOML reads any line end in a text of several lines as a line feed
    lines = not any("\r" in text for text in _strings(content))
    with replacing(path) as part:
        part.write_bytes(tomli_w.dumps(content, multiline_strings=lines).encode())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[Any, Any]", value).values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _strings(each)


def _texts(found: Mapping[Any, Any], where: str) -> dict[str, str]:
    texts = dict[str, str]()
    for name, text in found.items():
        if isinstance(text, Mapping) and text:
            raise ConfigError(
                f"The prompt {name!r} in {where} is a table, not a text.",
                f"""Quote a name that has a dot: '{name}.{next(iter(text))}' = "...".""",  # pyright: ignore[reportUnknownArgumentType]
            )
        if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
            raise ConfigError(f"The prompt {name!r} in {where} is not a text.", _FORM)
        texts[name] = text
    return texts


def _read(given: Any) -> Any:
    if isinstance(given, Mapping):
        return _texts(given, "the configuration")  # pyright: ignore[reportUnknownArgumentType]
    return read_prompts_file(Path(given)) if isinstance(given, str) else given


PromptsByName = Annotated[dict[str, str], BeforeValidator(_read), FROM_FILE]
"""Texts by prompt name. A text in place of the table names a prompts file."""
