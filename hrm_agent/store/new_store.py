"""A new store that is filled by one command: it is there as a whole, or not at all.

A file is filled beside its place and renamed at the end. In a database on a server its tables are there at once, and
their rows when the transaction of whoever fills them is committed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hrm_agent.errors import StoreError, StoreFullError
from hrm_agent.store.run_store import RunStore, file_of, open_store
from hrm_agent.store.sqlite import SqliteDatabase

__all__ = ["new_store"]

_BESIDE = ("", "-wal", "-shm", "-journal")


@contextmanager
def new_store(where: str, *, key: str | bytes | None = None, allow: Sequence[str] = ()) -> Generator[RunStore]:
    """A store to be filled inside the block. One that is there already is opened as it is."""
    path = file_of(where)
    if path is None or (path.exists() and path.stat().st_size > 0):
        with open_store(where, key=key, allow=allow) as store:
            yield store
        return
    part = path.with_name(f"{path.name}.part")
    _remove(part)  # of one that was killed
    options = where.partition("?")[1] + where.partition("?")[2] if "://" in where else ""
    try:
        with open_store(f"sqlite:///{part}{options}", key=key, allow=allow) as store:
            yield store
            if isinstance(store.database, SqliteDatabase):
                store.database.empty_log()
        if (log := Path(f"{part}-wal")).exists() and log.stat().st_size > 0:
            raise _full(path)  # rows are in the log alone, and closing says nothing of that
        if path.exists() and path.stat().st_size > 0:
            raise StoreError(f"{path} was made by another process meanwhile.", "Nothing was written. Name another.")
        for suffix in _BESIDE[1:]:  # of an earlier file of this name: SQLite would play them back into the new one
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        part.replace(path)
    except StoreFullError as error:
        raise _full(path) from error
    finally:
        _remove(part)


def _full(path: Path) -> StoreFullError:
    return StoreFullError(
        f"The disk that is to hold {path} is full.", "Nothing was written: free some space, then do it again."
    )


def _remove(file: Path) -> None:
    for suffix in _BESIDE:
        Path(f"{file}{suffix}").unlink(missing_ok=True)
