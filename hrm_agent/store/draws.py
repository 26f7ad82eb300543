"""What nodes drew from clock, `uuid` and `random`: one row for each attempt of a task that drew anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from hrm_agent.store.cipher import Cipher
from hrm_agent.store.cursors import Cursor
from hrm_agent.store.damage import reading
from hrm_agent.store.database import Database
from hrm_agent.trajectory import TaskDraws, Trajectory

__all__ = ["DrawsJournal"]


class DrawsJournal(ABC):
    """The part of a store's journal that holds them."""

    _database: Database
    _cipher: Cipher

    @abstractmethod
    def threads_behind(self, header: Trajectory) -> list[tuple[str, set[str]]]:
        """The threads that a fork has behind it, the oldest first, with the steps that it shares with each."""

    def draws_of_thread(self, thread_id: str) -> list[TaskDraws]:
        """What the tasks of a thread drew, in no order."""
        query = "SELECT task_id, attempt, record FROM draws WHERE thread_id = ?"
        with self._database.read() as cursor:
            rows = cursor.execute(query, (thread_id,)).fetchall()
        found: list[TaskDraws] = []
        for task_id, attempt, record in rows:
            with reading("draws of task", task_id):
                opened = self._cipher.open(record, "draws", thread_id, task_id, str(attempt))
                found.append(TaskDraws.model_validate_json(opened))
        return found

    def draws_of(self, header: Trajectory) -> list[TaskDraws]:
        """What the tasks of a run drew; of a fork, also those of the lineage that it left."""
        left = [
            draws
            for thread, steps in self.threads_behind(header)
            for draws in self.draws_of_thread(thread)
            if draws.identity.step in steps
        ]
        return left + self.draws_of_thread(header.thread_id)

    def write_draws(self, thread_id: str, key: tuple[str, int], record: Callable[[], TaskDraws]) -> None:
        """Write what a task drew with the next commit, in place of what stands under its key."""
        place = (thread_id, *map(str, key))

        def write(cursor: Cursor) -> None:
            sealed = self._cipher.seal(record().model_dump_json().encode(), "draws", *place)
            cursor.execute(
                "INSERT INTO draws (thread_id, task_id, attempt, record) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (thread_id, task_id, attempt) DO UPDATE SET record = excluded.record",
                (thread_id, *key, sealed),
            )

        self._database.defer(write, thread_id)
