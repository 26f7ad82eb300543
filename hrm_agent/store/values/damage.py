"""What reading a damaged row comes to: one line that names the row, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from pydantic import ValidationError

from hrm_agent.errors import StoreError

__all__ = ["DAMAGED", "OnDamage", "in_a_line", "reading"]

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What code that takes a row for sound runs into where it is not."""
OnDamage = Callable[[str, StoreError], object]
"""Called with the id of a trajectory that cannot be read, and why."""


@contextmanager
def reading(what: str, id_: str) -> Generator[None]:
    """Raises `StoreError` for a record that is not what it should be."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise StoreError(
            f"The {what} {id_} cannot be read: {in_a_line(error)}.",
            "The store was damaged or changed: `hrm-agent store verify` lists where, `hrm-agent"
            " store delete` takes out the threads.",
        ) from error


def in_a_line(error: Exception) -> str:
    """An error in few words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"]
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
