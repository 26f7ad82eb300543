"""Store in PostgreSQL, for more than one machine or for many parallel writers.

Every commit survives a power failure of the server (its `synchronous_commit`, on by default). One
connection writes for the whole process, and waiting writes are committed together (`Committer`).
Reads have connections of their own (`Readers`). Statements are sent in pipeline mode, without
waiting for each answer. If an answer is almost certain (the epoch, a lease, the newest checkpoint
of a thread that this process writes, a new row), the transaction asserts it instead of asking. So
most transactions are one round trip. If an assertion fails, the transaction is rolled back and
repeated with real queries (`hrm_agent.store.database.postgres_cursors`). The server logs a failed
assertion as an error. To avoid this, a process that collects values, or takes over a lease,
notifies all connected processes (`NOTIFY`), and their next transaction asserts nothing.

A server that restarts is waited for. Each write is idempotent, so unconfirmed work is done again on
a new connection. Blobs are collected under an advisory lock that every writer shares.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from hrm_agent.basics.bounded import remember
from hrm_agent.errors import StoreError, to_install
from hrm_agent.store.database.committer import Committer
from hrm_agent.store.database.cursors import Cursor, Work
from hrm_agent.store.database.fencing import HeldLease, leases_of
from hrm_agent.store.database.postgres_reading import LOST, PostgresReading
from hrm_agent.store.database.tables import STORE_VERSION, note_brought_forward, table_names

try:
    import psycopg

    from hrm_agent.store.database.postgres_cursors import PostgresCursor
    from hrm_agent.store.database.tables import bring_forward, is_complete, stored_version
except ImportError as error:
    raise StoreError(
        "A PostgreSQL store needs psycopg, which is not installed.",
        f"Run `{to_install('postgres')}`.",
    ) from error

__all__ = ["PostgresDatabase"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_LOCK = 0x68726D  # "hrm": shared by writers, exclusive for collecting values
_EPOCH = "SELECT value, ARRAY[]::text[] FROM meta WHERE key = 'epoch'"
_STATE = (
    "SELECT (SELECT value FROM meta WHERE key = 'epoch'), ARRAY(SELECT epoch || ' ' || thread_id"
    " FROM leases WHERE owner = %s AND thread_id = ANY(%s) FOR SHARE)"
)
"""Query at the start of a transaction: the epoch of values, and the needed leases that this process
has. No other process takes those over until the transaction ends.
"""
_SAME_EPOCH = "SELECT 1 / count(*) FROM meta WHERE key = 'epoch' AND value = %s"
_SAME_STATE = (
    "WITH ours AS (SELECT 1 FROM leases WHERE owner = %s AND (thread_id, epoch) IN (SELECT * FROM"
    " unnest(%s::text[], %s::bigint[])) FOR SHARE OF leases) SELECT 1 / coalesce((SELECT count(*)"
    " FROM ours) = %s AND value = %s, false)::int FROM meta WHERE key = 'epoch'"
)
"""Assertions of the epoch and the leases. They divide by zero if the epoch has changed, or a lease
is lost.
"""
_CHANGED = "hrm_agent_changed"
"""Channel for notifications that another process changed rows on which this one may rely."""
_WRITER = "hrm-agent "
"""Prefix of the name of a writing connection, followed by the owner of its leases."""


class PostgresDatabase(PostgresReading):
    """PostgreSQL store for writing."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        super().__init__(url)
        try:
            self._writer = self._connect_writer()
        except psycopg.Error as error:
            raise self.store_error(error) from error
        self._broken = self._doubted = self._notified = False
        self._prepare(create)
        self._exclusive = threading.Lock()
        self._committer = Committer(self._commit)

    def _connect_writer(self) -> psycopg.Connection[Any]:
        connection = self._connect()
        connection.execute(
            "SELECT set_config('application_name', %s, false)", (_WRITER + self.fence.owner,)
        )
        connection.execute(f"LISTEN {_CHANGED}".encode())
        connection.add_notify_handler(lambda _: self._ask_next())
        return connection

    def _ask_next(self) -> None:
        """Make the next transaction assert nothing, as rows of others may have changed."""
        self._notified = True

    def _expects(self) -> bool:
        """True if a transaction may assert what this process knows."""
        self._writer.pgconn.consume_input()  # notifications since the last transaction
        if self._writer.pgconn.notifies() is not None:
            self._ask_next()
            while self._writer.pgconn.notifies() is not None:
                pass
        notified = self._notified
        self._notified = False
        if notified:
            self.likely_heads.clear()
        return bool(self.epoch) and not notified

    def end_writes_of(self, cursor: Cursor, owner: str) -> None:
        """Notify all processes, and end the owner's session if it was stopped in a transaction,
        which holds locks.
        """
        cursor.execute(f"NOTIFY {_CHANGED}")
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ? "
            "AND usename = current_user AND datname = current_database() AND state <> 'idle'",
            (_WRITER + owner,),
        )

    def _prepare(self, create: bool) -> None:
        """Create the tables in a new database, or refuse one of another version. Two processes may
        do so at once.

        No lock is taken if the tables exist: a process that was stopped in a transaction holds the
        lock shared, and all writers would wait behind a process that waits for exclusive access.
        """
        try:
            with self._writer.transaction(), self._writer.cursor() as cursor:
                version = stored_version(cursor)
                is_ready = bool(version) and (
                    version > STORE_VERSION or (version == STORE_VERSION and is_complete(cursor))
                )
            if version is None and not create:
                raise StoreError(
                    f"There is no store at {self.url}.", "`hrm-agent run TASK` makes one."
                )
            if version is None or not is_ready:
                with self._writer.transaction(), self._writer.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                    found = stored_version(cursor)  # another process may have done it
                    version = bring_forward(cursor)
                note_brought_forward(self.url, found or 0)
        except psycopg.Error as error:
            raise self.store_error(error) from error
        self._refuse_newer(version)

    def _submit(self, work: Work[T], *, waits: bool) -> Future[T]:
        return self._committer.submit(work, waits=waits)

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        needed = leases_of(works)
        if self._whole:
            self.transaction += 1
            return self._in_pipeline(
                lambda cursor: [work(PostgresCursor(cursor)) for work in works]
            )

        def transaction() -> list[Any]:
            if self._broken or (self._doubted and not _answers(self._writer)):
                with suppress(psycopg.Error):
                    self._writer.close()
                self._writer = self._connect_writer()
            self._broken = self._doubted = False
            if self._expects():
                try:
                    return self._attempt(works, needed, assuming=True)
                except LOST:
                    raise
                # an expected answer was wrong, or the work itself fails and will fail again
                except Exception:
                    _log.debug(
                        "A transaction is done again with the server's answers.", exc_info=True
                    )
            return self._attempt(works, needed, assuming=False)

        return self.patiently(transaction)

    def _attempt(
        self, works: Sequence[Work[Any]], needed: frozenset[HeldLease], *, assuming: bool
    ) -> list[Any]:
        """Run one transaction. `assuming`: continue with expected answers, which the server checks.
        Otherwise wait for each.
        """

        def work_all(cursor: psycopg.Cursor[Any]) -> list[Any]:
            self.transaction += 1
            self.heads = {}
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))
            # A separate statement, so that it sees commits from before the lock was granted, not
            # only from before it was requested.
            self._ask_state(cursor, needed, assuming=assuming)
            results = [work(PostgresCursor(cursor, assuming=assuming)) for work in works]
            cursor.execute("COMMIT")
            return results

        try:
            results = self._in_pipeline(work_all)
        except BaseException as error:
            self.held.forget()  # noted rows were not written
            with suppress(psycopg.Error):
                self._writer.rollback()
            self._broken = isinstance(error, LOST) or self._writer.closed
            # Ignore results of a closed connection: psycopg may take earlier answers for later
            # ones.
            if self._writer.closed and isinstance(error, Exception) and not isinstance(error, LOST):
                raise psycopg.OperationalError(str(error)) from error
            raise
        for thread_id, head in self.heads.items():
            remember(self.likely_heads, thread_id, head)
        return results

    def _ask_state(
        self, cursor: psycopg.Cursor[Any], needed: frozenset[HeldLease], *, assuming: bool
    ) -> None:
        """Query or assert the epoch of values, and the needed leases that this process has."""
        owner = self.fence.owner
        keys = [lease.key for lease in needed]
        if assuming:
            self.fence.valid = set(needed)
            if needed:
                epochs = [lease.epoch for lease in needed]
                cursor.execute(_SAME_STATE, (owner, keys, epochs, len(needed), self.epoch))
            else:
                cursor.execute(_SAME_EPOCH, (self.epoch,))
            return
        if needed:
            cursor.execute(_STATE, (owner, keys))
        else:
            cursor.execute(_EPOCH)
        self.epoch, ours = cursor.fetchone() or ("", [])
        self.fence.valid = {_lease(text) for text in ours}

    def _in_pipeline(self, work: Callable[[psycopg.Cursor[Any]], T]) -> T:
        """Do `work` in a pipeline, and raise its error. The error of an earlier statement, which
        comes when the pipeline ends and which psycopg would print, is raised only if the connection
        is lost.
        """
        failed: Exception | None = None
        try:
            with self._writer.pipeline(), self._writer.cursor() as cursor:
                try:
                    return work(cursor)
                except Exception as error:
                    failed = error
        except psycopg.Error:
            if failed is None or self._writer.closed:
                raise
        assert failed is not None
        raise failed

    @contextmanager
    def _one_transaction(self) -> Generator[None]:
        try:
            with self._writer.transaction(), self._writer.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))
                self.heads = {}
                yield
        except psycopg.Error as error:
            self._broken = isinstance(error, LOST)
            raise self.store_error(error) from error
        finally:
            self.heads = {}

    def doubt_all(self) -> None:
        """Doubt all connections after one was lost. The next reader connects again, the next writer
        checks first.
        """
        self._doubted = True
        self.readers.forget()

    def lock_thread(self, cursor: Cursor, thread_id: str) -> None:
        cursor.execute("SELECT pg_advisory_xact_lock(?, hashtext(?))", (_LOCK, thread_id))

    def exclusive(self, work: Work[T]) -> T:
        self._refuse_unusable()
        self.flush()

        def alone() -> T:
            with self._exclusive, self._connect() as connection, connection.transaction():
                cursor = connection.cursor()
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                cursor.execute(f"NOTIFY {_CHANGED}".encode())
                return work(PostgresCursor(cursor))

        try:
            return self.patiently(alone)
        finally:
            self.held.forget()

    def vacuum(self) -> None:
        self.flush()
        try:
            with self._connect() as connection:
                for table in table_names():
                    connection.execute(f"VACUUM FULL {table}".encode())
        except psycopg.Error as error:
            raise self.store_error(error) from error

    def _close(self) -> None:
        self._committer.close()
        self.readers.close()
        self._writer.close()


def _lease(text: str) -> HeldLease:
    epoch, _, key = text.partition(" ")
    return HeldLease(key, int(epoch))


def _answers(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True
