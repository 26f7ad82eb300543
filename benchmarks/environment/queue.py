"""Flood of all calls of a training step while slots are killed, and the highest arrival rate with
an acceptable mean latency.

    python -m benchmarks.environment.queue [--calls 45000] [--quick] [--json FILE]

`flood`: all calls are submitted at once; once a second a slot's process is killed. Every call
prints a unique number, so that an answer of another call is detected; every fourth call needs
numpy. The report counts calls that were lost (`infrastructure`), answered wrongly, answered twice
(by the environment's own count), run again because a slot died, or begun before a call that was
submitted earlier. Memory is that of this process, which holds the queue.

`rates`: calls arrive at random (Poisson), whether or not earlier ones are answered, at rising
shares of the flood's rate. The result is the highest rate with a mean latency of at most 0.3 s, the
mean of the paper's service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.environment.__main__ import show
from benchmarks.environment.measure import Row, at
from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.base import ExecutionResult, Submission

BEARABLE_SECONDS = 0.3
SHARES = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35)


class Asked:
    """Call with the times of its events."""

    __slots__ = ("answered", "asked", "number", "result", "taken")

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked = time.monotonic()
        self.taken = self.answered = 0.0
        self.result: ExecutionResult | None = None

    @property
    def code(self) -> str:
        if self.number % 4:
            return f"print({self.number} + 1)"
        return f"import numpy as np\nprint(int(np.array([{self.number}, 1]).sum()))"

    @property
    def lost(self) -> bool:
        return self.result is None or str(self.result.status) == "infrastructure"

    @property
    def wrong(self) -> bool:
        return (
            not self.lost
            and self.result is not None
            and self.result.stdout != f"{self.number + 1}\n"
        )

    @property
    def latency(self) -> float:
        return self.answered - self.asked

    @property
    def queued(self) -> float:
        return self.result.queued_seconds if self.result is not None else 0.0

    @property
    def attempt(self) -> int:
        return self.result.attempt if self.result is not None else 1


def ask(environment: LocalEnvironment, number: int) -> tuple[Asked, Future[ExecutionResult]]:
    call = Asked(number)

    def answered(future: Future[ExecutionResult]) -> None:
        call.answered, call.result = time.monotonic(), future.result()

    future = environment.submit(Submission(call.code))
    call.taken = time.monotonic()
    future.add_done_callback(answered)
    return call, future


def flood(calls: int, timeout: float) -> Row:
    environment = LocalEnvironment(queue_limit=calls)
    process = psutil.Process()
    try:
        warm = [ask(environment, number) for number in range(64)]
        for _, future in warm:
            future.result(timeout)
        before, started = process.memory_info().rss, time.monotonic()
        with _killing() as killed, _watching(process) as highest:
            asked = [ask(environment, number) for number in range(calls)]
            submitted = time.monotonic() - started
            for _, future in asked:
                future.result(max(1.0, started + timeout - time.monotonic()))
        seconds = time.monotonic() - started
        counted = outcomes(environment) - len(warm)
    finally:
        environment.shutdown()
    answered = [call for call, _ in asked]
    ordered = sorted(call.latency for call in answered)
    latency, queued = sum(ordered), sum(call.queued for call in answered)
    return {
        "calls": calls,
        "seconds": seconds,
        "calls/s": calls / seconds,
        "submitted in s": submitted,
        "slots killed": killed[0],
        "lost": sum(call.lost for call in answered),
        "wrong": sum(call.wrong for call in answered),
        "answered twice": counted - calls,
        "run again": sum(call.attempt > 1 for call in answered),
        "out of order": out_of_order(answered),
        "mean s": latency / calls,
        "p99 s": at(ordered, 0.99),
        "queue's share": queued / latency,
        "RSS before MB": before / 1e6,
        "RSS highest MB": highest[0] / 1e6,
        "RSS after MB": process.memory_info().rss / 1e6,
    }


def out_of_order(calls: Sequence[Asked]) -> int:
    """Number of calls that began before a call submitted earlier. Calls that run again are not
    counted, since they rightly go first.
    """
    latest, found = 0.0, 0
    for call in calls:
        if call.attempt > 1 or call.lost:
            continue
        # a call got its place in the queue between `asked` and `taken`
        found += call.taken + call.queued < latest
        latest = max(latest, call.asked + call.queued)
    return found


def outcomes(environment: LocalEnvironment) -> int:
    """Number of answers that the environment has given, by its own count."""
    lines = asyncio.run(environment.metrics()).splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if "_calls_total{status=" in line)


@contextmanager
def _killing() -> Generator[list[int]]:
    """Kill a process of the fork servers once a second. Yield the number so far."""
    killed, stop, chance = [0], threading.Event(), random.Random(0)

    def kill() -> None:
        while not stop.wait(1.0):
            slots = _slots()
            with suppress(ProcessLookupError):
                if slots:
                    os.kill(chance.choice(slots), signal.SIGKILL)
                    killed[0] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def _slots() -> list[int]:
    """Process ids of the slots: great-grandchildren of this process, below a child and its fork
    server.
    """
    return [
        slot
        for started in _children(os.getpid())
        for server in _children(started)
        for slot in _children(server)
    ]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


@contextmanager
def _watching(process: psutil.Process) -> Generator[list[int]]:
    """Maximum memory of the process during the block."""
    highest, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.1):
            highest[0] = max(highest[0], process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield highest
    finally:
        stop.set()
        thread.join()


def rates(most: float, seconds: float) -> list[Row]:
    """Rows at rising shares of `most` calls/s, until the latency is too high at two of them."""
    environment = LocalEnvironment()
    rows: list[Row] = []
    try:
        for _, future in [ask(environment, number) for number in range(64)]:
            future.result(60)
        for share in SHARES:
            rows.append(_at_rate(environment, most * share, seconds))
            if len(rows) > 1 and not rows[-1]["bearable"] and not rows[-2]["bearable"]:
                break
    finally:
        environment.shutdown()
    return rows


def _at_rate(environment: LocalEnvironment, rate: float, seconds: float) -> Row:
    chance, asked = random.Random(0), list[tuple[Asked, Future[ExecutionResult]]]()
    started = due = time.monotonic()
    while due - started < seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        asked.append(ask(environment, len(asked)))
        due += chance.expovariate(rate)
    for _, future in asked:
        future.result(120)
    calls = [call for call, _ in asked]
    ordered = sorted(call.latency for call in calls)
    mean = sum(ordered) / len(ordered)
    return {
        "arrivals/s": rate,
        "calls": len(calls),
        "mean s": mean,
        "p50 s": at(ordered, 0.5),
        "p99 s": at(ordered, 0.99),
        "queue's share": sum(call.queued for call in calls) / sum(ordered),
        "lost or wrong": sum(call.lost or call.wrong for call in calls),
        "bearable": mean <= BEARABLE_SECONDS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=45_000, help="submitted at once [45000]")
    parser.add_argument("--quick", action="store_true", help="3,000 calls, and shorter rates")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    # a call costs some ms: above 50 ms the queue is stuck
    calls = 3_000 if options.quick else options.calls
    flooded = flood(calls, timeout=120 + calls * 0.05)
    show("flood", [{"figure": name, "value": value} for name, value in flooded.items()])
    arrivals = rates(flooded["calls/s"], 3.0 if options.quick else 10.0)
    show("rates", arrivals)
    held = max((row["arrivals/s"] for row in arrivals if row["bearable"]), default=0.0)
    print(
        f"held at a mean of {BEARABLE_SECONDS} s: {held:,.0f} arrivals/s, {held * 60:,.0f} calls in"
        " a minute"
    )
    if options.json is not None:
        settings = {"cores": os.cpu_count(), "load": os.getloadavg()}
        found = {"settings": settings, "flood": flooded, "rates": arrivals, "held": held}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
