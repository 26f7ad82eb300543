"""Access to the databases of stores, SQLite and PostgreSQL, that bypasses the store, as an
intruder's would.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["execute", "is_file", "pass_time", "set_version", "stored_bytes", "version_of"]


def is_file(url: str) -> bool:
    return url.startswith("sqlite:")


def execute(url: str, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement (placeholders `?`) in the database of a store, which may be open. Return
    the rows.
    """
    if is_file(url):
        with closing(sqlite3.connect(_path(url), timeout=30, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.replace("?", "%s").encode(), values)
        return [tuple(map(_plain, row)) for row in cursor.fetchall()] if cursor.description else []


def pass_time(url: str, seconds: float) -> None:
    """Age all leases by a number of seconds, whichever clock they use."""
    execute(url, "UPDATE leases SET expires_at = expires_at - ? WHERE expires_at > 0", (seconds,))


def version_of(url: str) -> int:
    """The schema version on record in a store."""
    return int(
        execute(
            url,
            (
                "PRAGMA user_version"
                if is_file(url)
                else "SELECT value FROM meta WHERE key = 'version'"
            ),
        )[0][0]
    )


def set_version(url: str, version: int) -> None:
    if is_file(url):
        execute(url, f"PRAGMA user_version={version}")
    else:
        execute(url, "UPDATE meta SET value = ? WHERE key = 'version'", (str(version),))


def stored_bytes(url: str) -> bytes:
    """Contents of a store: every field of every table, and for SQLite the bytes of its file and of
    the files beside it.
    """
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if not is_file(url):
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    rows = [
        row for (table,) in execute(url, tables) for row in execute(url, f'SELECT * FROM "{table}"')
    ]
    fields = [
        field if isinstance(field, bytes) else str(field).encode() for row in rows for field in row
    ]
    folder, name = (_path(url).parent, _path(url).name) if is_file(url) else (Path(), "")
    files = [path.read_bytes() for path in folder.glob(f"{name}*")] if name else []
    return b"\x00".join([*fields, *files])


def _path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///").partition("?")[0])


def _plain(field: Any) -> Any:
    return bytes(field) if isinstance(field, memoryview) else field
