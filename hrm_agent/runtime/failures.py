"""Whose doing it was that a graph raised, and where.

An error says where it was raised and not what caused it: a parser that is given no JSON raises in the graph's own code.
The cause is found by an experiment. The step is taken once more from the checkpoint before it, with the answers on
record: what a machine does by chance does not happen twice, what follows from the answers does. So an error is the
policy's doing if the policy had answered before it, if it is not one of a machine or a service, and if the same answers
lead to the same error at the same place. (Where every rollout of a prompt raises, whatever the policy wrote, the graph
does so by itself: `hrm_agent.training.roc` looks at that.)
"""

from __future__ import annotations

from collections.abc import Iterator

from hrm_agent.errors import HrmError, TemplateRefusalError, UnstorableError, place_of
from hrm_agent.trajectory import RunStatus, StopReason, TurnEnd
from hrm_agent.unicode import without_surrogates

__all__ = ["is_repeated", "may_follow_from_answers", "run_failed"]

_NAMES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
"""Errors of a name that something was asked for by: no machine is at fault."""
_SERVICES = frozenset(
    {
        *("aiohttp", "anthropic", "botocore", "google", "grpc", "httpcore", "httpx", "huggingface_hub", "mcp"),
        *("openai", "psycopg", "pymongo", "redis", "requests", "sqlalchemy", "sqlite3", "urllib3", "websockets"),
    }
)
"""Packages whose errors say that a service did not answer as it should."""


def may_follow_from_answers(error: Exception) -> bool:
    """False for what a machine or a service failed at, or an error that such a one led to."""
    return not any(map(_is_of_a_machine, _led_to(error)))


def _led_to(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from or while they were handled."""
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
    if isinstance(error, (TemplateRefusalError, UnstorableError, *_NAMES)):
        return False
    if isinstance(error, (OSError, MemoryError, HrmError)) or not isinstance(error, Exception):
        return True
    return type(error).__module__.partition(".")[0] in _SERVICES


def is_repeated(first: TurnEnd, second: TurnEnd) -> bool:
    """True if a step that was taken twice raised an error of one type at one place. Its words may hold an address."""

    def kind(end: TurnEnd) -> tuple[str, str | None]:
        return (end.error or "").partition(":")[0], end.error_at

    return second.status is RunStatus.FAILED and kind(first) == kind(second)


def run_failed(error: Exception, reason: StopReason = StopReason.ERROR, answer: str | None = None) -> TurnEnd:
    """The end of a run in which `error` was raised."""
    said = without_surrogates(str(error) if isinstance(error, HrmError) else f"{type(error).__name__}: {error}")
    return TurnEnd(status=RunStatus.FAILED, stop_reason=reason, error=said, error_at=place_of(error), answer=answer)
