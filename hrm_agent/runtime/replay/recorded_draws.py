"""Recorded draws (clock, uuid, random) for a replayed task: those of the task at the same place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver, without_steps
from hrm_agent.trajectory import GraphIdentity, TaskDraws

__all__ = ["RecordedDraws"]


class RecordedDraws:
    """Draws of one segment of a run. Each record is for one task, even if that is begun several
    times. Thread-safe.
    """

    def __init__(
        self, records: Iterable[TaskDraws], steps: set[str], paths: TaskPathResolver
    ) -> None:
        """Select those of `records` that were made in steps that began at the checkpoints
        `steps`.
        """
        self._left = [
            (paths.of(found.identity), found) for found in records if found.identity.step in steps
        ]
        self._given: dict[tuple[str, int], TaskDraws | None] = {}
        self.missed = False
        """True if a task drew something that is not recorded."""
        self._lock = threading.Lock()

    def of(self, identity: GraphIdentity, place: TaskPath) -> TaskDraws | None:
        """Recorded draws of the task in this attempt (None if there are none)."""
        key = (identity.task_id, identity.attempt)
        with self._lock:
            if key not in self._given:
                self._given[key] = self._take(identity.attempt, place)
            return self._given[key]

    def _take(self, attempt: int, place: TaskPath) -> TaskDraws | None:
        """Take the record from the same place, else from the same nodes in another step, since a
        node may have been added before them.
        """
        ways: tuple[Callable[[TaskPath], Any], ...] = (lambda path: path, without_steps)
        for way in ways:
            for number, (path, found) in enumerate(self._left):
                if found.identity.attempt == attempt and way(path) == way(place):
                    del self._left[number]
                    return found
        self.missed = True
        return None
