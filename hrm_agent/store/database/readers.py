"""Connections for reading a PostgreSQL store.

A reader takes an idle connection, or connects in its own thread. So an unreachable server refuses
the reader at once, and the store decides how long to retry, as with its writer. A pool that
connects in its own thread, at its own times, would delay the reader by a whole timeout, and by the
rest of a grown pause when the server is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from hrm_agent.errors import StoreError

__all__ = ["Connection", "Readers"]

Connection = psycopg.Connection[Any]


class Readers:
    """Pool of at most `most` connections. They stay open for the next reader."""

    def __init__(self, connect: Callable[[], Connection], most: int, seconds: float) -> None:
        """`seconds`: time limit for a reader to wait if all connections are taken."""
        self._connect, self._most, self._seconds = connect, most, seconds
        self._places = threading.BoundedSemaphore(most)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Connection:
        """Take a connection until `give`. Raises the errors of connecting, or `StoreError`."""
        if not self._places.acquire(timeout=self._seconds):
            raise StoreError(
                f"All {self._most} connections for reading have been taken for {self._seconds:.0f}"
                " seconds.",
                "Read in fewer threads at a time, and finish each iteration over the store.",
            )
        try:
            with self._lock:
                if self._closed:
                    raise psycopg.ProgrammingError("it was closed")
                found = self._idle.pop() if self._idle else None
            return found or self._connect()
        except BaseException:
            self._places.release()
            raise

    def give(self, connection: Connection) -> None:
        """Return a connection. It is closed if it is lost or inside a transaction."""
        with self._lock:
            usable = (
                connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                and not self._closed
            )
            if usable:
                self._idle.append(connection)
        if not usable:
            _end(connection)
        self._places.release()

    def forget(self) -> None:
        """Close idle connections. If one was lost, all may be."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _end(connection)

    def close(self) -> None:
        """Close all connections. Taken ones are closed when they are returned."""
        self._closed = True
        self.forget()


def _end(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()
