"""Fork servers for two other uses: the floor, which forks and does nothing, and slots without their
layers.

A fork server is started as usual, and loads `within_zygote` at the last moment. So the floor forks
the same process as slots do: same imports, same warm memory, same namespaces.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks.environment.measure import Effort, Row, measured
from benchmarks.environment.ways import in_process
from benchmarks.environment.workloads import PLAIN, SCIENTIFIC, Workload
from hrm_agent.environment.local import zygote_process as process

__all__ = ["FLAVOURS", "floors"]

FLAVOURS: dict[str, tuple[Workload, Sequence[str]]] = {
    "bare": (PLAIN, ()),
    "numpy and sympy": (SCIENTIFIC, ("numpy", "sympy")),
}
_WITHIN = Path(__file__).with_name("within_zygote.py")


@contextmanager
def _put_to(use: str) -> Generator[None]:
    """Use for the fork servers that are started in the block."""
    plain = process.bare_python

    def command(module: str, *words: str) -> list[str]:
        code = (
            f"within = {{}}; exec(compile(open({str(_WITHIN)!r}).read(), 'within', 'exec'),"
            f" within); within['{use}']()"
        )
        return [word.replace("; main()", f"; {code}; main()") for word in plain(module, *words)]

    with patch.object(process, "bare_python", command):
        yield


def floors(effort: Effort, clients: Sequence[int], repeats: int) -> list[Row]:
    """Rows of the floor and of our environment with and without layers, in turns. The repeat with
    the shortest time counts.
    """
    best: dict[tuple[str, ...], Row] = {}
    for _ in range(repeats):
        for row in _once(effort, clients):
            key = (row["flavour"], row["way"], str(row["clients"]))
            if key not in best or row["calls/s"] > best[key]["calls/s"]:
                best[key] = row
    return list(best.values())


def _once(effort: Effort, clients: Sequence[int]) -> list[Row]:
    rows: list[Row] = []
    for flavour, (workload, imports) in FLAVOURS.items():
        rows += _floor(flavour, imports, effort, clients)
        rows += asyncio.run(_ours("ours", flavour, workload, effort, clients))
        with _put_to("unfenced"):
            rows += asyncio.run(_ours("ours, layers off", flavour, workload, effort, clients))
    return rows


def _floor(
    flavour: str, imports: Sequence[str], effort: Effort, clients: Sequence[int]
) -> list[Row]:
    with _put_to("floor"):
        zygote = process.ZygoteProcess(
            process.ZygoteHome(("numpy", "sympy"), isolated=True), imports
        )
    try:
        if reason := zygote.handshake():
            raise RuntimeError(f"There is no floor: {reason}.")
        zygote.control.setblocking(True)
        ways = {"fork": "floor: fork, exit, wait", "clone": "floor, in a process-id namespace each"}
        return [
            _forks(zygote, flavour, name, way, number, effort)
            for way, name in ways.items()
            for number in clients
        ]
    finally:
        zygote.end()


def _forks(
    zygote: process.ZygoteProcess, flavour: str, name: str, way: str, clients: int, effort: Effort
) -> Row:
    def spent(calls: int) -> dict[str, float]:
        zygote.control.send(f"{clients} {calls} {way}".encode())
        return json.loads(zygote.control.recv(200))

    trial = 10 * clients
    calls = min(effort.calls, round(effort.seconds / (spent(trial)["wall"] / trial)))
    calls = max(clients, calls // clients * clients)
    used = spent(calls)
    return {
        "flavour": flavour,
        "way": name,
        "clients": clients,
        "calls/s": calls / used["wall"],
        "CPU us": used["cpu"] / calls * 1e6,
        "p50 ms": None,
        "p99 ms": None,
    }


async def _ours(
    way: str, flavour: str, workload: Workload, effort: Effort, clients: Sequence[int]
) -> list[Row]:
    rows: list[Row] = []
    async with in_process() as call:
        for number in clients:
            # a warm-up, in which the slots are forked
            await measured(way, call, workload, number, Effort(4 * number, effort.seconds))
            found = await measured(way, call, workload, number, effort)
            if found["lost"] or found["wrong"]:
                raise RuntimeError(f"{way}: {found}")
            kept = {"calls/s": found["good/s"]} | {
                name: found[name] for name in ("CPU us", "p50 ms", "p99 ms")
            }
            rows.append({"flavour": flavour, "way": way, "clients": number, **kept})
    return rows
