"""The run store: checkpoints and journal of many runs in one database, chosen by its URL."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from urllib.parse import parse_qsl, unquote

import ormsgpack

from hrm_agent.basics.files import read_whole
from hrm_agent.errors import ConfigError, RunError, StoreError
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.database.database import Database
from hrm_agent.store.database.leases import RUN, Lease, Leases, leased
from hrm_agent.store.database.read_only import ReadOnlyDatabase
from hrm_agent.store.database.sqlite import SqliteDatabase
from hrm_agent.store.database.sqlite_read_only import ReadOnlySqlite
from hrm_agent.store.journal import Scorings, StoreJournal, ThreadOptions
from hrm_agent.store.named_servers import shown_url
from hrm_agent.store.threads import copy_rows, lineage, touch_thread
from hrm_agent.store.values.cipher import Cipher, cipher_of

if TYPE_CHECKING:
    from hrm_agent.store.saver import StoreSaver
    from hrm_agent.store.values.blobs import Blobs
    from hrm_agent.store.values.requests import RequestStore

__all__ = ["STORE_POINTER", "RunStore", "ThreadInfo", "file_of", "open_store", "own_run"]

STORE_POINTER = "store.url"
"""File in a run's folder that names its store, where that lies elsewhere."""
_MOST_POINTERS, _POINTER_BYTES = 8, 1 << 16
"""Such files that are followed, of which one may name another, and the size of each."""


class ThreadInfo(NamedTuple):
    """One line of a store's contents."""

    thread_id: str
    """LangGraph's thread."""
    trajectory_id: str | None
    """None for a thread that a graph of one's own was run on without a recorder."""
    run_id: str
    """The collect, eval or training run that asked for it; empty if none did."""
    group_id: str
    """Shared by the rollouts of one task in one step; empty outside of groups."""
    status: str
    """A `RunStatus` as plain text; empty for a thread without a trajectory."""
    updated_at: float
    """Unix time in seconds of its newest checkpoint, or of its start."""


class RunStore:
    """Both halves of a run's record: `checkpointer` for LangGraph, `journal` for calls and
    trajectories.
    """

    def __init__(self, database: Database, cipher: Cipher, allow: Sequence[str] = ()) -> None:
        self.database, self.cipher = database, cipher
        _check_key(database, cipher)
        self.journal = StoreJournal(database, cipher, self._requests)
        self.options = ThreadOptions(database, cipher)
        self.scorings = Scorings(database, cipher)
        self._leases = Leases(database)
        self._allow = allow
        self._checkpointer: StoreSaver | None = None
        self._request_store: RequestStore | None = None
        self._making = threading.Lock()

    @property
    def checkpointer(self) -> StoreSaver:
        """Made when it is first asked for: LangGraph takes most of a second to import, and the
        journal needs none.
        """
        with self._making:
            if self._checkpointer is None:
                from hrm_agent.store.saver import StoreSaver
                from hrm_agent.store.values.blobs import Blobs
                from hrm_agent.store.values.serializer import allowed_types

                blobs = Blobs(self.database, self.cipher)
                self._checkpointer = StoreSaver(self.database, blobs, allowed_types(self._allow))
            return self._checkpointer

    def _requests(self) -> RequestStore:
        """Requests share the checkpoints' values, and what this process knows of them."""
        if self._request_store is None:
            from hrm_agent.store.values.requests import RequestStore
            from hrm_agent.store.values.serializer import StrictSerializer

            self._request_store = RequestStore(
                self.blobs, cast(StrictSerializer, self.checkpointer.serde)
            )
        return self._request_store

    @property
    def blobs(self) -> Blobs:
        """The values that checkpoints refer to."""
        return self.checkpointer.blobs

    @property
    def url(self) -> str:
        """By which the store is opened again, without a password."""
        return self.database.url

    @property
    def folder(self) -> Path:
        """Where side files of its runs lie."""
        return self.database.folder

    @property
    def path(self) -> Path:
        """The file of a SQLite store. Raises `StoreError` for another."""
        if self.database.path is None:
            raise StoreError(f"{self.url} is not a file.", "Use a SQLite store: sqlite:///PATH.")
        return self.database.path

    def lease(
        self, thread_id: str, doing: str = RUN, *, joins: bool = False
    ) -> AbstractContextManager[Lease]:
        """Hold a thread while a run is on it, or something else is done with it. Raises `RunError`
        where another is.

        Inside the block, writes to the thread raise `LeaseLostError` once another process has taken
        it over. `joins`: checkpoints and `python` calls are not committed one by one, but with the
        model call that follows, or some milliseconds later.
        """
        return self._leases.hold(thread_id, doing, joins=joins)

    def leases_ahead(self, thread_ids: Sequence[str]) -> AbstractContextManager[None]:
        """For threads that are run inside the block, in about this order: their leases are taken
        many at a time.
        """
        return self._leases.ahead(thread_ids)

    @property
    def owner(self) -> str:
        """By which this opening of the store owns leases."""
        return self.database.fence.owner

    def take_leases_from(self, owner: str) -> None:
        """Of a process that is known to be dead, perhaps on another machine: its threads can be
        taken up at once.
        """
        self._leases.take_from(owner)

    def fork_thread(self, source: str, target: str, checkpoint_id: str) -> None:
        """Begin the thread `target` with the lineage of `source` up to a checkpoint, as if it had
        run there.

        Copied are the checkpoint and its ancestors, with their subgraphs' checkpoints and writes;
        of the chosen checkpoint itself no writes, since what comes after it is to be taken anew.
        Values are shared.
        """

        def fork(cursor: Cursor) -> None:
            line = set(lineage(cursor, source, checkpoint_id))
            wanted = {("", id_) for id_ in line} | _nested(
                cursor, self.cipher, source, line - {checkpoint_id}
            )
            copy_rows(
                cursor, self.cipher, source, target, wanted, without_writes={("", checkpoint_id)}
            )
            touch_thread(cursor, target, time.time())

        self.database.write_once(fork)

    def threads(
        self, *, run_id: str | None = None, status: str | None = None, limit: int | None = None
    ) -> list[ThreadInfo]:
        """The threads of the store, newest first, without reading a single record."""
        given = {
            name: value
            for name, value in (("run_id", run_id), ("status", status))
            if value is not None
        }
        where = " AND ".join(f"{name} = ?" for name in given) or "1 = 1"
        query = (
            "SELECT id, trajectory_id, run_id, group_id, status, updated_at FROM threads WHERE"
            f" {where}"
        )
        query += " ORDER BY updated_at DESC, id" + (
            f" LIMIT {int(limit)}" if limit is not None else ""
        )
        with self.database.read() as cursor:
            return [
                ThreadInfo._make(row)
                for row in cursor.execute(query, list(given.values())).fetchall()
            ]

    def threads_at_work(self) -> set[str]:
        """Ids of threads that are in use by a live process, this one included."""
        with self.database.read() as cursor:
            return leased(self.database, cursor)

    def threads_with_checkpoints(self) -> set[str]:
        """Ids of the threads whose state is on record."""
        with self.database.read() as cursor:
            rows = cursor.execute(
                "SELECT DISTINCT thread_id FROM checkpoints WHERE ns = ?", ("",)
            ).fetchall()
        return {str(thread) for (thread,) in rows}

    def close(self) -> None:
        self._leases.close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_store(
    where: str | Path,
    *,
    create: bool = True,
    key: str | bytes | None = None,
    allow: Sequence[str] = (),
    read_only: bool = False,
) -> RunStore:
    """Open a store by path or URL; a folder means its `store.db`, or the one that its `store.url`
    names.

    A server that a folder names is connected to if it is on this machine, or its host stands in
    PGHOST or in the list HRM_AGENT_STORE_HOSTS.

    `runs/x.db`, `sqlite:///runs/x.db`, `sqlite:///runs/x.db?level=power` (see
    `hrm_agent.store.database.sqlite`), `postgresql://user@host/database`. `key` (base64 of 32
    bytes, or the variable `HRM_AGENT_STORE_KEY`) opens an encrypted store, and makes a new one
    encrypted. `allow` names types (`package.module:Class`) that checkpoints may hold beside those
    that a graph's state declares. `read_only`: of a store that is there, nothing is written, made
    or left beside it, and whatever would write raises `StoreError`.

    Raises `StoreError`; `StoreVersionError` for a store of another schema version.
    """
    cipher = cipher_of(key)
    database = _open_database(str(where), create=create, read_only=read_only)
    try:
        return RunStore(database, cipher, allow)
    except BaseException:
        database.close()
        raise


def _open_database(
    where: str, *, create: bool, read_only: bool, named_by: tuple[Path, ...] = ()
) -> Database:
    """`named_by`: files of folders that have named another store on the way."""
    scheme, separator, rest = where.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        from hrm_agent.store.database.postgres_reading import ReadOnlyPostgres

        if named_by:
            from hrm_agent.store.named_servers import refuse_unknown_server

            refuse_unknown_server(where, named_by[-1])
        if read_only:
            return ReadOnlyPostgres(where)
        from hrm_agent.store.database.postgres import PostgresDatabase

        return PostgresDatabase(where, create=create)
    if separator and (scheme != "sqlite" or not rest.startswith("/")):
        raise StoreError(
            f"{shown_url(where)!r} is not a store that this version can open.",
            "Use a path, sqlite:///PATH or postgresql://HOST/DATABASE.",
        )
    path, given = _path_of(where)
    if (pointer := path / STORE_POINTER).is_file():
        if len(named_by) >= _MOST_POINTERS or pointer.stat().st_size > _POINTER_BYTES:
            raise StoreError(
                f"{pointer} leads to no store.", "Write the URL of the store of this run into it."
            )
        named = read_whole(pointer)
        if named is None:  # after a power cut
            raise StoreError(
                f"{pointer} is empty.", "Write the URL of the store of this run into it."
            )
        return _open_database(
            named, create=create, read_only=read_only, named_by=(*named_by, pointer)
        )
    if unknown := given.keys() - {"level"}:
        raise ConfigError(
            f"A SQLite store has no option {min(unknown)!r}.", "Its options: level=process|power."
        )
    file = path / "store.db" if path.is_dir() else path
    return ReadOnlySqlite(file) if read_only else SqliteDatabase(file, create=create, **given)


def _path_of(where: str) -> tuple[Path, dict[str, str]]:
    """Path and options of a SQLite store."""
    if "://" not in where:
        return Path(where), {}
    text, _, options = where.removeprefix("sqlite:///").partition("?")
    return Path(unquote(text)), dict(parse_qsl(options))


def file_of(where: str) -> Path | None:
    """The file that a store at `where` is, or would be; None for a server's, or a folder that names
    another store.
    """
    if "://" in where and not where.startswith("sqlite:///"):
        return None
    path, _ = _path_of(where)
    if (path / STORE_POINTER).is_file():
        return None
    return path / "store.db" if path.is_dir() else path


def own_run(where: str) -> str | None:
    """Id of the run that a folder is, where others record in its store too; None: all that is in
    the store.
    """
    folder = Path(where)
    if not (folder / STORE_POINTER).is_file():
        return None
    name = read_whole(folder / "run_id")
    if name is None:
        raise RunError(
            f"{folder / 'run_id'} is missing or empty: which of the runs of its store is meant is"
            " not known.",
            f"Name it there: `echo {folder.resolve().name} > {folder / 'run_id'}`, or name the"
            " store itself.",
        )
    return name


_SEALED = b"hrm-agent store"


def _check_key(database: Database, cipher: Cipher) -> None:
    """Note in a new store how it is encrypted; refuse another key, or none, for one that is."""
    query = "SELECT value FROM meta WHERE key = 'cipher'"

    def check(cursor: Cursor) -> Any:
        note = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
        cursor.execute(note, ("epoch", secrets.token_hex(8)))
        cursor.execute(note, ("cipher", f"{cipher.name}:{cipher.seal(_SEALED, 'key').hex()}"))
        return cursor.execute(query).fetchone()

    if isinstance(database, ReadOnlyDatabase):
        row = database.read_once(lambda cursor: cursor.execute(query).fetchone())
    else:
        row = database.add(check)
    if row is None:
        raise StoreError(
            f"In the store {database.url} nothing was ever stored.", "`hrm-agent run TASK` does so."
        )
    name, _, sealed = str(row[0]).partition(":")
    if name == cipher.name == "none":
        return
    if name == "none":
        raise StoreError(
            f"The store {database.url} is not encrypted, but a key was given.",
            "Leave the key out, or copy it: `hrm-agent store copy --help`.",
        )
    if cipher.name == "none":
        raise StoreError(
            f"The store {database.url} is encrypted.",
            "Put its key into the variable HRM_AGENT_STORE_KEY.",
        )
    try:
        cipher.open(bytes.fromhex(sealed), "key")
    except StoreError as error:
        raise StoreError(
            f"The key does not fit the store {database.url}.", "Check HRM_AGENT_STORE_KEY."
        ) from error


def _nested(
    cursor: Cursor, cipher: Cipher, thread_id: str, steps: set[str]
) -> set[tuple[str, str]]:
    """Namespace and id of the subgraphs' checkpoints that belong to steps of a thread.

    Each names the outermost checkpoint that it was made under. Its namespace would not do: that of
    a subgraph which remembers (`checkpointer=True`) is the same in every step.
    """
    query = "SELECT ns, id, metadata FROM checkpoints WHERE thread_id = ? AND ns <> ''"
    found: set[tuple[str, str]] = set()
    for ns, id_, metadata in cursor.execute(query, (thread_id,)).fetchall():
        facts: dict[str, Any] = ormsgpack.unpackb(
            cipher.open(metadata, thread_id, ns, id_, "metadata")
        )
        if (facts.get("parents") or {}).get("") in steps:
            found.add((ns, id_))
    return found
