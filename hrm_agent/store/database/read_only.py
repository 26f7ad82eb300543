"""Base of read-only stores, which other processes may write to meanwhile."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from hrm_agent.errors import StoreError, StoreVersionError
from hrm_agent.store.database.cursors import Work
from hrm_agent.store.database.database import Database

__all__ = ["ReadOnlyDatabase", "made_earlier"]

T = TypeVar("T")


class ReadOnlyDatabase(Database):
    """Database for reading. Any write raises `StoreError`."""

    is_blocking = True

    @abstractmethod
    def change_mark(self) -> Hashable:
        """Value that differs after every commit. It may also differ without one."""

    def is_gone(self) -> bool:
        """True if the opened database was removed or replaced. It has to be opened again."""
        return False

    def submit(
        self, work: Work[T], thread_id: str | None = None, *, waits: bool = False
    ) -> Future[T]:
        raise self._refused()

    def defer(
        self,
        work: Work[Any],
        thread_id: str | None = None,
        on_done: Callable[[Exception | None], object] | None = None,
        seconds: float | None = None,
    ) -> None:
        raise self._refused()

    def exclusive(self, work: Work[T]) -> T:
        raise self._refused()

    def vacuum(self) -> None:
        raise self._refused()

    def _submit(self, work: Work[T], *, waits: bool) -> Future[T]:
        raise self._refused()

    def _transact(self, works: Sequence[Work[Any]]) -> list[Any]:
        raise self._refused()

    def _one_transaction(self) -> AbstractContextManager[None]:
        raise self._refused()

    def _refused(self) -> StoreError:
        return StoreError(
            f"The store {self.url} was opened for reading only.",
            "Open it without read_only=True to write to it.",
        )


def made_earlier(name: object) -> StoreVersionError:
    """Error for a store that lacks tables of this version and allows no temporary ones."""
    return StoreVersionError(
        f"The store {name} was made by an earlier version of this program, and was opened for"
        " reading only.",
        "Nothing was changed. Allow temporary tables, or convert the store to this version:"
        f" `hrm-agent store vacuum {name}`.",
    )
