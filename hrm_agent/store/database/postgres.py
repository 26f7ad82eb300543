"""A store in PostgreSQL: for more than one machine, or for many writers at once.

Every commit survives a power failure of the server (its `synchronous_commit`, on unless somebody
turned it off). One connection writes for the whole process, and what waits is committed together
(`Committer`); reads have connections of their own (`Readers`). Statements go out in pipeline mode,
without waiting for each answer. Where an answer is all but certain (the epoch, a lease, the newest
checkpoint of a thread that this process writes, that a row is new) the transaction asserts it
instead of asking. Most transactions are thus one round trip; where an assertion fails, the
transaction is rolled back and repeated with real questions
(`hrm_agent.store.database.postgres_cursors`). That is an error in the server's log, so what can be
known to have changed is asked about at once: whoever collects values, or takes over what another
held, tells all that are connected (`NOTIFY`).

A server that restarts in the middle is waited for: each write is idempotent, so work whose commit
was not confirmed is done again on a new connection. Blobs are collected under an advisory lock that
every writer shares.
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
_LOCK = 0x68726D  # "hrm": shared by writers, taken alone by whoever collects
_EPOCH = "SELECT value, ARRAY[]::text[] FROM meta WHERE key = 'epoch'"
_STATE = (
    "SELECT (SELECT value FROM meta WHERE key = 'epoch'), ARRAY(SELECT epoch || ' ' || thread_id"
    " FROM leases WHERE owner = %s AND thread_id = ANY(%s) FOR SHARE)"
)
"""What a transaction begins with: the epoch of values, and which of the leases that it needs are
ours. Nobody takes those over until it ends.
"""
_SAME_EPOCH = "SELECT 1 / count(*) FROM meta WHERE key = 'epoch' AND value = %s"
_SAME_STATE = (
    "WITH ours AS (SELECT 1 FROM leases WHERE owner = %s AND (thread_id, epoch) IN (SELECT * FROM"
    " unnest(%s::text[], %s::bigint[])) FOR SHARE OF leases) SELECT 1 / coalesce((SELECT count(*)"
    " FROM ours) = %s AND value = %s, false)::int FROM meta WHERE key = 'epoch'"
)
"""Assertions of the same: division by zero where the epoch has changed, or a lease is not ours any
more.
"""
_CHANGED = "hrm_agent_changed"
"""Channel of notifications that another process changed rows which this one may rely on."""
_WRITER = "hrm-agent "
"""Prefix of the owner of leases in the name of its writing connection."""


class PostgresDatabase(PostgresReading):
    """One that is written to."""

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
        """Have the next transaction assert nothing: rows of others may have changed."""
        self._notified = True

    def _expects(self) -> bool:
        """Whether a transaction may assert what this process knows."""
        self._writer.pgconn.consume_input()  # notifications since the last transaction
        if self._writer.pgconn.notifies() is not None:
            self._ask_next()
            while self._writer.pgconn.notifies() is not None:
                pass
        notified, self._notified = self._notified, False
        if notified:
            self.likely_heads.clear()
        return bool(self.epoch) and not notified

    def end_writes_of(self, cursor: Cursor, owner: str) -> None:
        """Notify all, and end the owner's session if it was stopped in a transaction, which holds
        locks.
        """
        cursor.execute(f"NOTIFY {_CHANGED}")
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ? "
            "AND usename = current_user AND datname = current_database() AND state <> 'idle'",
            (_WRITER + owner,),
        )

    def _prepare(self, create: bool) -> None:
        """Make the tables in a new database; refuse one of another version. Two processes may do so
        at once.

        Where nothing is to be made, no lock is asked for: a process that was stopped in a
        transaction holds it shared, and behind one that waits for it alone all writers would wait.
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
                    found = stored_version(cursor)  # read again: another process may have done it
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
            return self._part_of_whole(works)

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
        """One transaction. `assuming`: go on with expected answers, which the server compares; else
        wait for each.
        """

        def work_all(cursor: psycopg.Cursor[Any]) -> list[Any]:
            self.transaction += 1
            self.heads = {}
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))
            # A statement of its own: it sees what was committed before the lock was had, not before
            # it was asked for.
            self._ask_state(cursor, needed, assuming=assuming)
            results = [work(PostgresCursor(cursor, assuming=assuming)) for work in works]
            cursor.execute("COMMIT")
            return results

        try:
            results = self._in_pipeline(work_all)
        except BaseException as error:
            self.held.forget()  # what was noted was not written
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
        """The epoch of values, and which of the leases that are needed are ours."""
        owner, keys = self.fence.owner, [lease.key for lease in needed]
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

    def _part_of_whole(self, works: Sequence[Work[Any]]) -> list[Any]:
        self.transaction += 1
        return self._in_pipeline(lambda cursor: [work(PostgresCursor(cursor)) for work in works])

    def _in_pipeline(self, work: Callable[[psycopg.Cursor[Any]], T]) -> T:
        """Raises the error of `work`, not that of an earlier statement, which comes when the
        pipeline ends and which psycopg would print; that one only if the connection is lost.
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
        """Where one connection was lost, all may be: who reads next connects, who writes next asks
        first.
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
