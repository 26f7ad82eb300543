"""Cause and place of an error that a graph raised.

An error shows where it was raised, not its cause: a parser that is given no JSON raises in the
graph's own code. The cause is found by an experiment. The step is repeated from the checkpoint
before it, with the recorded answers. A chance failure of a machine does not repeat; an error that
follows from the answers does. So an error is attributed to the policy if the policy had answered
before it, if it is not a failure of a machine or a service, and if the same answers lead to the
same error at the same place. (If every rollout of a prompt raises, whatever the policy wrote, the
graph itself is the cause: `hrm_agent.training.select.roc` checks that.)
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator

from hrm_agent.basics.unicode import text_of
from hrm_agent.errors import HrmError, TemplateRefusalError, UnstorableError, place_of
from hrm_agent.trajectory import RunStatus, StopReason, TurnEnd

__all__ = ["is_repeated", "may_follow_from_answers", "run_failed"]

_NAMES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_ERRNOS = frozenset({errno.ENAMETOOLONG, errno.EINVAL})
"""Errors of a wrong name in a request, for which no machine is at fault. Missing permission to read
(EACCES) is not among them.
"""
_SERVICES = frozenset(
    {
        *(
            "aiohttp",
            "anthropic",
            "botocore",
            "google",
            "grpc",
            "httpcore",
            "httpx",
            "huggingface_hub",
            "mcp",
        ),
        *(
            "openai",
            "psycopg",
            "pymongo",
            "redis",
            "requests",
            "sqlalchemy",
            "sqlite3",
            "urllib3",
            "websockets",
        ),
    }
)
"""Packages whose errors mean that a service failed, except those that `_was_asked_amiss`
recognizes.
"""
_AMISS = frozenset(
    {
        *(
            "ProgrammingError",
            "DataError",
            "IntegrityError",
            "NotSupportedError",
            "SyntaxError",
            "NoSuchTableError",
        ),
        # sqlite3's Warning (Python 3.11): two statements in place of one
        *("NoSuchColumnError", "Warning"),
        *(
            "UnsupportedProtocol",
            "InvalidURL",
            "InvalidURI",
            "MissingSchema",
            "InvalidSchema",
            "URLRequired",
        ),
        *("LocationParseError", "LocationValueError", "URLSchemeUnknown", "NonHttpUrlClientError"),
    }
)
"""Class names, in the packages of `_SERVICES`, of errors in the SQL or the URL of a request."""
_NOT_AMISS = frozenset({"InvalidProxyURL", "InsufficientPrivilege"})
"""Subclasses of these errors that are caused by the setup of the machine."""
_REFUSED = frozenset(range(400, 500)) - {401, 403, 407, 408, 425, 429}
"""HTTP statuses of an invalid request, without those of an account, a time limit or a rate
limit.
"""
_SQLITE_AWAY = (
    "locked",
    "locking",
    "busy",
    "disk",
    "unable to open",
    "readonly",
    "i/o",
    "interrupted",
)
"""Words of sqlite3's operational errors that are not about the SQL."""


def may_follow_from_answers(error: Exception) -> bool:
    """False for a failure of a machine or a service, or an error that such a failure led to.

    An error about wrong SQL, or a wrong URL or name, may follow from them: the policy may have
    written it.
    """
    return not any(map(_is_of_a_machine, _led_to(error)))


def _led_to(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the errors that it was raised from or while handling, and members of
    groups.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting += [found.__cause__, None if found.__suppress_context__ else found.__context__]
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions


def _is_of_a_machine(error: BaseException) -> bool:
    if isinstance(error, (TemplateRefusalError, UnstorableError)):
        return False
    if isinstance(error, (MemoryError, HrmError)) or not isinstance(error, Exception):
        return True
    package = type(error).__module__.partition(".")[0]
    if package in _SERVICES:
        return not _was_asked_amiss(error)
    if package == "urllib" and isinstance(error, OSError):
        return not (_is_refused(error) or "unknown url type" in text_of(error))
    if isinstance(error, OSError):
        # other packages number their errors in their own way
        named = package == "builtins" and error.errno in _ERRNOS
        return not (named or isinstance(error, _NAMES))
    return False


def _was_asked_amiss(error: Exception) -> bool:
    """True if a service answered that the request was wrong."""
    wrapped = getattr(error, "orig", None)
    if isinstance(wrapped, Exception):  # sqlalchemy: the driver's own error, whose class says more
        return not _is_of_a_machine(wrapped)
    if isinstance(error, sqlite3.OperationalError):
        # missing if sqlite itself did not raise it
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None:
            return code & 0xFF == sqlite3.SQLITE_ERROR
        return not any(word in text_of(error).lower() for word in _SQLITE_AWAY)
    names = {kind.__name__ for kind in type(error).__mro__}
    return (bool(names & _AMISS) and not names & _NOT_AMISS) or _is_refused(error)


def _is_refused(error: Exception) -> bool:
    """True if the error's HTTP status means an invalid request. The attribute depends on the
    client.
    """
    package = type(error).__module__.partition(".")[0]
    names = ("status_code", "status", *(("code",) if package in {"google", "urllib"} else ()))
    found = [
        getattr(each, name, None)
        for each in (error, getattr(error, "response", None))
        for name in names
    ]
    return any(isinstance(status, int) and status in _REFUSED for status in found)


def is_repeated(first: TurnEnd, second: TurnEnd) -> bool:
    """True if a repeated step raised an error of the same type at the same place. Messages are not
    compared, since they may hold an address.
    """

    def kind(end: TurnEnd) -> tuple[str, str | None]:
        return (end.error or "").partition(":")[0], end.error_at

    return second.status is RunStatus.FAILED and kind(first) == kind(second)


def run_failed(
    error: Exception, reason: StopReason = StopReason.ERROR, answer: str | None = None
) -> TurnEnd:
    """End of a run in which `error` was raised."""
    said = (
        text_of(error)
        if isinstance(error, HrmError)
        else f"{type(error).__name__}: {text_of(error)}"
    )
    return TurnEnd(
        status=RunStatus.FAILED,
        stop_reason=reason,
        error=said,
        error_at=place_of(error),
        answer=answer,
    )
