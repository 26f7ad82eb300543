"""Cost of the graph, its store and its record per model call, with a model of almost no cost.

    python -m benchmarks.orchestration [--conversations 40] [--repeats 5] [--smolagents PYTHON] [--json FILE]

A scripted engine gives every way the same answers. `tool_loop` has four model calls and three tool
calls. `reasoning` (planner, two solvers in parallel, critic, synthesizer) has seven model calls and
two tool calls. The tool costs nothing, since the sandbox is measured by `benchmarks.environment`;
one way uses the real one for comparison. PYTHON is the interpreter of a virtual environment that
has smolagents.

`floor`: the conversation in a plain Python loop. `stock LangGraph`: the agent as in its
documentation, without our code. `ours, in memory`: our graph, recorded, nothing stored. `ours`: as
every command runs it, each step and each call in a SQLite store. `capture` is the cost that
recording adds to a stock graph on our store.

CPU is of this process and its children, all threads, per model call; the ways take turns, and the
best repeat counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.orchestration.conversation import ANSWER, CALLS, PLAN, PROBLEM, VALUE
from benchmarks.orchestration.ways import CAPTURE, SANDBOX, WAYS, Opened
from benchmarks.store.measure import Row, best, spent

Options = argparse.Namespace


async def measured(
    agent: str, name: str, way: Callable[[str, Path], Opened], conversations: int
) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        async with way(agent, Path(folder)) as converse:
            for number in (-2, -1):
                said = await converse(number)
                assert said == ANSWER or f"\\boxed{{{VALUE}}}" in said, f"{name}: {said}"
            gc.collect()
            with spent() as cost:
                for number in range(conversations):
                    await converse(number)
    return row(agent, name, conversations * CALLS[agent], cost.cpu, cost.wall)


def row(agent: str, name: str, calls: int, cpu: float, seconds: float) -> Row:
    return {
        "agent": agent,
        "way": name,
        "calls": calls,
        "CPU ms": cpu / calls * 1e3,
        "seconds": cpu,
        "ms": seconds / calls * 1e3,
    }


def smolagents(python: Path, conversations: int) -> list[Row]:
    """Rows of smolagents, measured by its own interpreter."""
    given = {
        "agents": list(CALLS),
        "conversations": conversations,
        "problem": PROBLEM,
        "answer": ANSWER,
        "plan": PLAN,
    }
    driver = str(Path(__file__).with_name("smolagents_driver.py"))
    done = subprocess.run(
        [python, "-I", driver], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        row(one["agent"], "smolagents", one["calls"], one["cpu"], one["seconds"]) for one in found
    ]


def calls_table(options: Options) -> list[Row]:
    rows: list[Row] = []
    for _ in range(options.repeats):
        for agent in CALLS:
            for name, way in (WAYS | CAPTURE | SANDBOX).items():
                rows.append(asyncio.run(measured(agent, name, way, options.conversations)))
        if options.smolagents:
            rows += smolagents(options.smolagents, options.conversations)
    rows = best(rows, "agent", "way")
    floors = {row["agent"]: row["CPU ms"] for row in rows if row["way"].startswith("floor")}
    return [
        {
            **{k: v for k, v in row.items() if k != "seconds"},
            "over the floor": row["CPU ms"] - floors[row["agent"]],
        }
        for row in sorted(rows, key=lambda row: list(CALLS).index(row["agent"]))
    ]


def goals(rows: list[Row]) -> list[Row]:
    cpu = {(row["agent"], row["way"]): row["CPU ms"] for row in rows}
    bare, recorded = CAPTURE
    reached: list[Row] = []
    for agent in CALLS:
        reached.append(
            _at_most(f"{agent}: CPU ms a call with the store on", cpu[agent, "ours"], 3.0)
        )
        reached += [
            _at_most(
                f"{agent}: CPU of {way} / stock LangGraph",
                cpu[agent, way] / cpu[agent, "stock LangGraph"],
                1.6,
            )
            for way in ("ours", "ours, as collect and train rl")
        ]
        capture = cpu[agent, recorded] - cpu[agent, bare]
        reached.append(_at_most(f"{agent}: CPU ms of capture a call", capture, 0.5))
        reached += [
            _at_most(f"{agent}: CPU of ours / {peer}", cpu[agent, "ours"] / cpu[agent, peer], 1.0)
            for peer in ("stock LangGraph, SqliteSaver", "smolagents")
            if (agent, peer) in cpu
        ]
    return reached


def _at_most(name: str, value: float, bound: float) -> Row:
    return {"goal": name, "value": value, "at most": bound, "met": value <= bound}


def show(title: str, rows: list[Row]) -> None:
    table = Table(*rows[0], title=title, title_justify="left")
    for found in rows:
        table.add_row(
            *(
                f"{value:,.2f}" if isinstance(value, float) else str(value)
                for value in found.values()
            )
        )
    Console(width=max(120, Console().width)).print(table)


def parsed() -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--conversations", type=int, default=40, help="of each way and agent, one after the other"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--smolagents", type=_path, metavar="PYTHON", help="measure smolagents in this interpreter"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    return parser.parse_args()


def _path(text: str) -> Path:
    """Absolute path with its links kept, since the interpreter of a virtual environment is a
    link.
    """
    return Path(os.path.abspath(text))  # noqa: PTH100


def main() -> None:
    options = parsed()
    rows = calls_table(options)
    show("CPU and clock of a model call", rows)
    reached = goals(rows)
    show("goals", reached)
    if not options.smolagents:
        print("smolagents not measured: --smolagents was not given")
    if options.json is not None:
        settings = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "langgraph": version("langgraph"),
            "load": os.getloadavg(),
            "conversations": options.conversations,
            "repeats": options.repeats,
        }
        options.json.write_text(
            json.dumps({"settings": settings, "calls": rows, "goals": reached}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
