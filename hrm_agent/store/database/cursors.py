"""What transactions are made of: cursors of either driver, and work that is done with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self, TypeVar

__all__ = ["Cursor", "Work", "WriteCursor", "answered", "epoch_of", "placeholders"]

T = TypeVar("T")


class Cursor(Protocol):
    """What both drivers have in common for reading. Placeholders are `?`."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Self: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class WriteCursor(Cursor, Protocol):
    """A cursor inside a transaction that writes."""

    def executemany(self, query: str, values: Iterable[Sequence[Any]], /) -> Any: ...


Work = Callable[[WriteCursor], T]


def answered(cursor: Cursor, query: str, values: Sequence[Any], expected: tuple[Any] | None) -> Any:
    """The first row of the answer, which has one column.

    `expected`: the row that is all but certain, None where it is not known. A cursor for which an
    answer is a round trip returns it at once; if the answer turns out to differ, the whole
    transaction is repeated.
    """
    assuming = getattr(cursor, "answered", None) if expected is not None else None
    return (
        cursor.execute(query, values).fetchone()
        if assuming is None
        else assuming(query, values, expected)
    )


def placeholders(count: int) -> str:
    """`?, ?, ?`"""
    return ", ".join("?" * count)


def epoch_of(cursor: Cursor) -> str:
    """The epoch of a store; empty in one that is being made."""
    row = cursor.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    return str(row[0]) if row else ""
