"""Cost of a call in our environment, in a new interpreter, under bubblewrap, in the peers'
services, and in a bare fork as the floor.

    python -m benchmarks.environment [--quick] [--only floor calls late] [--clients 1 8 64] [--json FILE]
        [--smolagents PYTHON] [--code-judge CHECKOUT PYTHON] [--sandbox-fusion CHECKOUT PYTHON]

Peers are measured if they are named. PYTHON is the interpreter of their virtual environment, which
needs numpy and sympy too. See `peers` for how they are started.

`floor`: our environment, with and without its layers, against a fork of the same warm interpreter
that does nothing (`floor`), in turns, the best repeat of each. `calls`: every way with every
snippet; clients wait for their answer before the next call. `late`: how long after its limit of 1 s
an endless loop ends. `good/s` counts right answers. CPU is that of all processes, the client's
included, per right answer. A goal is a ratio within one run.
`python -m benchmarks.environment.queue` measures a queue of 45,000 calls,
`python -m benchmarks.environment.load` a server under 20,000 mixed calls, attacks and idle
connections.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.environment.floor import FLAVOURS, floors
from benchmarks.environment.measure import Effort, Row, measured, row
from benchmarks.environment.peers import BATCH, code_judge, sandbox_fusion
from benchmarks.environment.ways import (
    Opened,
    bubblewrap,
    in_process,
    served,
    session,
    subprocesses,
)
from benchmarks.environment.workloads import ENDLESS, WORKLOADS, Workload

Options = argparse.Namespace
MANY = 64
"""Number of clients for everything over HTTP."""
LATE_CALLS = 16
"""Number of calls of `late`, one at a time for each core, since an endless loop that shares its
core ends late for another reason.
"""


def floor_table(options: Options) -> list[Row]:
    effort, repeats = (Effort(100, 0.1), 1) if options.quick else (Effort(2000, 1.5), 3)
    return floors(effort, [1, 8], repeats)


def call_table(options: Options) -> list[Row]:
    few, effort = (
        (Effort(8, 0.1), Effort(100, 0.1))
        if options.quick
        else (Effort(200, 2.0), Effort(4000, 1.5))
    )
    here = [number for number in options.clients if number <= 8] or [1]
    rows = asyncio.run(_calls("ours, in process", in_process(), options.clients, effort))
    rows += asyncio.run(_calls("ours, session", session(), here, effort))
    rows += asyncio.run(_calls("ours, HTTP", served(), [1, MANY], effort))
    rows += asyncio.run(_calls("ours, HTTP, a request each", served(plain=True), [1, MANY], effort))
    rows += asyncio.run(_calls("subprocess", subprocesses(), here, few))
    rows += asyncio.run(_calls("bubblewrap", found, here, few)) if (found := bubblewrap()) else []
    rows += smolagents(options.smolagents, WORKLOADS, few) if options.smolagents else []
    for name, opened, clients in _peers(options):
        try:
            rows += asyncio.run(_calls(name, opened, clients, few))
        except OSError as error:  # the other ways' numbers are kept
            print(f"{name} did not start: {error}")
    return sorted(
        rows, key=lambda found: [workload.name for workload in WORKLOADS].index(found["workload"])
    )


def late_table(options: Options) -> list[Row]:
    cores = os.cpu_count() or 1
    effort = Effort(cores if options.quick else LATE_CALLS, 60.0)
    ways: dict[str, Callable[[], Opened]] = {
        "ours, in process": in_process,
        "ours, session": session,
        "ours, HTTP": served,
        "subprocess": subprocesses,
    }
    if options.sandbox_fusion:
        ways["SandboxFusion"] = lambda: sandbox_fusion(*options.sandbox_fusion)
    rows = [asyncio.run(_late(name, opened(), cores, effort)) for name, opened in ways.items()]
    rows += smolagents(options.smolagents, [ENDLESS], effort) if options.smolagents else []
    for found in rows:
        found["p50 late ms"] = found["p50 ms"] - ENDLESS.seconds * 1e3
        found["p99 late ms"] = found["p99 ms"] - ENDLESS.seconds * 1e3
    return [{name: found[name] for name in LATE_COLUMNS} for found in rows]


LATE_COLUMNS = ("way", "clients", "calls", "p50 late ms", "p99 late ms", "lost", "wrong")


async def _late(name: str, opened: Opened, clients: int, effort: Effort) -> Row:
    async with opened as call:
        await asyncio.gather(*(call(WORKLOADS[0], number) for number in range(clients)))
        return await measured(name, call, ENDLESS, clients, effort)


async def _calls(name: str, opened: Opened, clients: Iterable[int], effort: Effort) -> list[Row]:
    rows: list[Row] = []
    async with opened as call:
        for workload in WORKLOADS:
            # One-time costs (a fork server, a session's process, a file cache) come before timing.
            await measured(name, call, workload, 1, Effort(1, 0.0))
            for number in clients:
                if not name.startswith(PEERS):
                    await measured(name, call, workload, number, Effort(2 * number, 0.0))
                rows.append(await measured(name, call, workload, number, effort))
    return rows


def _peers(options: Options) -> list[tuple[str, Opened, Sequence[int]]]:
    """Peers that are named. Each is also measured with few clients, since with many clients the
    peers' own time limits lose many slow calls.
    """
    found: list[tuple[str, Opened, Sequence[int]]] = []
    if options.code_judge:
        batches = code_judge(*options.code_judge, batches=True)
        found.append(("code-judge", code_judge(*options.code_judge), [8, MANY]))
        found.append((f"code-judge, batches of {BATCH}", batches, [MANY // BATCH]))
    if options.sandbox_fusion:
        found.append(("SandboxFusion", sandbox_fusion(*options.sandbox_fusion), [8, MANY]))
    return found


PEERS = ("subprocess", "bubblewrap", "code-judge", "SandboxFusion")
"""Names of ways that leave nothing behind for a second round."""


def smolagents(python: Path, workloads: Sequence[Workload], effort: Effort) -> list[Row]:
    """Rows of smolagents, in a process of its interpreter, one call at a time."""
    given = {
        "calls": effort.calls,
        "seconds": effort.seconds,
        "workloads": [
            {name: getattr(one, name) for name in ("code", "status", "seconds")}
            for one in workloads
        ],
    }
    driver = str(Path(__file__).with_name("smolagents_driver.py"))
    # -I: the driver's folder has names of the standard library.
    done = subprocess.run(
        [python, "-I", driver], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    rows: list[Row] = []
    for workload, line in zip(workloads, done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        verdicts = Counter(
            workload.verdict((status, stdout)) for status, stdout in found["answers"]
        )
        rows.append(
            row(
                "smolagents",
                workload,
                1,
                found["latencies"],
                verdicts,
                found["seconds"],
                found["cpu"],
            )
        )
    return rows


def goals(found: dict[str, list[Row]]) -> list[Row]:
    """Ratios within this run with their bounds, for what was measured."""
    return [
        *_floor_goals(found.get("floor", [])),
        *_call_goals(found.get("calls", [])),
        *_late_goals(found),
    ]


def _floor_goals(rows: Sequence[Row]) -> list[Row]:
    of = {(row["flavour"], row["way"], row["clients"]): row for row in rows}
    reached: list[Row] = []
    for flavour, bound in (("numpy and sympy", 0.9), ("bare", 0.7)) if rows else ():
        for clients in (1, 8):
            ours, floor, off = (
                of[flavour, way, clients]
                for way in ("ours", "floor: fork, exit, wait", "ours, layers off")
            )
            name = f"{flavour}, {clients} clients: calls/s of ours / floor"
            reached.append(
                _at_least(
                    name,
                    ours["calls/s"] / floor["calls/s"],
                    bound,
                    floor["CPU us"] / ours["CPU us"],
                )
            )
        name = f"{flavour}, 8 clients: what the layers take of the calls/s"
        by_cpu = 1 - off["CPU us"] / ours["CPU us"]
        reached.append(_at_most(name, 1 - ours["calls/s"] / off["calls/s"], 0.1, by_cpu))
    return reached


def _call_goals(rows: Sequence[Row]) -> list[Row]:
    def best(workload: str, way: str) -> Row | None:
        those = [row for row in rows if row["workload"] == workload and row["way"].startswith(way)]
        return max(those, key=lambda row: row["good/s"], default=None)

    reached: list[Row] = []
    for workload, peer, bound in (
        ("print", "code-judge", 7),
        ("print", "SandboxFusion", 8),
        ("sympy", "code-judge", 30),
        ("sympy", "SandboxFusion", 30),
    ):
        other = best(workload, peer)
        for way in ("ours, HTTP", "ours, HTTP, a request each"):
            asked = (way, workload, MANY)
            ours = next(
                (row for row in rows if (row["way"], row["workload"], row["clients"]) == asked),
                None,
            )
            if ours is None or other is None:
                continue
            by_cpu = (
                other["CPU us"] / ours["CPU us"] if other["CPU us"] and ours["CPU us"] else None
            )
            ratio = ours["good/s"] / other["good/s"] if other["good/s"] else float("inf")
            reached.append(
                _at_least(f"{workload}: good/s of {way} / {other['way']}", ratio, bound, by_cpu)
            )
    served_sympy = [
        one for one in rows if one["way"].startswith("ours, HTTP") and one["workload"] == "sympy"
    ]
    reached += [
        _at_most(f"sympy: lost or wrong of {one['way']}", one["lost"] + one["wrong"], 0)
        for one in served_sympy
    ]
    alone = {
        row["way"]: row["p50 ms"]
        for row in rows
        if (row["workload"], row["clients"]) == ("print", 1)
    }
    if alone:
        reached.append(_at_most("a session's cell: p50 us", alone["ours, session"] * 1e3, 250))
        reached.append(_at_most("print over HTTP, 1 client: p50 ms", alone["ours, HTTP"], 1.5))
    return reached


def _late_goals(found: dict[str, list[Row]]) -> list[Row]:
    ours = [row for row in found.get("late", ()) if row["way"].startswith("ours")]
    return [
        _at_most(f"{row['way']}: p99 ms after the time limit", row["p99 late ms"], 50)
        for row in ours
    ]


def _at_least(name: str, value: float, bound: float, by_cpu: float | None = None) -> Row:
    return {
        "goal": name,
        "value": value,
        "at least": bound,
        "at most": None,
        "by CPU": by_cpu,
        "met": value >= bound,
    }


def _at_most(name: str, value: float, bound: float, by_cpu: float | None = None) -> Row:
    return {
        "goal": name,
        "value": value,
        "at least": None,
        "at most": bound,
        "by CPU": by_cpu,
        "met": value <= bound,
    }


def left_out(options: Options) -> list[str]:
    """Ways that are not compared, with what each would need."""
    lines = [] if bubblewrap() else ["bubblewrap is not installed (apt-get install bubblewrap)"]
    peers = ("smolagents", "code_judge", "sandbox_fusion")
    return lines + [
        f"not named: --{name.replace('_', '-')}" for name in peers if not getattr(options, name)
    ]


def show(title: str, rows: list[Row]) -> None:
    table = Table(*rows[0], title=title, title_justify="left")
    for found in rows:
        table.add_row(*map(_text, found.values()))
    Console(width=max(140, Console().width)).print(table)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}"
    return "" if value is None else str(value)


TABLES: dict[str, Callable[[Options], list[Row]]] = {
    "floor": floor_table,
    "calls": call_table,
    "late": late_table,
}


def parsed() -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    place = partial(add, nargs=2, type=_path, metavar=("CHECKOUT", "PYTHON"))
    add(
        "--clients", type=int, nargs="+", default=[1, 8, MANY], help="of our in-process environment"
    )
    add("--only", nargs="+", default=[], choices=list(TABLES), help="tables to measure")
    add("--quick", action="store_true", help="fewer calls: less than a minute without peers")
    add(
        "--smolagents",
        type=_path,
        metavar="PYTHON",
        help="measure smolagents' interpreter in this interpreter",
    )
    place("--code-judge", help="measure code-judge; needs redis-server")
    place("--sandbox-fusion", help="measure SandboxFusion")
    add("--json", type=Path, help="write the numbers to this file")
    return parser.parse_args()


def _path(text: str) -> Path:
    """Absolute path with its links kept, since the interpreter of a virtual environment is a
    link.
    """
    return Path(os.path.abspath(text))  # noqa: PTH100


def main() -> None:
    options = parsed()
    for line in left_out(options):
        print(line)
    found: dict[str, list[Row]] = {}
    for name in options.only or TABLES:
        started = time.perf_counter()
        found[name] = TABLES[name](options)
        show(f"{name} ({time.perf_counter() - started:.0f} s)", found[name])
    reached = goals(found)
    if reached:
        show("goals", reached)
    if options.json is not None:
        settings = {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
            "flavours": list(FLAVOURS),
            "left out": left_out(options),
        }
        options.json.write_text(
            json.dumps({"settings": settings, **found, "goals": reached}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
