"""Tables of a store, for SQLite and PostgreSQL. They differ only in type names and two clauses.

Every value of a graph's state is a row of `blobs`, under the hash of its bytes. A checkpoint is a
short manifest that refers to them. Columns that may contain users' text are bytes (`manifest`,
`metadata`, `data`, `record`), so that they can be encrypted. Columns for lookups are plain.

The module also has functions that create the tables in PostgreSQL, and add those that an earlier
store lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "FIRST_FORWARD",
    "FIRST_TABLE",
    "LATER_COLUMNS",
    "LATER_INDEXES",
    "POSTGRES_TYPES",
    "STORE_VERSION",
    "bring_forward",
    "is_complete",
    "missing_tables",
    "note_brought_forward",
    "schema",
    "stored_version",
    "table_names",
    "temporary_tables",
]

_log = logging.getLogger(__name__)

STORE_VERSION = 6
"""Current schema version. Version 1 kept LangGraph's own tables beside the journal's. Version 2 had
no separate requests: its programs would not see the calls of hosted models, and would collect the
values of requests. Version 3 had no tools in requests: its programs would take them for messages.
Version 4 had no packed records: its programs would report them as damaged.
"""
FIRST_FORWARD = 2
"""Oldest version that is upgraded when a store is opened for writing. Only tables and columns were
added since. Readers treat missing ones as empty.
"""

FIRST_TABLE = "trajectories"
"""Table in a store of any version, even if its creation was interrupted."""

_TABLES = """
CREATE TABLE IF NOT EXISTS trajectories (
    seq {serial}, id TEXT NOT NULL UNIQUE, run_id TEXT NOT NULL, group_id TEXT NOT NULL, thread_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL, started_at {real} NOT NULL, origin TEXT, record {bytes} NOT NULL
);
CREATE INDEX IF NOT EXISTS trajectories_run ON trajectories (run_id, group_id);
CREATE INDEX IF NOT EXISTS trajectories_origin ON trajectories (origin) WHERE origin IS NOT NULL;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (
    seq {serial}, hash {bytes} NOT NULL UNIQUE, kind {integer} NOT NULL, data {bytes} NOT NULL
);
CREATE TABLE IF NOT EXISTS threads (
    id TEXT PRIMARY KEY, trajectory_id TEXT, run_id TEXT NOT NULL, group_id TEXT NOT NULL, status TEXT NOT NULL,
    created_at {real} NOT NULL, updated_at {real} NOT NULL
);
CREATE TABLE IF NOT EXISTS checkpoints (
    seq {serial}, thread_id TEXT NOT NULL, ns TEXT NOT NULL, id TEXT {binary} NOT NULL,
    parent_id TEXT {binary}, run_id TEXT,
    manifest {bytes} NOT NULL, metadata {bytes} NOT NULL, UNIQUE (thread_id, ns, id)
);
CREATE INDEX IF NOT EXISTS checkpoints_run ON checkpoints (run_id) WHERE run_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS writes (
    thread_id TEXT NOT NULL, ns TEXT NOT NULL, checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL,
    slot {integer} NOT NULL, task_path TEXT NOT NULL, data {bytes} NOT NULL,
    PRIMARY KEY (thread_id, ns, checkpoint_id, task_id, slot)
) {clustered};
CREATE TABLE IF NOT EXISTS calls (
    seq {serial}, id TEXT NOT NULL UNIQUE, thread_id TEXT NOT NULL, task_id TEXT NOT NULL, checkpoint_id TEXT NOT NULL,
    parent TEXT, seed {integer}, record {bytes} NOT NULL
);
CREATE INDEX IF NOT EXISTS calls_task ON calls (thread_id, task_id);
CREATE TABLE IF NOT EXISTS tokens (
    call_id TEXT PRIMARY KEY, token_ids {bytes} NOT NULL, mask {bytes} NOT NULL, logprobs {bytes} NOT NULL
);
CREATE TABLE IF NOT EXISTS requests (call_id TEXT PRIMARY KEY, data {bytes} NOT NULL) {clustered};
CREATE TABLE IF NOT EXISTS tool_calls (
    seq {serial}, id TEXT NOT NULL UNIQUE, thread_id TEXT NOT NULL, checkpoint_id TEXT NOT NULL,
    arguments_hash TEXT NOT NULL, key_hash TEXT, record {bytes} NOT NULL
);
CREATE INDEX IF NOT EXISTS tool_calls_thread ON tool_calls (thread_id, arguments_hash);
CREATE INDEX IF NOT EXISTS tool_calls_key ON tool_calls (thread_id, key_hash) WHERE key_hash IS NOT NULL;
CREATE TABLE IF NOT EXISTS draws (
    thread_id TEXT NOT NULL, task_id TEXT NOT NULL, attempt {integer} NOT NULL, record {bytes} NOT NULL,
    PRIMARY KEY (thread_id, task_id, attempt)
) {clustered};
CREATE TABLE IF NOT EXISTS overlays (
    seq {serial}, run_id TEXT NOT NULL, step {integer} NOT NULL, trajectory_id TEXT NOT NULL, record {bytes} NOT NULL,
    UNIQUE (run_id, trajectory_id)
);
CREATE INDEX IF NOT EXISTS overlays_step ON overlays (run_id, step);
CREATE TABLE IF NOT EXISTS scorings (
    seq {serial}, rubric TEXT NOT NULL, trajectory_id TEXT NOT NULL, record {bytes} NOT NULL,
    UNIQUE (rubric, trajectory_id)
);
CREATE TABLE IF NOT EXISTS leases (
    thread_id TEXT PRIMARY KEY, owner TEXT NOT NULL, process TEXT NOT NULL, expires_at {real} NOT NULL,
    epoch {integer} NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS leases_held ON leases (owner) WHERE expires_at > 0;
CREATE TABLE IF NOT EXISTS options (thread_id TEXT PRIMARY KEY, record {bytes} NOT NULL);
"""

LATER_COLUMNS = (("leases", "epoch", "{integer} NOT NULL DEFAULT 0"),)
"""Table, column and type of columns that version 2 first lacked. They are added when a store is
opened for writing.
"""
LATER_INDEXES = ("overlays_step",)
"""Indexes that version 6 first lacked. They are created when a store is opened for writing. Readers
do not need them.
"""


def schema(**types: str) -> list[str]:
    """Statements that create the tables.

    `types`: column types `serial`, `bytes`, `integer` and `real`, a collation `binary`, and
    `clustered` for a table that is its own index.
    """
    return [
        statement.strip() for statement in _TABLES.format(**types).split(";") if statement.strip()
    ]


def temporary_tables(names: Collection[str], **types: str) -> list[str]:
    """Statements that create some of the tables for one connection, beside those of the store."""
    every = zip(
        table_names(),
        [each for each in schema(**types) if each.startswith("CREATE TABLE")],
        strict=True,
    )
    return [
        each.replace("CREATE TABLE", "CREATE TEMPORARY TABLE", 1)
        for name, each in every
        if name in names
    ]


def note_brought_forward(url: str, version: int) -> None:
    """Log that a store was upgraded to this version. `version`: its previous one (0 for a new
    store).
    """
    if FIRST_FORWARD <= version < STORE_VERSION:
        _log.warning(
            "The store %s had schema version %d and has version %d now: earlier versions of"
            " hrm-agent refuse it.",
            url,
            version,
            STORE_VERSION,
        )


def table_names() -> list[str]:
    """All tables, in the order in which they are created."""
    return [
        statement.split()[5]
        for statement in _TABLES.split(";")
        if statement.strip().startswith("CREATE TABLE")
    ]


POSTGRES_TYPES = {
    "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "bytes": "BYTEA",
    "integer": "BIGINT",
    "real": "DOUBLE PRECISION",
    "binary": 'COLLATE "C"',
    "clustered": "",
}
"""Types of columns for `tables.schema`."""


def stored_version(cursor: psycopg.Cursor[Any]) -> int | None:
    """Schema version of the store in a database (None if it has no store)."""
    # `to_regclass` is no use here: within one transaction it does not see a table that another
    # process has created meanwhile.
    found = "SELECT 1 FROM pg_class WHERE relname = %s AND pg_table_is_visible(oid)"
    if cursor.execute(found, (FIRST_TABLE,)).fetchone() is None:
        return None
    return int(
        (cursor.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() or (0,))[0]
    )


def bring_forward(cursor: psycopg.Cursor[Any]) -> int:
    """Create the tables in a new database, or add those that an older store lacks. Returns the
    stored version.

    A store of a newer version is unchanged.
    """
    version = stored_version(cursor)
    if version is None:
        _make_tables(cursor)
        cursor.execute(
            "INSERT INTO meta (key, value) VALUES ('version', %s)", (str(STORE_VERSION),)
        )
        return STORE_VERSION
    if FIRST_FORWARD <= version <= STORE_VERSION and not is_complete(cursor):
        _make_tables(cursor)
        for table, column, type_ in LATER_COLUMNS:
            added = (
                f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column}"
                f" {type_.format(**POSTGRES_TYPES)}"
            )
            cursor.execute(added.encode())
    if FIRST_FORWARD <= version < STORE_VERSION:
        cursor.execute("UPDATE meta SET value = %s WHERE key = 'version'", (str(STORE_VERSION),))
        return STORE_VERSION
    return version


def _make_tables(cursor: psycopg.Cursor[Any]) -> None:
    for statement in schema(**POSTGRES_TYPES):
        cursor.execute(statement.encode())


def is_complete(cursor: psycopg.Cursor[Any]) -> bool:
    """True if all tables, columns and indexes exist. No table is locked."""
    wanted = [
        *((name, "") for name in LATER_INDEXES),
        *((table, column) for table, column, _ in LATER_COLUMNS),
    ]
    query = (
        "SELECT count(*) FROM unnest(%s::text[], %s::text[]) AS w (t, c) WHERE to_regclass(w.t) IS"
        " NOT NULL AND (w.c = '' OR EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid ="
        " to_regclass(w.t) AND a.attname = w.c))"
    )
    found = cursor.execute(query, ([t for t, _ in wanted], [c for _, c in wanted])).fetchone()
    return not missing_tables(cursor) and found is not None and found[0] == len(wanted)


def missing_tables(cursor: psycopg.Cursor[Any]) -> set[str]:
    """Tables of this version that the store lacks."""
    query = "SELECT t FROM unnest(%s::text[]) AS t WHERE to_regclass(t) IS NULL"
    return {str(name) for (name,) in cursor.execute(query, (table_names(),)).fetchall()}
