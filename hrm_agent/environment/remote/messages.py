"""Submissions and outcomes as JSON: what a client and a server say to each other.

The server is spoken to by whoever has the token, so what it reads is read strictly: an unknown key, a wrong type, a
number that is none or out of all proportion is refused, and the message names the field. Nothing is ever unpickled.
What a call may ask for is not decided here: that is the environment's business, which says it in a typed outcome.
Fields that stand at their default are left out: a call costs 150 bytes and its code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

from hrm_agent.environment.base import Cell, ExecutionResult, Limits, SessionState, Submission
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = [
    "PROTOCOL",
    "SERVICE",
    "Reader",
    "from_json",
    "parse_result",
    "parse_submission",
    "parse_text",
    "read_object",
    "result_record",
    "submission_record",
    "to_json",
]

SERVICE = "hrm-agent environment"
"""How a server says what it is."""
PROTOCOL = 1
"""Raised with every change that an older client or server would misread."""

_HUGE = 2**60
_SHOWN = 100
"""Characters of a wrong key in an error's message."""
Reader = Callable[[Any, str], Any]
"""(value, name of the field) -> the value as it is used. Raises HrmError."""


def to_json(record: Any) -> str:
    """ASCII: also for text with lone surrogates, which UTF-8 has no form for. Raises HrmError for nan and infinity."""
    try:
        return _ENCODER.encode(record)
    except (ValueError, TypeError) as error:
        raise HrmError(f"The call has no form as JSON: {error}.") from error


def from_json(data: bytes | str) -> Any:
    """Raises HrmError for what is no JSON; nan and infinity are none."""
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:
        raise HrmError(f"The request is no JSON: {error}.") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def submission_record(submission: Submission) -> dict[str, Any]:
    """The JSON form of a call."""
    record = _record(submission)
    if submission.limits != Limits():
        record["limits"] = _record(submission.limits)
    if submission.history is not None:
        record["history"] = [_record(cell) for cell in submission.history]
    return record


def result_record(result: ExecutionResult) -> dict[str, Any]:
    """The JSON form of an outcome."""
    return _record(result)


def _record(value: Any) -> dict[str, Any]:
    given = ((name, getattr(value, name), default) for name, default in _DEFAULTS[type(value)])
    return {name: field for name, field, default in given if field != default}


def parse_submission(value: Any, where: str = "") -> Submission:
    """The call of a JSON value. Raises HrmError, naming the field; `where` goes before its name."""
    return Submission(**read_object(value, where, _SUBMISSION, "code"))


def parse_result(value: Any, where: str = "result") -> ExecutionResult:
    """The outcome of a JSON value. Raises HrmError."""
    return ExecutionResult(**read_object(value, where, _RESULT, "status"))


def parse_text(value: Any, where: str) -> str:
    """Raises HrmError."""
    if type(value) is not str:
        raise HrmError(f"{where}: a text is needed, not {_kind(value)}.")
    return value


def read_object(value: Any, where: str, readers: Mapping[str, Reader], *needed: str) -> dict[str, Any]:
    """The fields of a JSON object, each read by its reader; those in `needed` have to be there. Raises HrmError."""
    if not isinstance(value, dict):
        raise HrmError(f"{where or 'The request'}: an object is needed, not {_kind(value)}.")
    prefix = f"{where}." if where else ""
    found: dict[str, Any] = {}
    for key, item in cast("dict[str, Any]", value).items():
        reader = readers.get(key)
        if reader is None:
            raise HrmError(f"{prefix}{key[:_SHOWN]}: no such field.", f"Fields: {', '.join(readers)}.")
        found[key] = reader(item, prefix + key)
    for key in needed:
        if key not in found:
            raise HrmError(f"{prefix}{key}: missing.")
    return found


def _kind(value: Any) -> str:
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        raise HrmError(f"{where}: a number is needed, not {_kind(value)}.")
    if not -_HUGE <= value <= _HUGE:
        raise HrmError(f"{where}: out of all proportion.")
    return value


def _whole(value: Any, where: str) -> int:
    if type(value) is not int:
        raise HrmError(f"{where}: a whole number is needed, not {_kind(value)}.")
    if not -_HUGE <= value <= _HUGE:
        raise HrmError(f"{where}: out of all proportion.")
    return value


def _or_none(reader: Reader) -> Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _limits(value: Any, where: str) -> Limits:
    return Limits(**read_object(value, where, _LIMITS))


def _cells(value: Any, where: str) -> tuple[Cell, ...]:
    if not isinstance(value, list):
        raise HrmError(f"{where}: a list is needed, not {_kind(value)}.")
    cells = enumerate(cast("list[Any]", value))
    return tuple(Cell(**read_object(cell, f"{where}[{i}]", _CELL, "code")) for i, cell in cells)


def _status(value: Any, where: str) -> ToolStatus:
    try:
        return ToolStatus(value)
    except ValueError:
        raise HrmError(f"{where}: no status of a call.") from None


def _state(value: Any, where: str) -> SessionState:
    try:
        return SessionState(value)
    except ValueError:
        raise HrmError(f"{where}: no state of a session.") from None


_LIMITS: Mapping[str, Reader] = {
    "wall_seconds": _number,
    "cpu_seconds": _number,
    "memory_bytes": _whole,
    "output_bytes": _whole,
}
_CELL: Mapping[str, Reader] = {"code": parse_text, "digest": parse_text}
_SUBMISSION: Mapping[str, Reader] = {
    "code": parse_text,
    "session": _or_none(parse_text),
    "history": _or_none(_cells),
    "limits": _limits,
    "id": _or_none(parse_text),
    "run": parse_text,
    "priority": _whole,
    "deadline_seconds": _or_none(_number),
}
_RESULT: Mapping[str, Reader] = {
    "status": _status,
    "stdout": parse_text,
    "stderr": parse_text,
    "value": _or_none(parse_text),
    "value_json": _or_none(parse_text),
    "duration_seconds": _number,
    "cpu_seconds": _number,
    "peak_memory_bytes": _whole,
    "stdout_bytes": _whole,
    "stderr_bytes": _whole,
    "isolation": parse_text,
    "session": _or_none(_state),
    "queued_seconds": _number,
    "attempt": _whole,
}
_NESTED = {"limits", "history"}
_DEFAULTS: Mapping[type, tuple[tuple[str, Any], ...]] = {
    kind: tuple((field.name, field.default) for field in fields(kind) if field.name not in _NESTED)
    for kind in (Submission, Limits, Cell, ExecutionResult)
}
"""(name, default) of scalar fields, used to leave defaults out. `MISSING` equals nothing, where there is no default."""
