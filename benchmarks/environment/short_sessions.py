"""Cost of a short session that is opened, runs one small cell and is closed, as in a rollout with a
tool.

    python -m benchmarks.environment.short_sessions [--against COMMIT ...] [--sessions 300] [--beside 16]
        [--pause 0 30] [--cell expression] [--repeats 5] [--json FILE]

The figures are CPU milliseconds a session, of this process and of the sandbox's processes. `pause`:
milliseconds between a cell's answer and the session's end; in a rollout, the model writes during
this time. Each measurement is a separate process and begins with a warm-up. COMMIT is checked out
separately and measured in turn with this tree. The median of the repeats counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from hrm_agent.environment.base import Submission
from hrm_agent.environment.local.environment import LocalEnvironment

HERE = Path(__file__).parents[2]
SUM = "total = 0\nfor part in (12, 7):\n    total += part * 7\n"
CELLS = {"expression": SUM + "print(total)", "block": SUM + "if total:\n    print(total)"}
"""Cells by the kind of their last statement. The environment compiles a cell without a syntax tree
if its last line is an expression.
"""
RIGHT = "133\n"
WARM_UP = 64
Row = dict[str, Any]


async def short_sessions(
    environment: LocalEnvironment, count: int, beside: int, pause: float, cell: str, name: str
) -> None:
    waiting = list(range(count))

    async def client() -> None:
        while waiting:
            session = f"{name} {waiting.pop()}"
            result = await environment.run(
                Submission(CELLS[cell], session=session, run=name, history=())
            )
            if result.stdout != RIGHT:
                raise SystemExit(f"a wrong answer: {result}")
            if pause:
                await asyncio.sleep(pause)
            await environment.end_session(session, run=name)

    await asyncio.gather(*(client() for _ in range(beside)))


def child_seconds() -> float:
    """CPU seconds of all descendants. Seconds of ended processes are in the figures of their
    parents.
    """
    own = psutil.Process()
    total = sum(own.cpu_times()[2:4])
    for child in own.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:  # ended meanwhile: its parent has its seconds
            continue
    return total


async def spent(count: int, beside: int, pause: float, cell: str) -> Row:
    environment = LocalEnvironment()
    try:
        await short_sessions(environment, WARM_UP, beside, pause, cell, "warm")
        before, own, clock = child_seconds(), time.process_time(), time.perf_counter()
        await short_sessions(environment, count, beside, pause, cell, "run")
        clock, own = time.perf_counter() - clock, time.process_time() - own
        await asyncio.sleep(0.02)  # the last sessions' processes are still ending
        return {"sandbox": child_seconds() - before, "host": own, "wall": clock}
    finally:
        await environment.close()


def measured(tree: Path, options: argparse.Namespace, pause: float) -> Row:
    """CPU milliseconds per session, measured in a process under `tree`."""
    # -P: files in this folder have names of modules of the standard library
    command = [sys.executable, "-P", __file__, "--measure", str(pause)]
    command += [
        "--sessions",
        str(options.sessions),
        "--beside",
        str(options.beside),
        "--cell",
        options.cell,
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, env=environment, cwd=tree, stdout=subprocess.PIPE, text=True, check=True
    )
    return {
        part: seconds / options.sessions * 1e3 for part, seconds in json.loads(done.stdout).items()
    }


def compared(options: argparse.Namespace) -> list[Row]:
    # imported late: a measurement may run under a tree without this module
    from benchmarks.rollout_profile.__main__ import checked_out

    with ExitStack() as stack:
        trees = {commit: stack.enter_context(checked_out(commit)) for commit in options.against} | {
            "this tree": HERE
        }
        rows: list[Row] = []
        for pause in options.pause:
            found: dict[str, list[Row]] = {name: [] for name in trees}
            for _ in range(options.repeats):
                for name, tree in trees.items():
                    found[name].append(measured(tree, options, pause / 1e3))
            first = 0.0
            for name, repeats in found.items():
                middle = {
                    part: statistics.median(row[part] for row in repeats) for part in repeats[0]
                }
                first = first or middle["sandbox"]
                low, high = (chosen(row["sandbox"] for row in repeats) for chosen in (min, max))
                parts = {f"{part} ms": value for part, value in middle.items()}
                rows.append(
                    {"pause ms": pause, "tree": name}
                    | parts
                    | {
                        "sandbox, lowest": low,
                        "highest": high,
                        "of the first": middle["sandbox"] / first,
                    }
                )
        return rows


def show(rows: list[Row]) -> None:
    table = Table(*rows[0])
    for found in rows:
        table.add_row(
            *(
                f"{value:.2f}" if isinstance(value, float) else str(value)
                for value in found.values()
            )
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--against", nargs="*", default=[], metavar="COMMIT", help="measure these commits too"
    )
    parser.add_argument("--sessions", type=int, default=300)
    parser.add_argument("--beside", type=int, default=16, help="sessions side by side")
    parser.add_argument("--pause", type=int, nargs="+", default=[0, 30], metavar="MILLISECONDS")
    parser.add_argument(
        "--cell", choices=list(CELLS), default="expression", help="what it ends with"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--measure", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        found = asyncio.run(spent(options.sessions, options.beside, options.measure, options.cell))
        sys.stdout.write(json.dumps(found) + "\n")
        return
    rows = compared(options)
    show(rows)
    if options.json is not None:
        settings = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
        }
        settings |= {
            "load": os.getloadavg(),
            "sessions": options.sessions,
            "beside": options.beside,
            "cell": options.cell,
        }
        options.json.write_text(
            json.dumps({"settings": settings, "short sessions": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
