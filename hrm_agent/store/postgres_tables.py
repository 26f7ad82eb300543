"""The tables of a PostgreSQL store: making them, and adding what one that was made earlier lacks."""

from __future__ import annotations

from typing import Any

import psycopg

from hrm_agent.store.tables import (
    FIRST_FORWARD,
    FIRST_TABLE,
    LATER_COLUMNS,
    LATER_INDEXES,
    STORE_VERSION,
    schema,
    table_names,
)

__all__ = ["POSTGRES_TYPES", "bring_forward", "is_complete", "missing_tables", "stored_version"]

POSTGRES_TYPES = {
    "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "bytes": "BYTEA",
    "integer": "BIGINT",
    "real": "DOUBLE PRECISION",
    "binary": 'COLLATE "C"',
    "clustered": "",
}
"""Types of columns, as `tables.schema` takes them."""


def stored_version(cursor: psycopg.Cursor[Any]) -> int | None:
    """The schema version of the store that a database holds; None where it holds none."""
    # Not by `to_regclass`: within one transaction it goes on saying no, after another process has made the table.
    found = "SELECT 1 FROM pg_class WHERE relname = %s AND pg_table_is_visible(oid)"
    if cursor.execute(found, (FIRST_TABLE,)).fetchone() is None:
        return None
    return int((cursor.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() or (0,))[0])


def bring_forward(cursor: psycopg.Cursor[Any]) -> int:
    """Make the tables in a new database, and what this version has gained since; returns the version that is stored.

    One of a newer version is left as it is.
    """
    version = stored_version(cursor)
    if version is None:
        _make_tables(cursor)
        cursor.execute("INSERT INTO meta (key, value) VALUES ('version', %s)", (str(STORE_VERSION),))
        return STORE_VERSION
    if FIRST_FORWARD <= version <= STORE_VERSION and not is_complete(cursor):
        _make_tables(cursor)
        for table, column, type_ in LATER_COLUMNS:
            added = f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {type_.format(**POSTGRES_TYPES)}"
            cursor.execute(added.encode())
    if FIRST_FORWARD <= version < STORE_VERSION:
        cursor.execute("UPDATE meta SET value = %s WHERE key = 'version'", (str(STORE_VERSION),))
        return STORE_VERSION
    return version


def _make_tables(cursor: psycopg.Cursor[Any]) -> None:
    for statement in schema(**POSTGRES_TYPES):
        cursor.execute(statement.encode())


def is_complete(cursor: psycopg.Cursor[Any]) -> bool:
    """Whether all tables, columns and indexes are there; no lock on a table is asked for."""
    wanted = [*((name, "") for name in LATER_INDEXES), *((table, column) for table, column, _ in LATER_COLUMNS)]
    query = (
        "SELECT count(*) FROM unnest(%s::text[], %s::text[]) AS w (t, c) WHERE to_regclass(w.t) IS NOT NULL AND "
        "(w.c = '' OR EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = to_regclass(w.t) AND a.attname = w.c))"
    )
    found = cursor.execute(query, ([t for t, _ in wanted], [c for _, c in wanted])).fetchone()
    return not missing_tables(cursor) and found is not None and found[0] == len(wanted)


def missing_tables(cursor: psycopg.Cursor[Any]) -> set[str]:
    """Tables of this version that the store lacks."""
    query = "SELECT t FROM unnest(%s::text[]) AS t WHERE to_regclass(t) IS NULL"
    return {str(name) for (name,) in cursor.execute(query, (table_names(),)).fetchall()}
