"""Messages between a client and a server: submissions and outcomes as JSON values.

Any holder of a token may send messages, so they are read strictly: an unknown key, a wrong type, a
missing field or a number out of bounds is refused, and the error names the field. Data is never
unpickled. The limits of a call are checked by the environment, which reports an invalid limit in a
typed outcome.

Messages are pydantic TypedDicts, not BaseModels. So missing keys stay missing, and defaults are
defined only in `environment.base`. A field with its default value is not sent, so a call takes 150
bytes plus its code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Annotated, Any, Required, TypeVar, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.environment.base import Cell, ExecutionResult, Limits, SessionState, Submission
from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolStatus

__all__ = [
    "MAX_CALLS",
    "MOST_WAIT",
    "PROTOCOL",
    "SERVICE",
    "ForkFields",
    "StreamMessage",
    "listed",
    "parse_batch",
    "parse_fork",
    "parse_result",
    "parse_stream",
    "parse_submission",
    "result_record",
    "submission_record",
]

SERVICE = "hrm-agent environment"
"""Name by which a server identifies itself."""
PROTOCOL = 2
"""Protocol version, raised with every change that an older client or server would misread."""

MAX_CALLS = 10_000
"""Maximum number of items of one batch or stream message, and of earlier cells of one session."""
MOST_WAIT = 7 * 86400.0
"""Longest deadline in seconds. From a longer one, time spent waiting is not subtracted, so that it
stays invalid and the environment refuses it.
"""
_AT_ONCE = 128
"""Number of calls that are parsed before other tasks get a turn."""
_HUGE = 2**60
_SHOWN = 100
"""Maximum number of characters of an unknown key in an error message."""
_STRICT = ConfigDict(strict=True, extra="forbid")
_UNKNOWN, _UNTRUE = "unknown_field", "not_true"
_SAID = {
    "bool_type": "true is needed",
    "dict_type": "an object is needed",
    "enum": "not one of the allowed values",
    "float_type": "a number is needed",
    "greater_than_equal": "out of range",
    "int_type": "a whole number is needed",
    "less_than_equal": "out of range",
    "list_type": "a list is needed",
    "missing": "missing",
    "string_type": "a string is needed",
    "too_long": "more than {max_length} items; send them in several requests",
    _UNKNOWN: "no such field",
    _UNTRUE: "true is needed",
}
"""Error messages by pydantic error type, for users who do not write Python."""
_Fields = TypeVar("_Fields")
_FirstError = Field(fail_fast=True)
"""Setting for lists: pydantic stops at the first error. Half a million errors would take seconds
and half a GiB.
"""
_Number = Annotated[float, Field(ge=-_HUGE, le=_HUGE)]
_Whole = Annotated[int, Field(ge=-_HUGE, le=_HUGE)]


def _has_to_be_true(value: bool) -> bool:
    if not value:
        raise PydanticCustomError(_UNTRUE, "has to be true")
    return value


_True = Annotated[bool, AfterValidator(_has_to_be_true)]
"""Type of fields that must be true. `Literal[True]` would accept 1 as well."""


def _only(fields: Collection[str]) -> BeforeValidator:
    """Validator that stops at the first key of an object that is not in `fields`. pydantic would
    make an error for each unknown key.
    """

    def check(value: object) -> object:
        if isinstance(value, dict):
            for key in cast("dict[str, object]", value):
                if key not in fields:
                    known = {"key": replace_surrogates(key[:_SHOWN]), "fields": ", ".join(fields)}
                    raise PydanticCustomError(_UNKNOWN, "no such field", known)
        return value

    return BeforeValidator(check)


@with_config(_STRICT)
class _LimitsFields(TypedDict, total=False):
    wall_seconds: _Number
    cpu_seconds: _Number
    memory_bytes: _Whole
    output_bytes: _Whole


@with_config(_STRICT)
class _CellFields(TypedDict, total=False):
    code: Required[str]
    digest: str


@with_config(_STRICT)
class _SubmissionFields(TypedDict, total=False):
    code: Required[str]
    session: str | None
    history: (
        Annotated[
            list[Annotated[_CellFields, _only(_CellFields.__annotations__)]],
            _FirstError,
            Field(max_length=MAX_CALLS),
        ]
        | None
    )
    limits: Annotated[_LimitsFields, _only(_LimitsFields.__annotations__)]
    id: str | None
    run: str
    priority: _Whole
    deadline_seconds: _Number | None


@with_config(_STRICT)
class _ResultFields(TypedDict, total=False):
    status: Required[Annotated[ToolStatus, Strict(strict=False)]]
    stdout: str
    stderr: str
    value: str | None
    value_json: str | None
    duration_seconds: _Number
    cpu_seconds: _Number
    peak_memory_bytes: _Whole
    stdout_bytes: _Whole
    stderr_bytes: _Whole
    isolation: str
    session: Annotated[SessionState, Strict(strict=False)] | None
    changed_cells: Annotated[tuple[_Whole, ...], Strict(strict=False)]
    queued_seconds: _Number
    attempt: _Whole
    refused: dict[str, _Whole]


@with_config(_STRICT)
class _BatchFields(TypedDict):
    calls: Annotated[list[Any], Field(max_length=MAX_CALLS)]
    """Submissions, each parsed separately."""


@with_config(_STRICT)
class ForkFields(TypedDict, total=False):
    """Request to make session `target` a copy of `source`."""

    source: Required[str]
    """Name of the session to copy."""
    target: Required[str]
    """Name of the copy."""
    run: str
    """Run that both sessions belong to."""


@with_config(_STRICT)
class _EndFields(TypedDict, total=False):
    session: Required[str]
    run: str


@with_config(_STRICT)
class StreamMessage(TypedDict, total=False):
    """Request of a client on a stream. The answer repeats its `key`."""

    key: Required[int]
    """Number of the request, unique on its connection. For `cancel`: number of the request to
    cancel.
    """
    run: Any
    """Submission. It is parsed when it is started, so that an invalid submission is refused alone
    and the stream stays open.
    """
    cancel: _True
    """True cancels the request with this `key`."""
    fork: Annotated[ForkFields, _only(ForkFields.__annotations__)]
    """Copy a session."""
    end: Annotated[_EndFields, _only(_EndFields.__annotations__)]
    """End a session."""
    metrics: _True
    """True requests the metrics of the environment."""


_SUBMISSION = TypeAdapter[_SubmissionFields](
    Annotated[_SubmissionFields, _only(_SubmissionFields.__annotations__)]
)
_RESULT = TypeAdapter[_ResultFields](Annotated[_ResultFields, _only(_ResultFields.__annotations__)])
_BATCH = TypeAdapter[_BatchFields](Annotated[_BatchFields, _only(_BatchFields.__annotations__)])
_CALLS = TypeAdapter[list[_SubmissionFields]](
    Annotated[
        list[Annotated[_SubmissionFields, _only(_SubmissionFields.__annotations__)]], _FirstError
    ]
)
_FRAME = TypeAdapter[list[Any]](Annotated[list[Any], Strict(), Field(max_length=MAX_CALLS)])
_FORK = TypeAdapter[ForkFields](Annotated[ForkFields, _only(ForkFields.__annotations__)])
_STREAM = TypeAdapter[list[StreamMessage]](
    Annotated[list[Annotated[StreamMessage, _only(StreamMessage.__annotations__)]], _FirstError]
)
_SENT_SUBMISSION, _SENT_RESULT = TypeAdapter(Submission), TypeAdapter(ExecutionResult)


def submission_record(submission: Submission) -> dict[str, Any]:
    """JSON form of a call."""
    return _SENT_SUBMISSION.dump_python(
        submission, exclude={"client"}, exclude_defaults=True, warnings=False
    )


def result_record(result: ExecutionResult) -> dict[str, Any]:
    """JSON form of an outcome."""
    return _SENT_RESULT.dump_python(result, exclude_defaults=True, warnings=False)


def parse_submission(value: Any) -> Submission:
    """Parse a submission. Raises HrmError with the name of the invalid field."""
    return _submission(_read(_SUBMISSION, value))


async def parse_batch(value: Any) -> list[Submission]:
    """Calls of `{"calls": [...]}`. Other tasks get turns during the parsing. Raises HrmError."""
    given = _read(_BATCH, value)["calls"]
    calls = list[Submission]()
    for first in range(0, len(given), _AT_ONCE):
        calls += map(_submission, _read(_CALLS, given[first : first + _AT_ONCE], "calls", first))
        await asyncio.sleep(0)
    return calls


def parse_fork(value: Any) -> ForkFields:
    """Parse a request to fork a session. Raises HrmError."""
    return _read(_FORK, value)


def listed(value: Any) -> list[Any]:
    """Messages of one frame, not parsed yet. Raises HrmError."""
    return _read(_FRAME, value)


def parse_stream(value: list[Any], first: int = 0) -> list[StreamMessage]:
    """Parse messages of one frame. `first`: number of messages of the frame that come before them.
    Raises HrmError.
    """
    return _read(_STREAM, value, first=first)


def parse_result(value: Any) -> ExecutionResult:
    """Parse an outcome. Raises HrmError."""
    return ExecutionResult(**_read(_RESULT, value, "result"))


def _submission(fields: _SubmissionFields) -> Submission:
    given: dict[str, Any] = {**fields}
    if "limits" in fields:
        given["limits"] = Limits(**fields["limits"])
    if (cells := fields.get("history")) is not None:
        given["history"] = tuple(Cell(**cell) for cell in cells)
    return Submission(**given)


def _read(reader: TypeAdapter[_Fields], value: Any, within: str = "", first: int = 0) -> _Fields:
    """Validate a value. `first`: index of the value's first item, if the value is a part of a list.
    Raises HrmError for the first problem. The error does not contain values of the message.
    """
    try:
        return reader.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
    context = problem.get("ctx", {}) if problem["type"] == _UNKNOWN else {}
    place = [
        part + first if isinstance(part, int) and not i else part
        for i, part in enumerate(problem["loc"])
    ]
    path = [*([within] if within else []), *place, *([context["key"]] if context else [])]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN]}" for part in path)
    where = "".join(parts).lstrip(".") or "The request"
    hint = f"Fields: {context['fields']}." if context else ""
    said = _SAID.get(problem["type"], problem["msg"]).format(**problem.get("ctx", {}))
    raise HrmError(f"{where}: {said}.", hint)
