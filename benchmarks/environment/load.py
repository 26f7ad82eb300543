"""Server under a mixed load, with attacks among the calls and idle connections: calls that are lost
or wrong, and resources that are left.

    python -m benchmarks.environment.load [--calls 20000] [--clients 64] [--attacks 0.05] [--strangers 1024]
        [--alternate] [--quick] [--json FILE]

Clients (`load_clients`) send drawn calls to a server process. A given share of the calls are
attacks of `tests/environment/attacks/corpus`. The expected result of each call is known. `lost` is
a call without an answer, or with `infrastructure`; `doubled` is a call that ran twice: its two
answers differ, its session's counter is ahead, or the server counts more outcomes than there were
calls. Clients leave and come back, each time by a new connection.

With `--alternate` each phase with attacks follows a phase of as many calls without. The attacks are
then those of `load_attacks`, by a client with a quota: on the server's messages and threads as well
as by snippets. The report compares how long the other clients' calls took with and without attacks.

Strangers hold connections on which they send nothing, or half a header, and open another whenever
the server closes one.

Resources of the server are compared before (warm) and after: processes, descriptors, locks, memory,
sessions, queue. The exit status is 1 if anything was lost, wrong, doubled or left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.environment.__main__ import show
from benchmarks.environment.load_attacks import QUOTA, Attacker
from benchmarks.environment.load_clients import MIB, PATIENT, TOKEN, Client, Tally, short_attacks
from benchmarks.environment.measure import Row, at
from hrm_agent.environment.base import Environment
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.clients import hash_of
from hrm_agent.testing import block_until, wait_until
from tests.environment.attacks.host import descendants, is_running, open_descriptors, resident_bytes

ATTACKERS = "a token for attacks alone"
PHASES = 10
"""Pairs of phases, one without and one with attacks."""
SETTLE_SECONDS = 30.0
"""Maximum wait for slots that are being replaced, and for processes that are ending."""
REST_SECONDS = 1.0
"""Pause between two checks, after which ended processes are mostly gone."""
SAMPLES = 10
"""Number of memory samples while the calls run."""
ALLOWED = {"RSS of the server, MiB": 32.0, "Pss of all, MiB": 40.0, "answers kept": 10_000.0}
"""Allowed increase of each resource at the end; 0 for a resource that is not named. The server
keeps at most 10,000 outcomes, for calls that are submitted again: 20 MiB.
"""


@contextmanager
def server() -> Generator[tuple[subprocess.Popen[str], str, Path]]:
    """Start the server and yield its process, its address, and the file of its output."""
    with tempfile.TemporaryDirectory() as folder:
        known, said = Path(folder) / "clients", Path(folder) / "said"
        others, attacker = (
            f'token_sha256 = "{hash_of(token.encode())}"' for token in (TOKEN, ATTACKERS)
        )
        known.write_text(f"[others]\n{others}\n[attacker]\n{attacker}\ncalls = {QUOTA}\n")
        words = ["environment", "serve", "--port", "0", "--clients", str(known), "--json"]
        command = [sys.executable, "-m", "hrm_agent.cli.main", *words]
        with (
            said.open("w") as errors,
            subprocess.Popen(command, stdout=-1, stderr=errors, text=True) as process,
        ):
            assert process.stdout is not None
            try:
                yield process, json.loads(process.stdout.readline())["url"], said
            finally:
                process.kill()


@contextmanager
def strangers(url: str, number: int) -> Generator[list[int]]:
    """Hold `number` idle connections. After the block the yielded list holds one number: how many
    connections were opened.
    """
    command = [sys.executable, "-m", "benchmarks.environment.strangers", url, str(number)]
    opened: list[int] = []
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield opened
            opened.append(int(process.communicate(timeout=SETTLE_SECONDS)[0]))
        finally:
            process.kill()


async def gauges(environment: Environment) -> dict[str, float]:
    lines = [
        line.rpartition(" ")
        for line in (await environment.metrics()).splitlines()
        if line[:1] != "#"
    ]
    return {name.removeprefix("hrm_environment_"): float(value) for name, _, value in lines}


def outcomes(found: dict[str, float]) -> int:
    return int(sum(value for name, value in found.items() if name.startswith("calls_total")))


def memory(pid: int) -> dict[str, float]:
    pages = [Path(f"/proc/{each}/smaps_rollup") for each in (pid, *descendants(pid))]
    return {
        "RSS of the server, MiB": resident_bytes(pid) / MIB,
        "Pss of all, MiB": sum(map(_pss, pages)) / MIB,
    }


def _pss(path: Path) -> float:
    with suppress(OSError):
        if found := re.search(r"^Pss:\s+(\d+)", path.read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    return 0.0


async def standing(pid: int, environment: Environment) -> dict[str, float]:
    """Resources of the server."""
    found, below = await gauges(environment), descendants(pid)
    names = ("running", "waiting", "outside", "sessions_living", "sessions_known")
    return {
        "processes": len(below) + 1,
        "descriptors of the server": open_descriptors(pid),
        "descriptors of its processes": sum(map(open_descriptors, below)),
        "processes with a lock": len(_lockers() & {pid, *below}),
        **{name.replace("_", " "): found[name] for name in names},
        "answers kept": found["answers"],
        **memory(pid),
    }


def _lockers() -> set[int]:
    """Processes that hold a lock on a file."""
    return {int(line.split()[-4]) for line in Path("/proc/locks").read_text().splitlines()}


def grown(before: dict[str, float], after: dict[str, float]) -> list[str]:
    return [name for name in before if after[name] > before[name] + ALLOWED.get(name, 0.0)]


async def warm_up(environment: Environment, slots: int) -> None:
    """Run a call in each slot of both kinds and in a session."""
    for imports in ("", "import numpy, sympy\n"):
        for _ in range(5):
            code = f"{imports}import time\ntime.sleep(0.1)"
            await asyncio.gather(
                *(environment.execute(code, limits=PATIENT) for _ in range(2 * slots))
            )
        await environment.execute(imports, session="warm", limits=PATIENT)
        await environment.end_session("warm")


async def at_rest(pid: int, environment: Environment) -> dict[str, float]:
    """Resources once the processes that ended in the warm-up are gone."""
    looks: list[dict[str, float]] = [{}]

    async def nothing_ends() -> bool:
        looks.append(await standing(pid, environment))
        return all(
            looks[-1][name] == looks[-2].get(name) for name in looks[-1] if "MiB" not in name
        )

    await asyncio.sleep(REST_SECONDS)
    await wait_until(nothing_ends, SETTLE_SECONDS)
    return looks[-1]


async def settled(pid: int, environment: Environment, before: dict[str, float]) -> dict[str, float]:
    """Resources once they are as before, or after `SETTLE_SECONDS`."""

    async def as_before() -> bool:
        return not grown(before, await standing(pid, environment))

    with suppress(TimeoutError):
        await wait_until(as_before, SETTLE_SECONDS)
    return await standing(pid, environment)


async def load(options: argparse.Namespace, pid: int, url: str) -> dict[str, list[Row]]:
    watcher, tally, attacks = (
        await asyncio.to_thread(RemoteEnvironment, url, token=TOKEN),
        Tally(),
        short_attacks(),
    )
    await warm_up(watcher, int((await gauges(watcher))["slots"]))
    before, counted, began = (
        await at_rest(pid, watcher),
        outcomes(await gauges(watcher)),
        time.monotonic(),
    )
    clients = [
        Client(
            url,
            number,
            attacks,
            tally,
            Attacker(url, ATTACKERS, number) if options.alternate else None,
        )
        for number in range(options.clients)
    ]
    samples: list[Row] = []
    full = False
    """True once the server keeps the maximum number of answers. Memory at the end is compared with
    memory at that moment.
    """
    phases = (
        [("attacks", options.attacks)]
        if not options.alternate
        else [("quiet", 0.0), ("attacks", options.attacks)]
    )
    pairs = PHASES if options.alternate else 1
    calls = options.calls * len(phases)

    def done() -> None:
        if tally.made.total() * SAMPLES // calls > len(samples):
            row = {"calls": tally.made.total(), "seconds": time.monotonic() - began, **memory(pid)}
            samples.append(row | {"descriptors of the server": open_descriptors(pid)})

    with strangers(url, options.strangers) as opened:
        each = options.calls // pairs
        for phase in range(pairs * len(phases)):
            tally.phase, share = phases[phase % len(phases)]
            for client in clients:
                client.share = share
            first = phase * each
            shares = [
                range(first + number, first + each, options.clients)
                for number in range(options.clients)
            ]
            await asyncio.gather(
                *(client.make(share, done) for client, share in zip(clients, shares, strict=True))
            )
            if options.alternate and phase % 2 and not full:
                rest = await at_rest(pid, watcher)
                before |= {name: rest[name] for name in rest if "MiB" in name}
                full = rest["answers kept"] >= ALLOWED["answers kept"]
        await asyncio.gather(*(client.leave() for client in clients))
        seconds = time.monotonic() - began
    counts = await gauges(watcher)
    if (more := outcomes(counts) - counted - tally.outcomes) > 0:
        tally.blame("doubled", "counted by the server", f"{more} outcomes more than calls", more)
    after = await settled(pid, watcher, before)
    await watcher.close()
    left = grown(before, after)
    rows = [
        {
            "what": name,
            "before": before[name],
            "after": after[name],
            "left": "yes" if name in left else "",
        }
        for name in before
    ]
    for line in tally.told[:20]:
        print(line)
    whole = {
        "seconds": seconds,
        "calls/s": calls / seconds,
        "strangers' connections": opened[0],
        "slots that died": counts["slot_deaths"],
        "calls put back into the queue": counts["retries_total"],
    }
    found = {"load": [whole], "calls": tally.rows(), "while it ran": samples, "the server": rows}
    if options.alternate:
        found |= {"the others": _compared(tally), "attacks": [dict(tally.attacks)]}
    return found


def _compared(tally: Tally) -> list[Row]:
    """Durations of the other clients' calls, in seconds."""
    ordered = {phase: sorted(seconds) for phase, seconds in tally.seconds.items()}
    rows = [
        {
            "phase": phase,
            "calls": len(seconds),
            "p50 ms": at(seconds, 0.5) * 1e3,
            "p99 ms": at(seconds, 0.99) * 1e3,
        }
        for phase, seconds in ordered.items()
    ]
    parts = (("p50 ms", 0.5), ("p99 ms", 0.99))
    ratio = {
        name: at(ordered["attacks"], part) / at(ordered["quiet"], part) for name, part in parts
    }
    return [*rows, {"phase": "attacks / quiet", "calls": None, **ratio}]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000, help="of all clients together [20000]")
    parser.add_argument(
        "--clients", type=int, default=64, help="that each wait for their answer [64]"
    )
    parser.add_argument(
        "--attacks", type=float, default=0.05, help="share of the calls that are attacks [0.05]"
    )
    parser.add_argument(
        "--strangers", type=int, default=1024, help="connections without a token [1024]"
    )
    parser.add_argument(
        "--alternate", action="store_true", help="compare with as many calls without attacks"
    )
    parser.add_argument(
        "--quick", action="store_true", help="400 calls, half of the strangers: half a minute"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.calls, options.strangers = 400, options.strangers // 2
    with server() as (process, url, said):
        found = asyncio.run(load(options, process.pid, url))
        below = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        with suppress(TimeoutError):
            block_until(lambda: not any(map(is_running, below)), SETTLE_SECONDS)
        found["the end"] = [
            {"what": "exit status", "found": code},
            {"what": "processes that are left", "found": sum(map(is_running, below))},
            {"what": "tracebacks", "found": said.read_text().count("Traceback")},
        ]
        print(said.read_text()[-2000:], end="")
    for title, rows in found.items():
        show(title, rows)
    if options.json is not None:
        settings = {"cores": os.cpu_count(), "load": os.getloadavg(), "clients": options.clients}
        options.json.write_text(json.dumps({"settings": settings, **found}, indent=2) + "\n")
    faults = sum(found["calls"][-1][name] for name in ("lost", "wrong", "doubled"))
    left = [row for row in found["the server"] if row["left"]] + [
        row for row in found["the end"] if row["found"]
    ]
    return 1 if faults or left else 0


if __name__ == "__main__":
    sys.exit(main())
