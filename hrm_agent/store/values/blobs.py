"""Writing and reading of values in transactions.

A process remembers which blobs it has seen in the store, and does not hand them in again. A process
that collects blobs without references changes the store's epoch in the same transaction. A writer
that finds another epoch forgets what it knew and encodes again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from hrm_agent.store.database.cursors import Cursor, Work, WriteCursor
from hrm_agent.store.database.database import Database
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.content_addressed import KnownBlobs, ValueWriter
from hrm_agent.store.values.serializer import StrictSerializer
from hrm_agent.store.values.value_reader import Loader, ValueReader, read_values

__all__ = ["Blobs"]

E = TypeVar("E")
T = TypeVar("T")


class Blobs:
    """Values of a store, as known to one process."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self.cipher = cipher
        self._known = KnownBlobs(epoch=database.epoch)
        self._transaction = -1
        self._inserted: set[bytes] = set()

    @property
    def epoch(self) -> str:
        """Newest epoch that this process has seen."""
        return self._known.epoch

    def write(
        self,
        serializer: StrictSerializer,
        encode: Callable[[ValueWriter], E],
        insert: Callable[[WriteCursor, E], T],
        thread_id: str | None = None,
        *,
        waits: bool = False,
    ) -> Future[T]:
        """Store the values that `encode` refers to, and the rows that `insert` makes of the result
        of `encode` for a thread, in one transaction.

        For `waits` see `Database.submit`.
        """
        work, stored = self._work(serializer, encode, insert)
        future = self._database.submit(work, thread_id, waits=waits)
        future.add_done_callback(
            lambda done: None if done.exception() else self._known.add(*stored[-1])
        )
        return future

    def write_later(
        self,
        serializer: StrictSerializer,
        encode: Callable[[ValueWriter], E],
        insert: Callable[[WriteCursor, E], Any],
        thread_id: str | None = None,
        on_done: Callable[[Exception | None], object] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Store values and rows with the next commit (see `write`). Work that refers to these blobs
        before then hands them in again.

        For `on_done` see `DeferredWork`, for `seconds` see `Database.defer`.
        """
        work, stored = self._work(serializer, encode, insert)

        def done(error: Exception | None) -> None:
            if error is None:
                self._known.add(*stored[-1])
            if on_done is not None:
                on_done(error)

        self._database.defer(work, thread_id, done if on_done is not None else None, seconds)

    def _work(
        self,
        serializer: StrictSerializer,
        encode: Callable[[ValueWriter], E],
        insert: Callable[[WriteCursor, E], T],
    ) -> tuple[Work[T], list[tuple[str, list[bytes]]]]:
        """Work of a transaction. For each time it was done, the list has the epoch and the hashes
        that are stored if it was committed.
        """
        known = self._known
        stored = list[tuple[str, list[bytes]]]()
        began = known.epoch
        first = ValueWriter(serializer, known, self.cipher.hash_key, epoch=began)
        encoded = encode(first)

        def work(cursor: WriteCursor) -> T:
            epoch = self._database.epoch
            writer = first
            found = encoded
            if epoch != began:  # `known.epoch` may have changed since
                known.forget(epoch)
                writer = ValueWriter(serializer, known, self.cipher.hash_key, epoch=epoch)
                found = encode(writer)
            # a checkpoint repeats the writes that led to it, which this transaction has inserted
            if self._transaction != self._database.transaction:
                self._transaction = self._database.transaction
                self._inserted = set()
            missing = [blob for hash_, blob in writer.new.items() if hash_ not in self._inserted]
            self._inserted.update(writer.new)
            rows = [
                (blob.hash, blob.kind, self.cipher.seal(blob.data, "blob", blob.hash))
                for blob in missing
            ]
            if rows:
                query = (
                    "INSERT INTO blobs (hash, kind, data) VALUES (?, ?, ?) ON CONFLICT (hash) DO"
                    " NOTHING"
                )
                cursor.executemany(query, rows)
            result = insert(cursor, found)
            stored.append((epoch, list(writer.new)))
            return result

        return work, stored

    def reader(self, cursor: Cursor, serializer: Loader, *, shared: bool) -> ValueReader:
        """Reader of values in the snapshot of `cursor`."""
        return read_values(cursor, self.cipher, serializer, shared=shared, most=None)
