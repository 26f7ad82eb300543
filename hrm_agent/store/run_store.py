"""The run store: checkpoints and journal of many runs in one SQLite file."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from hrm_agent.errors import StoreError
from hrm_agent.store.database import Database
from hrm_agent.store.journal import SqliteJournal
from hrm_agent.store.saver import StoreSaver

__all__ = ["RunStore", "open_store"]


class RunStore:
    """Both halves of a run's record: `checkpointer` for LangGraph, `journal` for calls and trajectories."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.checkpointer = StoreSaver(database)
        self.journal = SqliteJournal(database)

    @property
    def path(self) -> Path:
        return self._database.path

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_store(where: str | Path, *, create: bool = True) -> RunStore:
    """Open a store by path or URL (`runs/x.db`, `sqlite:///runs/x.db`); a folder means its `store.db`.

    Raises `StoreError`; `StoreVersionError` for a store of a newer schema version.
    """
    text = str(where)
    if "://" in text and not text.startswith("sqlite:///"):
        raise StoreError(f"{text!r} is no store this version can open.", "Use a path or sqlite:///PATH.")
    path = Path(text.removeprefix("sqlite:///"))
    return RunStore(Database(path / "store.db" if path.is_dir() else path, create=create))
