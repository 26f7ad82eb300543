"""Errors for damaged rows: one line that names the row, and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from pydantic import ValidationError

from hrm_agent.errors import StoreError

__all__ = ["DAMAGED", "OnDamage", "in_a_line", "reading"]

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of code that reads a damaged row as if it were valid."""
OnDamage = Callable[[str, StoreError], object]
"""Function called with the id of an unreadable record, and the error."""


@contextmanager
def reading(what: str, id_: str) -> Generator[None]:
    """Raise `StoreError` for an invalid record that is read inside the block."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise StoreError(
            f"The {what} {id_} cannot be read: {in_a_line(error)}.",
            "The store was damaged or changed: `hrm-agent store verify` lists where, `hrm-agent"
            " store delete` takes out the threads.",
        ) from error


def in_a_line(error: Exception) -> str:
    """Short form of an error, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"]
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
