"""Cost of the run store, compared with LangGraph's own savers and with bare inserts of the same
rows.

    python -m benchmarks.store [--repeats 3] [--folder DIR] [--only replays loops] [--quick] [--json FILE]

Needs a PostgreSQL on the machine; a separate server is started for the run. The ways take turns
within each repeat, and the best repeat counts, so that other load on the machine affects all of
them. CPU seconds are those of the process and the server together.

Only commits of equal durability are compared: commits that survive a power failure (`power`), and
commits that survive the death of the process (`process`). A goal is a ratio within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.store import workloads
from benchmarks.store.distance import distant_loops
from benchmarks.store.hosted import growth_of_journal, step_cost
from benchmarks.store.measure import Row
from benchmarks.store.ways import Places
from tests.support.postgres import PostgresServer

SMALL, LARGE = 20, 2000
"""Characters of the messages sent to a hosted model."""
WAYS_MS = [1.0, 3.0]
"""Round-trip times to the server."""
STEPS, MESSAGES, THREADS, CONVERSATION, TURNS = 200, 50, 10_000, 300, 100
Found = dict[str, list[Row]]


def measured(places: Places, repeats: int, only: list[str], shorter: int = 1) -> Found:
    """Measure the tables. `shorter` divides steps, conversations and the list of threads."""
    steps, lengths = STEPS // shorter, [length // shorter for length in (50, 100, 200, 400)]
    tables: dict[str, Callable[[], list[Row]]] = {
        "replays": lambda: workloads.replays(places, steps, MESSAGES // shorter, repeats),
        "loops": lambda: workloads.loops(places, steps, repeats),
        "distance": lambda: distant_loops(places, WAYS_MS, repeats),
        "conversations": lambda: workloads.conversations(
            places, (50 // shorter, CONVERSATION // shorter)
        ),
        "tokens": lambda: workloads.tokens(places),
        "rollouts": lambda: workloads.rollouts(places),
        "listing": lambda: workloads.listing(places, THREADS // shorter),
        "growth": lambda: workloads.growth(places, lengths),
        "journal": lambda: growth_of_journal(places, [TURNS // shorter // 4, TURNS // shorter]),
        "step": lambda: step_cost(
            places, [(MESSAGES // shorter, size) for size in (SMALL, LARGE)], max(repeats, 5)
        ),
    }
    found: Found = {}
    for name in only or tables:
        started = time.perf_counter()
        found[name] = tables[name]()
        show(f"{name} ({time.perf_counter() - started:.0f} s)", found[name])
    return found


def goals(found: Found) -> list[Row]:
    """Ratios within this run with their bounds, for the tables that were measured."""
    rows: list[Row] = []
    for kind in ("loop", "chat") if "replays" in found else ():
        of = {row["way"]: row for row in found["replays"] if row["sequence"] == kind}
        for own, floor in FLOOR_OF.items():
            rows.append(_faster(f"{kind}: steps/s of {own} / {floor}", of[own], of[floor], 0.5))
    of = {row["way"]: row for row in found.get("loops", ()) if row["durability"] == "sync"}
    for own, other, bound in LOOPS if of else ():
        rows.append(
            _faster(f"a loop of LangGraph: steps/s of {own} / {other}", of[own], of[other], bound)
        )
    of = {
        row["way"]: row for row in found.get("conversations", ()) if row["messages"] == CONVERSATION
    }
    for ours, peer in (
        (("ours", "SqliteSaver"), ("ours, PostgreSQL", "PostgresSaver")) if of else ()
    ):
        rows.append(
            _at_least(
                f"300 messages: bytes of {peer} / {ours}",
                of[peer]["stored_mb"] / of[ours]["stored_mb"],
                20,
            )
        )
        rows.append(
            _at_least(
                f"300 messages: history of {peer} / {ours}",
                of[peer]["history_s"] / of[ours]["history_s"],
                20,
            )
        )
    ours = [row for row in found.get("listing", ()) if row["way"].startswith("ours")]
    rows += [
        _at_most(f"{row['way']}: ms to list {row['threads']:,} threads", row["ms"], 100)
        for row in ours
    ]
    if "growth" in found and found["growth"][-1]["messages"] == 400:
        short, long = (
            row["ours, kB a message"] for row in (found["growth"][1], found["growth"][-1])
        )
        rows.append(_at_most("bytes of a message at 400 messages / at 100", long / short, 1.2))
    if rows_of_journal := found.get("journal"):
        row = rows_of_journal[-1]
        rows.append(
            _at_most(
                f"{row['turns']} turns: bytes of journal / checkpoints",
                row["journal / checkpoints"],
                1.2,
            )
        )
    for row in found.get("step", ()):
        name = (
            f"a step with {row['messages']} messages of {row['characters']} characters: CPU with"
            " journal"
        )
        rows.append(_at_most(f"{name} / without", row["with / without"], 1.3))
        bound = 1.0 if row["characters"] == SMALL else 0.6
        rows.append(_at_most(f"{name} / AsyncSqliteSaver", row["with / AsyncSqliteSaver"], bound))
    return rows


def _faster(name: str, ours: Row, other: Row, bound: float) -> Row:
    # None if the CPU time was too short for the clock
    by_cpu = other["ms_cpu"] / ours["ms_cpu"] if ours["ms_cpu"] else None
    return _at_least(name, ours["steps_s"] / other["steps_s"], bound, by_cpu)


def _at_least(name: str, value: float, bound: float, by_cpu: float | None = None) -> Row:
    return {
        "goal": name,
        "value": value,
        "at least": bound,
        "at most": None,
        "by CPU": by_cpu,
        "met": value >= bound,
    }


def _at_most(name: str, value: float, bound: float) -> Row:
    return {
        "goal": name,
        "value": value,
        "at least": None,
        "at most": bound,
        "by CPU": None,
        "met": value <= bound,
    }


FLOOR_OF = {
    "ours": "bare inserts",
    "ours, power": "bare inserts, power",
    "ours, PostgreSQL": "bare inserts, PostgreSQL",
}
"""Ways of our store, each with the floor of the same durability."""
LOOPS = (
    ("ours", "none", 0.7),
    ("ours, power", "none", 0.5),
    ("ours, PostgreSQL", "PostgresSaver", 1.5),
)
"""Ways, each with its baseline (`none` is LangGraph without a checkpointer) and the ratio that is
the goal.
"""


def flush_ms(folder: Path) -> float:
    """Milliseconds that this disk takes to flush a page: half of the cost of `power` durability."""
    seconds: list[float] = []
    with (folder / "page").open("wb") as file:
        for _ in range(100):
            file.write(bytes(4096))
            file.flush()
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e3


def show(title: str, rows: list[Row]) -> None:
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    Console(width=max(120, Console().width)).print(table)


def _text(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else "" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the run store")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="where the files are written (default: the temporary folder)"
    )
    parser.add_argument("--only", nargs="+", default=[], help="tables to measure")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of everything, which says little"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            disk = flush_ms(Path(name))
            print(f"a flush of a page to this disk takes {disk:.2f} ms")
            found = measured(
                Places(Path(name), server),
                arguments.repeats,
                arguments.only,
                10 if arguments.quick else 1,
            )
    finally:
        server.stop()
    reached = goals(found)
    if reached:
        show("goals", reached)
    if arguments.json:
        settings = {
            "cores": os.cpu_count(),
            "sqlite": sqlite3.sqlite_version,
            "flush_ms": disk,
            "steps": STEPS,
            "messages": MESSAGES,
        }
        arguments.json.write_text(
            json.dumps({"settings": settings, **found, "goals": reached}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
