"""Reader of untrusted JSON: bounded, without nan by default. Errors name the file and the place in
it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from hrm_agent.errors import StoreError

__all__ = [
    "MOST_BYTES",
    "documents",
    "parsed",
    "printable",
    "refused",
    "refused_field",
    "valid",
    "values",
]

MOST_BYTES = 256 * 2**20
"""Largest document that is read, in bytes: several hundred times the longest run seen so far."""
_DEPTH = 64
"""Deepest nesting that is read. Stores and other programs fail beyond a few hundred levels."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_SPACE = re.compile(r"\S")
Model = TypeVar("Model", bound=BaseModel)


def documents(path: Path, *, nan: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """JSON objects of a file as (place, object): one object over several lines, or one object a
    line.

    `nan`: accept NaN and infinities. Raises `StoreError` for any other value, and for a document
    that is too large or too deep.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(MOST_BYTES + 1)
            if first and not _is_whole(first):
                whole = first + file.read(MOST_BYTES + 1 - len(first))
                yield str(path), _object(parsed(whole, str(path), nan=nan), str(path))
                return
            number = 1
            line = first
            while line:
                if line.strip():
                    place = f"{path}:{number}"
                    yield place, _object(parsed(line, place, nan=nan), place)
                number = number + 1
                line = file.readline(MOST_BYTES + 1)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}.", "Name a file of runs.") from error


def values(path: Path) -> Iterator[tuple[str, Any]]:
    """JSON values of a file as (place, value): one a line, or one after the other over several
    lines. Raises `StoreError` for text that is not JSON.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(MOST_BYTES + 1)
            if first and not _is_whole(first):
                yield from _sequence(first + file.read(MOST_BYTES + 1 - len(first)), path)
                return
            number = 1
            line = first
            while line:
                if line.strip():
                    yield f"{path}:{number}", parsed(line, f"{path}:{number}")
                number = number + 1
                line = file.readline(MOST_BYTES + 1)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}.", "Name a file of traces.") from error


def _sequence(data: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    if len(data) > MOST_BYTES:
        refused(str(path), "", f"it is larger than {MOST_BYTES // 2**20} MiB")
    place = str(path)
    try:
        text = data.decode("utf-8-sig")
        at = _after_space(text, 0)
        line = 1
        begin = 0
        while at < len(text):
            line += text.count("\n", begin, at)
            begin = at
            place = f"{path}:{line}"
            value, at = _STRICT.raw_decode(text, at)
            yield place, _checked(value, place)
            at = _after_space(text, at)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{place} is not JSON: {error}.", "Export it again, or correct it."
        ) from error


def _after_space(text: str, at: int) -> int:
    found = _NO_SPACE.search(text, at)
    return found.start() if found else len(text)


def parsed(data: bytes, place: str, *, nan: bool = False) -> Any:
    """JSON value of `data`. `nan`: accept NaN and infinities, which some programs write."""
    if len(data) > MOST_BYTES:
        refused(place, "", f"it is larger than {MOST_BYTES // 2**20} MiB")
    try:
        value = (_LENIENT if nan else _STRICT).decode(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{place} is not JSON: {error}.", "Export it again, or correct it."
        ) from error
    return _checked(value, place)


def valid(
    model: type[Model], value: Any, place: str, at: str = "", *, strict: bool | None = None
) -> Model:
    """`value` as a record. Raises `StoreError` naming the invalid field. `at`: path of `value` in
    the document. `strict`: convert no types (None: as the model says).
    """
    try:
        return model.model_validate(value, strict=strict)
    except ValidationError as error:
        refused_field(error, place, at)


def refused_field(error: ValidationError, place: str, at: str = "") -> NoReturn:
    """Raise `StoreError` naming the first invalid field. `at`: path of the record in the
    document.
    """
    first = error.errors(include_url=False)[0]
    # Names in a document may be long, so that each is cut.
    for part in first["loc"]:
        at += f"[{part}]" if isinstance(part, int) else f".{part[:80]}" if at else part[:80]
    refused(place, at, first["msg"].removeprefix("Value error, "))


def refused(place: str, at: str, problem: str) -> NoReturn:
    """Raise `StoreError` for `problem` at path `at` of the document in `place`."""
    told = f"{place}: {at}: {problem[:500]}" if at else f"{place}: {problem[:500]}"
    raise StoreError(f"{printable(told).rstrip('.')}.", "Correct the document, or write it again.")


def printable(text: str) -> str:
    """`text` without characters that would move a terminal's cursor or change its colours."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StoreError(
            f"{place} is not a JSON object.", "Each document has to be one object: {...}."
        )
    return value


def _is_whole(line: bytes) -> bool:
    """False for the first of several lines of one JSON value."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return not line.strip()
    return True


def _checked(value: Any, place: str) -> Any:
    """Return `value` if it is not nested too deeply and its texts contain no lone surrogate."""
    level = [value]
    depth = 0
    while level:
        depth += 1
        if depth > _DEPTH:
            refused(place, "", f"it is nested more than {_DEPTH} levels deep")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += [*one.keys(), *one.values()]
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, str) and not one.isascii() and (found := _SURROGATE.search(one)):
                refused(
                    place,
                    "",
                    f"a text contains the lone surrogate {found[0]!r} at {found.start()} of"
                    f" {one[:40]!r}",
                )
        level = inner
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


_STRICT = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_LENIENT = json.JSONDecoder()
