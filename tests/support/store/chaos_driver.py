"""The driver of `tests.support.graphs.kill_driver`, with runs that kill their database server, or
break connections to it, at chosen lines of their logs.

    python -m tests.support.store.chaos_driver

`events.json` in the folder of a plan lists the events: pairs of a line's number and an action. The
thread that writes the line does the action, while the run's other threads go on. An action from
outside could not hit this moment exactly.

A number in `pages.txt` is the largest size of an SQLite store, in pages. Beyond it, SQLite reports
a full disk.
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
"""File in a plan's folder. Each line is the number of connections that were broken at once."""
PAGES = "pages.txt"


def plan_events(plan: Plan, events: dict[int, list[Any]]) -> None:
    """Write the events of a plan. An action is `["signal", PROCESS, NUMBER]`, or
    `["break", URL, DATABASE]`, which breaks all connections to a database.
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
    os._exit(0)  # no cleanup: after so many imports it takes as long as a test
