r"""Readers of the answer in a final text, by name.

| reader | answer |
|---|---|
| `boxed` | the last `\boxed{}` of the last `<answer>`; without `<answer>` the last `\boxed{}` |
| `tag:NAME` | the content of the last `<NAME>...</NAME>` |
| `last_line` | the last line that is not empty |
| `last_number` | the last number |
| `json:a.b.0` | a value of the last JSON object in the text, by keys and indices |
| `regex:PATTERN` | the first group of the last match, or the whole match |
| `text` | the whole text |

Only the model's own words are read (`hrm_agent.answers.final_answer.own_text`): reasoning, tool
calls and forged tool responses are not answers. Only the end of a long text is read. A search has a
time limit (`hrm_agent.rewards.bounded_call`), so a pattern that backtracks without end finds no
answer.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from hrm_agent.answers.final_answer import final_answer, own_text, stated_value
from hrm_agent.answers.json_repair import json_values
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.rewards.bounded_call import ExceededError, bounded_call

__all__ = ["Reader", "last_match", "reader_of"]

Reader = Callable[[str], str | None]
"""Function from a final text to the answer in it (None if there is no answer)."""

MAX_CHARACTERS = 2**20
"""Number of characters read from the end of a text. The rest is ignored."""
_NUMBER = re.compile(
    r"(?:(?<![\w.])[-+−])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"
    r"(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d+)?"
)


def reader_of(spec: str | Reader) -> Reader:
    """Reader for a name, or the function itself. Raises `ConfigError`."""
    if callable(spec):
        return spec
    name, _, rest = spec.partition(":")
    if name in _PLAIN and not rest:
        return partial(_read, _PLAIN[name])
    if name in _WITH and rest:
        return partial(_read, _WITH[name](rest))
    known = [*_PLAIN, *(f"{name}:..." for name in _WITH)]
    hint = f"{nearest(name, [*_PLAIN, *_WITH])} Readers: {', '.join(known)}.".strip()
    raise ConfigError(f"There is no answer reader {spec!r}.", hint)


def _read(reader: Reader, text: str) -> str | None:
    return reader(own_text(text[-MAX_CHARACTERS:]).strip())


def _boxed(text: str) -> str | None:
    return final_answer(text) if "<answer>" in text else stated_value(text)


def _last_line(text: str) -> str | None:
    return text.splitlines()[-1].strip() if text else None


def _last_number(text: str) -> str | None:
    found = deque(_NUMBER.finditer(text), maxlen=1)
    return found[0][0].strip().replace("−", "-") if found else None


def _tag(name: str) -> Reader:
    if not re.fullmatch(r"\w+", name):
        raise ConfigError(
            f"{name!r} is not a valid name of a tag.", "Write tag:answer, for example."
        )
    opening = f"<{name}>"
    closing = f"</{name}>"

    def read(text: str) -> str | None:
        before, closed, _ = text.rpartition(closing)
        _, opened, inside = before.rpartition(opening)
        return inside.strip() if closed and opened else None

    return read


def _regex(pattern: str) -> Reader:
    try:
        compiled = re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ConfigError(
            f"regex:{pattern} is not a valid regular expression: {error}.",
            "See the documentation of Python's `re`.",
        ) from error

    return partial(_found, compiled.pattern)


def _found(pattern: str, text: str) -> str | None:
    """Answer found by a pattern (None if there is none). A search that exceeds its limits finds no
    answer. It is not a fault of the reward: the pattern is the same for all texts, so the text is
    the cause.
    """
    with suppress(ExceededError):
        return bounded_call("hrm_agent.rewards.readers:last_match", pattern, text)
    return None


def last_match(pattern: str, text: str) -> str | None:
    """First group of the last match, or the whole match (None if there is no match). The caller has
    to limit the time.
    """
    compiled = re.compile(pattern, re.MULTILINE)
    matches = deque(compiled.finditer(text), maxlen=1)
    if not matches:
        return None
    found = matches[0][1] if compiled.groups else matches[0][0]
    return None if found is None else str(found).strip()


def _json(path: str) -> Reader:
    keys = path.split(".")

    def read(text: str) -> str | None:
        for value in json_values(text):
            found = _at(value, keys)
            if found is not None:
                return found if isinstance(found, str) else json.dumps(found)
        return None

    return read


def _at(value: Any, keys: list[str]) -> Any:
    for key in keys:
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(key)
        elif isinstance(value, list) and re.fullmatch(r"-?\d{1,6}", key):
            items = cast("list[Any]", value)
            value = items[int(key)] if -len(items) <= int(key) < len(items) else None
        else:
            return None
    return value


_PLAIN: dict[str, Reader] = {
    "boxed": _boxed,
    "last_line": _last_line,
    "last_number": _last_number,
    "text": lambda text: text or None,
}
_WITH: dict[str, Callable[[str], Reader]] = {"json": _json, "regex": _regex, "tag": _tag}
