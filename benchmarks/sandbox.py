"""Calls per second and latency of the environment, against starting an interpreter per call and against a bare fork.

    python benchmarks/sandbox.py [--calls 400] [--clients 1 8 64] [--json FILE]

All three run the same snippet. `subprocess` is `python -I` per call, with no isolation; `fork` forks a bare warm
interpreter and runs the snippet in the child, with no isolation, no limits and one call at a time: the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from hrm_agent.environment import LocalEnvironment

SNIPPET = "print(1 + 1)"
FORK_LOOP = """
import os, sys, time
code, calls = sys.argv[1], int(sys.argv[2])
null = os.open(os.devnull, os.O_WRONLY)
for _ in range(calls):
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.dup2(null, 1)
        exec(compile(code, "<snippet>", "exec"), {})
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    print(time.perf_counter() - started)
"""

Call = Callable[[], Awaitable[None]]
Row = dict[str, str | int | float]


async def measure(call: Call, calls: int, clients: int) -> tuple[list[float], float]:
    """Latencies in seconds, and calls per second, of `clients` that call one after the other."""
    latencies: list[float] = []

    async def client() -> None:
        for _ in range(calls // clients):
            started = time.perf_counter()
            await call()
            latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return latencies, len(latencies) / (time.perf_counter() - started)


def row(name: str, clients: int, latencies: list[float], rate: float) -> Row:
    ordered = sorted(latencies)
    p50, p99 = (round(ordered[int(share * (len(ordered) - 1))] * 1000, 2) for share in (0.5, 0.99))
    return {"way": name, "clients": clients, "calls_per_second": round(rate, 1), "p50_ms": p50, "p99_ms": p99}


async def in_environment(calls: int, clients: int) -> Row:
    environment = LocalEnvironment()

    async def call() -> None:
        assert (await environment.execute(SNIPPET)).stdout == "2\n"

    await measure(call, 20, 1)
    result = row("environment", clients, *await measure(call, calls, clients))
    await environment.close()
    return result


async def in_subprocess(calls: int, clients: int) -> Row:
    free = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def call() -> None:
        async with free:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", SNIPPET, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert (await process.communicate())[0] == b"2\n"

    return row("subprocess", clients, *await measure(call, calls, clients))


def by_bare_fork(calls: int) -> Row:
    command = [sys.executable, "-I", "-S", "-c", FORK_LOOP, SNIPPET, str(calls)]
    latencies = [float(line) for line in subprocess.check_output(command, text=True).split()]
    return row("fork", 1, latencies, len(latencies) / sum(latencies))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [by_bare_fork(options.calls)]
    for clients in options.clients:
        rows.append(asyncio.run(in_environment(options.calls, clients)))
        rows.append(asyncio.run(in_subprocess(max(clients, options.calls // 4), clients)))
    print(f"{'way':<12} {'clients':>8} {'calls/s':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for line in rows:
        print("{way:<12} {clients:>8} {calls_per_second:>9} {p50_ms:>8} {p99_ms:>8}".format(**line))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"snippet": SNIPPET, "cores": os.cpu_count(), "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
