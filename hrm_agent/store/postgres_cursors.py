"""Cursors of PostgreSQL that are asked as SQLite's are; and answers that are assumed until a transaction commits.

Each answer that a transaction waits for is a round trip to the server. Most are known beforehand: a row is new, the
newest checkpoint of a thread is the one that this process wrote last. So the question is sent, the expected answer is
taken, and what the server said is looked at once, before the commit (`hrm_agent.store.cursors.answered`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Self

import psycopg

__all__ = ["Assumed", "PostgresCursor", "ReadTransaction", "translated"]


@lru_cache(maxsize=256)
def translated(query: str) -> Any:
    """With psycopg's placeholders."""
    return query.replace("?", "%s").encode()


class Assumed:
    """Questions of a transaction whose answers are not waited for. One for all transactions of a connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._cursors: list[psycopg.Cursor[Any]] = []
        """One for each question, since one cursor has one answer. Making one costs as much as asking."""
        self._asked: list[tuple[psycopg.Cursor[Any], Any, Callable[[Any], Any]]] = []

    def begin(self) -> None:
        """Forget the questions of the transaction before."""
        self._asked.clear()

    def ask(self, query: bytes, values: Sequence[Any], expected: Any, read: Callable[[Any], Any] = tuple) -> None:
        """Send a question. `read` makes of the first row of the answer what `expected` is compared with."""
        if len(self._asked) == len(self._cursors):
            self._cursors.append(self._connection.cursor())
        cursor = self._cursors[len(self._asked)]
        cursor.execute(query, values)
        self._asked.append((cursor, expected, read))

    def refuse_others(self) -> None:
        """Raises `LookupError` where an answer was another than expected."""
        for cursor, expected, read in self._asked:
            row = cursor.fetchone()
            if row is None or read(row) != expected:
                raise LookupError(f"expected {expected}, found {row}")


class PostgresCursor:
    """A psycopg cursor that is asked as a SQLite one is."""

    def __init__(self, cursor: psycopg.Cursor[Any], assumed: Assumed | None = None) -> None:
        self._cursor, self._assumed = cursor, assumed

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Self:
        self._cursor.execute(translated(query), values)
        return self

    def executemany(self, query: str, values: Iterable[Sequence[Any]], /) -> Self:
        self._cursor.executemany(translated(query), list(values))
        return self

    def answered(self, query: str, values: Sequence[Any], expected: tuple[Any, ...]) -> Any:
        """The first row of the answer, or the one that is expected, where the transaction waits for none."""
        if self._assumed is None:
            return self.execute(query, values).fetchone()
        self._assumed.ask(translated(query), values, expected)
        return expected

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()


class ReadTransaction:
    """A transaction that begins with its first statement: until that is answered, any connection will do."""

    def __init__(self, begin: Callable[[bytes, Sequence[Any]], psycopg.Cursor[Any]]) -> None:
        self._begin = begin
        self.cursor: psycopg.Cursor[Any] | None = None

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Self:
        if self.cursor is None:
            self.cursor = self._begin(translated(query), values)
        else:
            self.cursor.execute(translated(query), values)
        return self

    def fetchone(self) -> Any:
        return self.cursor.fetchone() if self.cursor else None

    def fetchall(self) -> list[Any]:
        return self.cursor.fetchall() if self.cursor else []
