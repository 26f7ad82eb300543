"""trackio tracker: rows of its local database, shown by `trackio show`. Nothing leaves the machine.

Rows are written directly to the database. `trackio.init` would print on stdout, which carries a
command's JSON, start threads that measure the machine, and contact the hub if its variables are
set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hrm_agent.training.trackers.base import TrackedRun, Tracker

__all__ = ["open_trackio"]


def open_trackio(run: TrackedRun) -> Tracker:
    if run.where is not None:
        os.environ["TRACKIO_DIR"] = str(run.where.resolve())  # read once, when trackio is imported
    return _Trackio(run)


class _Trackio:
    def __init__(self, run: TrackedRun) -> None:
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import TRACKIO_DIR

        if run.where is not None and run.where.resolve() != TRACKIO_DIR.resolve():
            raise RuntimeError(
                f"this process has imported trackio already, which writes to {TRACKIO_DIR}"
            )
        SQLiteStorage.validate_project_name(run.project)
        self._storage: Any = SQLiteStorage
        self._run = run

    def newest_step(self) -> int:
        newest = self._storage.get_max_step_for_run(
            self._run.project, self._run.name, run_id=self._run.id
        )
        return -1 if newest is None else int(newest)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        config = {**self._run.config, "run_id": self._run.name}
        names = {"run": self._run.name, "run_id": self._run.id}
        self._storage.bulk_log(
            self._run.project, metrics_list=[dict(values)], steps=[step], config=config, **names
        )

    def close(self) -> None:
        """Do nothing: each row is already committed."""
