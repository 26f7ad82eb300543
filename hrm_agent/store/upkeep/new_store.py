"""Creation of a store by one command, as a whole or not at all.

A file is filled in a folder beside its destination, which its creator keeps locked, and renamed at
the end. In a database on a server, the tables exist at once, and the rows when the transaction that
fills them is committed.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hrm_agent.basics.files import locked_folder
from hrm_agent.errors import StoreError, StoreFullError
from hrm_agent.store.database.sqlite import SqliteDatabase
from hrm_agent.store.database.sqlite_file import sqlite_url
from hrm_agent.store.run_store import RunStore, file_of, open_store

__all__ = ["new_store"]

_BESIDE = ("-wal", "-shm", "-journal")


@contextmanager
def new_store(
    where: str, *, key: str | bytes | None = None, allow: Sequence[str] = ()
) -> Generator[RunStore]:
    """Open a new store to be filled inside the block. An existing one is opened as it is."""
    path = file_of(where)
    if path is None or _is_there(path):
        with open_store(where, key=key, allow=allow) as store:
            yield store
        return
    try:
        with _folder_beside(path) as folder:
            part = folder / "store.db"
            place = sqlite_url(part, where.partition("?")[2]) if "://" in where else part
            with open_store(place, key=key, allow=allow) as store:
                yield store
                if isinstance(store.database, SqliteDatabase):
                    store.database.empty_log()
            _move(part, path)
    except StoreFullError as error:
        raise _full(path) from error


def _move(part: Path, path: Path) -> None:
    if (log := Path(f"{part}-wal")).exists() and log.stat().st_size > 0:
        raise _full(path)  # rows are only in the log, and closing does not report that
    with locked_folder(path.parent):
        if _is_there(path):
            raise StoreError(
                f"{path} was made by another process meanwhile.",
                "Nothing was written. Name another.",
            )
        # files of an earlier store of this name, which SQLite would apply to the new one
        for suffix in _BESIDE:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        part.replace(path)


def _is_there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


@contextmanager
def _folder_beside(path: Path) -> Generator[Path]:
    """Create a folder on the same disk, removed at the end. Folders of killed processes are removed
    first.
    """
    prefix = f"{path.name}.part-"
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # no other process may remove the folder before it is locked
        with locked_folder(path.parent):
            for left in path.parent.iterdir():
                if left.name.startswith(prefix) and left.is_dir():
                    with suppress(BlockingIOError), locked_folder(left, fcntl.LOCK_NB):
                        shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(locked_folder(folder))
        yield folder


def _full(path: Path) -> StoreFullError:
    return StoreFullError(
        f"The disk that is to hold {path} is full.",
        "Nothing was written: free some space, then do it again.",
    )
