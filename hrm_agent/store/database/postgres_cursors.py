"""PostgreSQL cursors with the interface of SQLite's, for transactions of one round trip.

Each answer that a transaction waits for is a round trip to the server. Most answers are known in
advance: a row is new, or the newest checkpoint of a thread is the one that this process wrote last.
So the client continues with the expected answer and sends the query as an assertion, which aborts
the transaction on the server if the answer differs (`hrm_agent.store.database.cursors.answered`).
The client waits for the commit only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Self

import psycopg

__all__ = ["PostgresCursor", "ReadTransaction", "sum_of"]


@lru_cache(maxsize=256)
def _translated(query: str) -> Any:
    """Query with psycopg's placeholders."""
    return query.replace("?", "%s").encode()


@lru_cache(maxsize=256)
def _asserting(query: str) -> Any:
    """Assertion that a query of one row and column finds the value of the last parameter. If it
    finds another value, the assertion divides by zero.
    """
    return _translated(
        f"WITH found (value) AS ({query}) SELECT 1 / count(*) FROM found WHERE value IS NOT"
        " DISTINCT FROM ?"
    )


class PostgresCursor:
    """psycopg cursor with the interface of a SQLite cursor.

    `assuming`: `answered` asserts the expected answer instead of waiting for the real one.
    """

    def __init__(self, cursor: psycopg.Cursor[Any], *, assuming: bool = False) -> None:
        self._cursor = cursor
        self._assuming = assuming

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Self:
        self._cursor.execute(_translated(query), values)
        return self

    def executemany(self, query: str, values: Iterable[Sequence[Any]], /) -> Self:
        self._cursor.executemany(_translated(query), list(values))
        return self

    def answered(self, query: str, values: Sequence[Any], expected: tuple[Any]) -> Any:
        """First row of the answer, or the expected one."""
        if not self._assuming:
            return self.execute(query, values).fetchone()
        self._cursor.execute(_asserting(query), (*values, *expected))
        return expected

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()


class ReadTransaction:
    """Cursor of a transaction that begins with its first statement.

    `ask` executes a statement of that transaction. Its answer has a cursor of its own.
    """

    def __init__(self, ask: Callable[[bytes, Sequence[Any]], psycopg.Cursor[Any]]) -> None:
        self.ask = ask
        self._cursor: psycopg.Cursor[Any] | None = None

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Self:
        self._cursor = self.ask(_translated(query), values)
        return self

    def fetchone(self) -> Any:
        return self._cursor.fetchone() if self._cursor else None

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall() if self._cursor else []


def sum_of(cursor: psycopg.Cursor[Any]) -> tuple[int, int]:
    """Number and hash of the rows of an answer, in any order."""
    result = cursor.pgresult
    if result is None:
        return 0, 0
    columns = range(result.nfields)
    rows = (
        tuple([result.get_value(row, column) for column in columns])
        for row in range(result.ntuples)
    )
    return result.ntuples, sum(map(hash, rows))
