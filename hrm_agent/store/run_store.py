"""Run store: checkpoints and journal of many runs in one database, chosen by its URL."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from urllib.parse import parse_qsl, unquote

import ormsgpack

from hrm_agent.basics.files import read_whole
from hrm_agent.errors import ConfigError, RunError, StoreError
from hrm_agent.store.checkpoints.threads import copy_rows, lineage
from hrm_agent.store.database.cursors import Cursor
from hrm_agent.store.database.database import Database
from hrm_agent.store.database.leases import RUN, Lease, Leases, leased
from hrm_agent.store.database.read_only import ReadOnlyDatabase
from hrm_agent.store.database.sqlite import SqliteDatabase
from hrm_agent.store.database.sqlite_read_only import ReadOnlySqlite
from hrm_agent.store.journal.journal import StoreJournal
from hrm_agent.store.journal.scorings import Scorings
from hrm_agent.store.journal.thread_options import ThreadOptions
from hrm_agent.store.values.cipher import Cipher, cipher_of

if TYPE_CHECKING:
    from hrm_agent.store.checkpoints.saver import StoreSaver
    from hrm_agent.store.values.blobs import Blobs
    from hrm_agent.store.values.requests import RequestStore

__all__ = [
    "STORE_POINTER",
    "RunStore",
    "ThreadInfo",
    "file_of",
    "open_store",
    "own_run",
    "shown_url",
]

STORE_POINTER = "store.url"
"""File in a run's folder that names its store, if the store is elsewhere."""
_MOST_POINTERS, _POINTER_BYTES = 8, 1 << 16
"""Limits for pointer files: length of a chain of them, and bytes per file."""


class ThreadInfo(NamedTuple):
    """Summary of one thread in a store."""

    thread_id: str
    """LangGraph's thread id."""
    trajectory_id: str | None
    """Id of the thread's trajectory (None if a custom graph ran on it without a recorder)."""
    run_id: str
    """Collect, eval or training run that started it. Empty if there is none."""
    group_id: str
    """Group of the rollouts of one task in one step. Empty outside of groups."""
    status: str
    """`RunStatus` as plain text. Empty for a thread without a trajectory."""
    updated_at: float
    """Unix time in seconds of its newest checkpoint, or of its start."""


class RunStore:
    """Store of runs: `checkpointer` for LangGraph's checkpoints, `journal` for calls and
    trajectories.
    """

    def __init__(self, database: Database, cipher: Cipher, allow: Sequence[str] = ()) -> None:
        self.database = database
        self.cipher = cipher
        _check_key(database, cipher)
        self.journal = StoreJournal(database, cipher, self._requests)
        self.options = ThreadOptions(database, cipher)
        self.scorings = Scorings(database, cipher)
        self.leases = Leases(database)
        """Leases of threads that this opening of the store has."""
        self._allow = allow
        self._checkpointer: StoreSaver | None = None
        self._request_store: RequestStore | None = None
        self._making = threading.Lock()

    @property
    def checkpointer(self) -> StoreSaver:
        """Checkpointer of the store. It is made on first use: LangGraph takes most of a second to
        import, and the journal does not need it.
        """
        with self._making:
            if self._checkpointer is None:
                from hrm_agent.store.checkpoints.saver import StoreSaver
                from hrm_agent.store.values.blobs import Blobs
                from hrm_agent.store.values.serializer import allowed_types

                blobs = Blobs(self.database, self.cipher)
                self._checkpointer = StoreSaver(self.database, blobs, allowed_types(self._allow))
            return self._checkpointer

    def _requests(self) -> RequestStore:
        """Store of requests. It shares the checkpoints' values, and what this process knows of
        them.
        """
        if self._request_store is None:
            from hrm_agent.store.values.requests import RequestStore
            from hrm_agent.store.values.serializer import StrictSerializer

            self._request_store = RequestStore(
                self.blobs, cast(StrictSerializer, self.checkpointer.serde)
            )
        return self._request_store

    @property
    def blobs(self) -> Blobs:
        """Values that checkpoints refer to."""
        return self.checkpointer.blobs

    @property
    def url(self) -> str:
        """URL that opens the store again, without a password."""
        return self.database.url

    @property
    def folder(self) -> Path:
        """Folder for side files of its runs."""
        return self.database.folder

    @property
    def path(self) -> Path:
        """File of a SQLite store. Raises `StoreError` for another store."""
        if self.database.path is None:
            raise StoreError(f"{self.url} is not a file.", "Use a SQLite store: sqlite:///PATH.")
        return self.database.path

    def lease(
        self, thread_id: str, doing: str = RUN, *, joins: bool = False
    ) -> AbstractContextManager[Lease]:
        """Hold a thread while it is in use, by a run or other work. Raises `RunError` if it is held
        already.

        Inside the block, writes to the thread raise `LeaseLostError` once another process has taken
        it over. `joins`: checkpoints and `python` calls are not committed one by one, but with the
        next model call, or some milliseconds later.
        """
        return self.leases.hold(thread_id, doing, joins=joins)

    @property
    def owner(self) -> str:
        """Id of this opening of the store as an owner of leases."""
        return self.database.fence.owner

    def fork_thread(self, source: str, target: str, checkpoint_id: str) -> None:
        """Start the thread `target` with the lineage of `source` up to a checkpoint, as if it had
        run there.

        Copied are the checkpoint and its ancestors, with their subgraphs' checkpoints and writes.
        The writes of the chosen checkpoint itself are left out, as the steps after it are to run
        again. Values are shared.
        """

        def fork(cursor: Cursor) -> None:
            line = set(lineage(cursor, source, checkpoint_id))
            wanted = {("", id_) for id_ in line} | _nested(
                cursor, self.cipher, source, line - {checkpoint_id}
            )
            copy_rows(
                cursor, self.cipher, source, target, wanted, without_writes={("", checkpoint_id)}
            )

        self.database.write_once(fork)

    def threads(
        self, *, run_id: str | None = None, status: str | None = None, limit: int | None = None
    ) -> list[ThreadInfo]:
        """Threads of the store, newest first, without reading a single record."""
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
        """Ids of threads that a live process is using, this process included."""
        with self.database.read() as cursor:
            return leased(self.database, cursor)

    def threads_with_checkpoints(self) -> set[str]:
        """Ids of the threads that have checkpoints."""
        with self.database.read() as cursor:
            rows = cursor.execute(
                "SELECT DISTINCT thread_id FROM checkpoints WHERE ns = ?", ("",)
            ).fetchall()
        return {str(thread) for (thread,) in rows}

    def close(self) -> None:
        self.leases.close()
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
    """Open a store by path or URL. A folder means its `store.db`, or the store that its `store.url`
    names.

    A server that a folder names is never connected to, since that would send the user's password
    there.

    Accepted are `runs/x.db`, `sqlite:///runs/x.db`, `sqlite:///runs/x.db?level=power` (see
    `hrm_agent.store.database.sqlite`) and `postgresql://user@host/database`. `key` (base64 of 32
    bytes, default: the variable `HRM_AGENT_STORE_KEY`) opens an encrypted store, and makes a new
    one encrypted. `allow` names types (`package.module:Class`) that checkpoints may hold besides
    those that a graph's state declares. `read_only` opens an existing store without writing to it
    or leaving files beside it. Any write then raises `StoreError`.

    Raises `StoreError`, and `StoreVersionError` for a store of another schema version.
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
    """Open the database at a path or URL. `named_by`: pointer files that have led here."""
    scheme, separator, rest = where.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        if named_by:
            raise StoreError(
                f"{named_by[-1]} names a store on a server, {shown_url(where)}; whoever made the"
                " folder wrote that, so that no connection was made.",
                "Name the store's own URL in place of the folder.",
            )
        from hrm_agent.store.database.postgres_reading import ReadOnlyPostgres

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
        if named is None:  # after a power failure
            raise StoreError(
                f"{pointer} is empty.", "Write the URL of the store of this run into it."
            )
        return _open_database(
            named, create=create, read_only=read_only, named_by=(*named_by, pointer)
        )
    if unknown := given.keys() - {"level"}:
        raise ConfigError(
            f"A SQLite store has no option {min(unknown)!r}.",
            "Its only option is level=process|power.",
        )
    file = path / "store.db" if path.is_dir() else path
    return ReadOnlySqlite(file) if read_only else SqliteDatabase(file, create=create, **given)


def shown_url(address: str) -> str:
    """Address for display, without passwords.

    `postgresql://me:secret@host/name?password=secret` becomes `postgresql://me@host/name`. A path
    is unchanged.
    """
    scheme, found, rest = address.partition("://")
    if not found or scheme == "sqlite":
        return address
    # a question mark before the first slash may be part of a password
    mark = rest.find("?", max(rest.find("/"), 0))
    head, query = (rest, "") if mark < 0 else (rest[:mark], rest[mark + 1 :])
    user, at, host = head.rpartition("@")
    kept = [
        each
        for each in query.split("&")
        if each and unquote(each.partition("=")[0]).lower() not in ("password", "sslpassword")
    ]
    return f"{scheme}://{user.partition(':')[0]}{at}{host}" + (f"?{'&'.join(kept)}" if kept else "")


def _path_of(where: str) -> tuple[Path, dict[str, str]]:
    """Path and options of a SQLite store."""
    if "://" not in where:
        return Path(where), {}
    text, _, options = where.removeprefix("sqlite:///").partition("?")
    return Path(unquote(text)), dict(parse_qsl(options))


def file_of(where: str) -> Path | None:
    """File of a store at `where`, existing or not (None for a server, or for a folder that names
    another store).
    """
    if "://" in where and not where.startswith("sqlite:///"):
        return None
    path, _ = _path_of(where)
    if (path / STORE_POINTER).is_file():
        return None
    return path / "store.db" if path.is_dir() else path


def own_run(where: str) -> str | None:
    """Id of the run in a folder, whose store may hold forks and other runs, too (None: the whole
    store is meant, as for a path that is not the folder of a run).

    Raises `RunError` if the folder's `run_id` is missing or empty, although the store is elsewhere.
    """
    folder = Path(where)
    name = read_whole(folder / "run_id") if folder.is_dir() else None
    if name is None and (folder / STORE_POINTER).is_file():
        raise RunError(
            f"{folder / 'run_id'} is missing or empty, so that it is not known which run of the"
            " store is meant.",
            f"Write it there: `echo {folder.resolve().name} > {folder / 'run_id'}`, or name the"
            " store itself.",
        )
    return name


_SEALED = b"hrm-agent store"


def _check_key(database: Database, cipher: Cipher) -> None:
    """Record the encryption of a new store. Raise `StoreError` for a wrong or missing key."""
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
            "Leave the key out, or encrypt a copy: `hrm-agent store copy --help`.",
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
    """Namespaces and ids of the subgraphs' checkpoints that belong to steps of a thread.

    Each of these checkpoints names the outermost checkpoint that it was made under. Its namespace
    does not identify the step: a subgraph with memory (`checkpointer=True`) has the same namespace
    in every step.
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
