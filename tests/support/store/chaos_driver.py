"""The driver of `tests.support.graphs.kill_driver`, whose runs take down their server with chosen
lines of their logs.

    python -m tests.support.store.chaos_driver

What and when stands in `events.json` in the folder of a plan: pairs of a line's number and what is
done in the thread that writes it, while the run's other threads go on. From outside, such a moment
would be a race with the run.

A number in `pages.txt` is how large an SQLite store may become: to SQLite a disk is full then.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psycopg

from hrm_agent.store import RunStore, open_store
from tests.support.graphs import kill_driver
from tests.support.graphs.kill_driver import Deadly, Plan

__all__ = ["BROKEN", "PAGES", "plan_events"]

BROKEN = "broken.txt"
"""File in a plan's folder: a line for each time that connections were broken, with their number."""
PAGES = "pages.txt"


def plan_events(plan: Plan, events: dict[int, list[Any]]) -> None:
    """`["signal", PROCESS, NUMBER]`, or `["break", URL, DATABASE]`:
    all connections to a database.
    """
    Path(plan.folder, "events.json").write_text(json.dumps(sorted(events.items())))


class Eventful(Deadly):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._folder = Path(plan.folder)
        planned = self._folder / "events.json"
        self._events: dict[int, list[Any]] = (
            dict(json.loads(planned.read_text())) if planned.exists() else {}
        )

    def write(self, line: str) -> None:
        super().write(line)
        with self._lock:
            event = self._events.pop(self._lines, None)
        match event:
            case ["signal", process, number]:
                os.kill(process, number)
            case ["break", url, database]:
                query = (
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname"
                    " = %s"
                )
                with (
                    psycopg.connect(url, autocommit=True) as connection,
                    (self._folder / BROKEN).open("a") as broken,
                ):
                    print(
                        (connection.execute(query, (database,)).fetchone() or (0,))[0], file=broken
                    )
            case _:
                pass


def open_bounded(url: str) -> RunStore:
    store = open_store(url)
    bound = Path(url).parent / PAGES
    if bound.exists():
        database: Any = store.database
        database._writer.execute(f"PRAGMA max_page_count={bound.read_text()}")
    return store


if __name__ == "__main__":
    kill_driver.Deadly = Eventful  # type: ignore[misc]
    kill_driver.open_store = open_bounded  # type: ignore[assignment]
    kill_driver.serve()
    sys.stdout.flush()
    os._exit(0)  # clearing up after so many imports takes as long as a test
