"""Protocols of transactions: cursors of both drivers, and work done with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self, TypeVar

__all__ = ["Cursor", "Work", "WriteCursor", "answered", "epoch_of", "placeholders"]

T = TypeVar("T")


class Cursor(Protocol):
    """Read interface that both drivers share. Placeholders are `?`."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Self: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class WriteCursor(Cursor, Protocol):
    """Cursor inside a transaction that writes."""

    def executemany(self, query: str, values: Iterable[Sequence[Any]], /) -> Any: ...


Work = Callable[[WriteCursor], T]


def answered(cursor: Cursor, query: str, values: Sequence[Any], expected: tuple[Any] | None) -> Any:
    """First row of an answer with one column.

    `expected`: row that the answer almost certainly is (None if unknown). A cursor with a round
    trip per answer returns this row at once. If the real answer differs, the whole transaction is
    repeated.
    """
    assuming = getattr(cursor, "answered", None) if expected is not None else None
    return (
        cursor.execute(query, values).fetchone()
        if assuming is None
        else assuming(query, values, expected)
    )


def placeholders(count: int) -> str:
    """Placeholders for `count` values, such as `?, ?, ?`."""
    return ", ".join("?" * count)


def epoch_of(cursor: Cursor) -> str:
    """Epoch of a store (empty in a new one)."""
    row = cursor.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    return str(row[0]) if row else ""
