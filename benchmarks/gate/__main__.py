"""Verdicts of `gate` on planted changes of agents, and what it asks for them.

    python -m benchmarks.gate [--draws 20] [--runs 100] [--simulated 1000] [--agents stranger ...]
        [--only errors draws kills budget] [--folder FOLDER] [--quick] [--json FILE]

* errors: error rates of the sequential test on simulated differences, against tests of all runs.
* draws: each draw records runs of an unchanged agent, and gates four changes of the instructions of
  its last step: none, an improvement (right answers from 0.6 to 0.8), a fault (0.4), and another
  wording. The server counts requests. They are compared with the steps from the first changed
  request on, of the runs that the verdict is based on, and with a whole evaluation.
* kills: a gate is killed at random moments and started again. The server counts requests that were
  sent twice: all, and those that it had answered half a second before the kill. A request that was
  under way at the kill has to be sent again. Recorded answers must not be asked for again.
* budget: gates with budgets that do not suffice. The server counts tokens.

There are three agents. `hrm-agent record` records a plain LangGraph agent, whose last of three calls
changes. `eval` records the tool loop, whose two calls change, and the reasoning graph, whose last of
five calls changes. `--folder` keeps what is
finished. `--quick` takes a few runs, whose figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.gate.agents import AGENTS, CHANGES, write_graph
from benchmarks.gate.errors import error_rates
from benchmarks.gate.recording import command, environment, record
from benchmarks.gate.server import CountingServer, serving
from hrm_agent.testing import block_until

Row = dict[str, Any]
EXPECTED = {
    "unchanged": ("equal",),
    "improvement": ("better",),
    "fault": ("worse",),
    "wording": ("equal", "undecided"),
}
CALLS = {"stranger": 3, "tool_loop": 2, "reasoning": 5}
"""Model calls of a run."""
CHANGED = {"stranger": 1, "tool_loop": 2, "reasoning": 1}
"""Model calls from the first changed request on."""
TOKENS = 50
"""Tokens that the server reports for a request."""
LOST = 0.5
"""Seconds before a kill in which an answer may not have been recorded."""


def gate(folder: Path, server: CountingServer, recorded: list[str], out: str, *words: str) -> Row:
    """Result of a gate of the graph in `changed.py`, with the number of requests."""
    before = len(server.asked)
    found = command(folder, server, *gate_words(recorded, out), *words)
    return {**found, "requests": len(server.asked) - before}


def gate_words(recorded: list[str], out: str) -> list[str]:
    """Words of the command."""
    return ["gate", *recorded, "--graph", "./changed.py:graph", "--out", out, "--json"]


def draws(folder: Path, server: CountingServer, agent: str, count: int, runs: int) -> Row:
    """Verdicts of draws of an agent."""
    rows = list[Row]()
    for number in range(count):
        place = folder / f"{agent}-{number}"
        rows.append(kept(place, partial(draw, place, server, agent, number, runs)))
    return {
        change: _summary(agent, change, [row[change] for row in rows], runs) for change in CHANGES
    }


def kept(folder: Path, make: Callable[[], Row]) -> Row:
    """Figures of a folder, which are made if it does not have them."""
    place = folder / "figures.json"
    if not place.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        figures = make()
        place.write_text(json.dumps(figures))
    return json.loads(place.read_text())


def draw(folder: Path, server: CountingServer, agent: str, number: int, runs: int) -> Row:
    """Gates of the changes of one draw."""
    server.seed = number
    recorded = record(folder, server, agent, runs)
    row: Row = {}
    for change in CHANGES:
        write_graph(folder / "changed.py", agent, change)
        began = time.monotonic()
        found = gate(folder, server, recorded, change)
        row[change] = {
            "verdict": found["verdict"],
            "tasks": found["tasks"],
            "difference": found["difference"],
            "requests": found["requests"],
            "seconds": round(time.monotonic() - began, 1),
        }
    return row


def _summary(agent: str, change: str, rows: list[Row], runs: int) -> Row:
    asked = sum(row["requests"] for row in rows)
    tasks = sum(row["tasks"] for row in rows)
    return {
        "draws": len(rows),
        "right": sum(row["verdict"] in EXPECTED[change] for row in rows),
        "verdicts": Counter(row["verdict"] for row in rows),
        "tasks": tasks / len(rows),
        "requests": asked / len(rows),
        # an unchanged agent has no first changed request
        "of_changed": None if change == "unchanged" else asked / (tasks * CHANGED[agent]),
        "of_evaluation": asked / (len(rows) * runs * CALLS[agent]),
        "seconds": sum(row["seconds"] for row in rows) / len(rows),
    }


def kills(folder: Path, server: CountingServer, agent: str, times: int, runs: int) -> Row:
    """Requests that are sent twice if a gate is killed at random moments."""
    server.seed = 0
    recorded = record(folder, server, agent, runs)
    write_graph(folder / "changed.py", agent, "wording")
    server.asked.clear()
    drawn = random.Random(0)
    killed = list[float]()
    for _ in range(times):
        requests = drawn.randint(1, max(1, runs // times))
        if _kill_after(folder, server, recorded, requests, drawn.uniform(0, 0.1)):
            killed.append(time.monotonic())
    resumed = gate(folder, server, recorded, "killed")
    last = {each.digest: each for each in server.asked}
    repeated = [each.ended_at for each in server.asked if each is not last[each.digest]]
    # seconds from an answer to the kill that it was lost by (0: the answer was not sent)
    ages = [
        0.0 if ended == inf else min((k - ended for k in killed if k >= ended), default=inf)
        for ended in repeated
    ]
    requests = len(server.asked)
    server.asked.clear()
    whole = gate(folder, server, recorded, "whole")
    same = ("verdict", "tasks", "difference")
    return {
        "kills": len(killed),
        "requests": requests,
        "requests_without_kills": whole["requests"],
        # a request that was under way at a kill has no recorded answer
        "sent_again": len(repeated),
        "longest_unrecorded": max(ages, default=0.0),
        "sent_again_though_answered": sum(age > LOST for age in ages),
        "same_result": all(resumed[name] == whole[name] for name in same),
    }


def _kill_after(
    folder: Path, server: CountingServer, recorded: list[str], requests: int, seconds: float
) -> bool:
    """Start or continue a gate, and kill it some time after a number of requests. Return False if
    it ended before.
    """
    reached = len(server.asked) + requests
    process = subprocess.Popen(
        [sys.executable, "-m", "hrm_agent", *gate_words(recorded, "killed")],
        cwd=folder, env=environment(folder, server), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    block_until(lambda: len(server.asked) >= reached or process.poll() is not None)
    time.sleep(seconds)
    runs_on = process.poll() is None
    process.kill()
    process.wait()
    return runs_on


def budget(folder: Path, server: CountingServer, agent: str, runs: int) -> Row:
    """Tokens of gates with budgets, which continue one another."""
    server.seed = 0
    recorded = record(folder, server, agent, runs)
    write_graph(folder / "changed.py", agent, "wording")
    server.asked.clear()
    rows: Row = {}
    for share in (0.3, 0.6, 20):
        tokens = round(share * runs * CHANGED[agent] * TOKENS)
        found = gate(folder, server, recorded, "limited", "--budget", f"{tokens}tokens")
        rows[f"{tokens} tokens"] = {
            "asked_in_all": len(server.asked) * TOKENS,
            "verdict": found["verdict"],
            "tasks": found["tasks"],
        }
    return rows


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ["errors", "draws", "kills", "budget"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--agents", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--runs", type=int, default=100, help="recorded runs of a draw")
    parser.add_argument("--simulated", type=int, default=1000, help="simulated draws")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="a few runs, which say nothing")
    parser.add_argument("--folder", type=Path, help="where the runs are kept [deleted]")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.agents = ["stranger"]
        options.draws = 1
        options.runs = 12
        options.simulated = 10
        options.kills = 1
    record_of: Row = {}
    with tempfile.TemporaryDirectory() as temporary, serving() as server:
        folder = (options.folder or Path(temporary)).absolute()
        if "errors" in options.only:
            record_of["errors"] = error_rates(options.simulated)
        for agent in options.agents:
            found: Row = {}
            if "draws" in options.only:
                found["draws"] = draws(folder, server, agent, options.draws, options.runs)
            if "kills" in options.only:
                place = folder / f"{agent}-kills"
                times = options.kills
                found["kills"] = kept(
                    place, partial(kills, place, server, agent, times, options.runs)
                )
            if "budget" in options.only:
                place = folder / f"{agent}-budget"
                found["budget"] = kept(place, partial(budget, place, server, agent, options.runs))
            if found:
                record_of[agent] = found
    print(json.dumps(record_of, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record_of, indent=2) + "\n")


if __name__ == "__main__":
    main()
