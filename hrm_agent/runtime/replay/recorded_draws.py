"""Which recorded draws (clock, uuid, random) a replayed task gets: those of the task at the same
place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from hrm_agent.runtime.replay.task_path import TaskPath, TaskPathResolver, without_steps
from hrm_agent.trajectory import GraphIdentity, TaskDraws

__all__ = ["RecordedDraws"]


class RecordedDraws:
    """The draws of one segment of a run. Each record is for one task, however often that is begun.
    Thread-safe.
    """

    def __init__(
        self, records: Iterable[TaskDraws], steps: set[str], paths: TaskPathResolver
    ) -> None:
        """Of `records` those that were made in steps that began at the checkpoints `steps`."""
        self._left = [
            (paths.of(found.identity), found) for found in records if found.identity.step in steps
        ]
        self._given: dict[tuple[str, int], TaskDraws | None] = {}
        self.missed = False
        """Whether a task drew something that is not on record."""
        self._lock = threading.Lock()

    def of(self, identity: GraphIdentity, place: TaskPath) -> TaskDraws | None:
        """What the task drew then, this attempt of it; None if nothing is on record."""
        key = (identity.task_id, identity.attempt)
        with self._lock:
            if key not in self._given:
                self._given[key] = self._take(identity.attempt, place)
            return self._given[key]

    def _take(self, attempt: int, place: TaskPath) -> TaskDraws | None:
        """From the same place, else from the same nodes in another step: one may have been added
        before them.
        """
        ways: tuple[Callable[[TaskPath], Any], ...] = (lambda path: path, without_steps)
        for way in ways:
            for number, (path, found) in enumerate(self._left):
                if found.identity.attempt == attempt and way(path) == way(place):
                    del self._left[number]
                    return found
        self.missed = True
        return None
