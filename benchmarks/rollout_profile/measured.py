"""Measurement in a separate process that prints one line of JSON. It runs under the tree that
PYTHONPATH names.

It uses only parts of the project that earlier commits have, too: `collect`, `open_store`,
`load_policy`. Counts come from wrapped functions of the libraries underneath.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
from asyncio import events
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
import psutil

from hrm_agent.models import GenerationRequest, load_policy
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.tasks import load_tasks

POLICY = "builtin:cold-start"
MAX_TOKENS = 256
_MOUNT = Path("/sys/fs/cgroup")
total_seconds: ContextVar[Callable[[], float] | None] = ContextVar("total_seconds", default=None)
"""Clock of the open block of `accounted` (None outside)."""


def thread_seconds() -> dict[str, float]:
    """CPU seconds so far of each part of this process, and of its children."""
    found = {"engine": 0.0, "loop": 0.0}
    for thread in threading.enumerate():
        part = (
            "engine"
            if thread.name.startswith("engine ")
            else "loop"
            if thread is threading.main_thread()
            else ""
        )
        if part and thread.ident is not None:
            found[part] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    own = time.process_time()
    found["other threads"] = own - sum(found.values())
    found["children"] = (
        clock() - own if (clock := total_seconds.get()) is not None else child_seconds()
    )
    return found


@contextmanager
def accounted() -> Generator[tuple[Callable[[], float], str]]:
    """Clock of CPU seconds of this process and all its descendants, and the name of its source: a
    cgroup if possible, otherwise the processes' own times.

    The seconds of a process reach its parent when the parent waits for the process. A sandbox that
    is shut down loses the seconds of processes that it has not waited for, up to a quarter of a
    short run. A cgroup counts all.
    """
    for place, file, unit in _accounts():
        group = place / f"benchmark-{os.getpid()}"
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield partial(_read, group / file, unit), "cgroup"
        finally:
            with suppress(OSError):  # it cannot be removed while it has a process
                (place / "cgroup.procs").write_text(str(os.getpid()))
                group.rmdir()
        return
    yield (lambda: time.process_time() + child_seconds()), "processes"


def _read(file: Path, unit: float) -> float:
    """Seconds in a file: `cpuacct.usage` has a number, `cpu.stat` begins with its name."""
    return float(file.read_text(encoding="ascii").splitlines()[0].split()[-1]) / unit


def _accounts() -> Generator[tuple[Path, str, float]]:
    """Folders in which a cgroup may be created, each with the name of the file that holds the CPU
    time, and the units per second of that file.
    """
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers and (_MOUNT / "cgroup.controllers").exists():
            yield _MOUNT / path.lstrip("/"), "cpu.stat", 1e6
        elif "cpuacct" in controllers.split(","):
            yield _MOUNT / "cpuacct" / path.lstrip("/"), "cpuacct.usage", 1e9


def child_seconds() -> float:
    own = psutil.Process()
    total = sum(own.cpu_times()[2:4])
    for child in own.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:  # ended meanwhile: its parent has its seconds
            continue
    return total


@contextmanager
def counting(counts: Counter[str]) -> Generator[None]:
    """Count operations inside the block. No seconds are measured meanwhile, since counting costs
    time.
    """
    kept = (events.Handle._run, asyncio.BaseEventLoop.create_task, jinja2.Template.render)  # type: ignore[attr-defined]
    whole = (
        TransformersEngine._step,
        ChatTemplateCodec._encode_turn,
    )  # pyright: ignore[reportPrivateUsage]
    connect = sqlite3.connect

    def connected(*given: Any, **named: Any) -> sqlite3.Connection:
        made = connect(*given, **named)
        made.set_trace_callback(statement)
        return made

    def statement(text: str) -> None:
        counts["statements"] += 1
        if text.startswith("BEGIN"):
            counts["transactions" if "IMMEDIATE" in text else "reads"] += 1

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*given, **named)

        return call

    changed: Any = (
        events.Handle,
        asyncio.BaseEventLoop,
        jinja2.Template,
        TransformersEngine,
        ChatTemplateCodec,
    )
    names = ("_run", "create_task", "render", "_step", "_encode_turn")
    told = ("loop callbacks", "tasks", "template renders", "engine steps", "encoded turns")
    for owner, name, what, function in zip(changed, names, told, (*kept, *whole), strict=True):
        setattr(owner, name, counted(what, function))
    sqlite3.connect = connected  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = connect
        for owner, name, function in zip(changed, names, (*kept, *whole), strict=True):
            setattr(owner, name, function)


@cache
def drawn(count: int, seed: int) -> list[Any]:
    """Word problems, drawn before timing: a training draws only one for each group."""
    return list(load_tasks("word_problems", split=CollectConfig().split, seed=seed, count=count))


async def rollouts(
    count: int, folder: Path, graph: str, seed: int, options: dict[str, Any]
) -> list[Any]:
    config = CollectConfig(
        policy=POLICY, graph=graph, count=count, max_tokens=MAX_TOKENS, seed=seed, **options
    )
    return await collect(config, folder, tasks=drawn(count, seed), backend=load_policy(POLICY))  # pyright: ignore[reportArgumentType]


def conversations(folder: Path) -> list[list[GenerationRequest]]:
    """Requests to the engine in a run, turn by turn, one list per trajectory."""
    found: list[list[GenerationRequest]] = []
    with open_store(folder) as store:
        for trajectory in store.journal.trajectories(requests=False):
            calls = [call for call in trajectory.calls if call.token_ids]
            prompts = [store.journal.path_tokens(call.id)[: -call.sampled_tokens] for call in calls]
            asked = zip(prompts, calls, strict=True)
            found.append([GenerationRequest(prompt, call.sampled_with) for prompt, call in asked])
    return found


def closed_loop(engine: Any, asked: list[list[GenerationRequest]]) -> None:
    """Run all conversations in parallel. Each submits its next turn as soon as the previous one is
    answered.
    """
    left, done = threading.Semaphore(0), len(asked)

    def turn(requests: list[GenerationRequest], at: int) -> None:
        if at == len(requests):
            left.release()
            return

        def answered(future: Future[Any]) -> None:
            turn(requests, at + 1)

        engine.submit(requests[at]).add_done_callback(answered)

    for requests in asked:
        turn(requests, 0)
    for _ in range(done):
        left.acquire()


def spent(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    before, clock = thread_seconds(), time.perf_counter()
    result = work()
    cpu = {part: seconds - before[part] for part, seconds in thread_seconds().items()}
    return {**cpu, "CPU": sum(cpu.values()), "wall": time.perf_counter() - clock}, result


def measure(count: int, graph: str, options: dict[str, Any], *, counts_too: bool) -> dict[str, Any]:
    engine: Any = load_policy(POLICY)
    drawn(count, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(rollouts(min(count, 32), folder / "warm", graph, 1, options))
        engine.publish(0)
        seconds, found = spent(
            lambda: asyncio.run(rollouts(count, folder / "run", graph, 0, options))
        )
        asked = conversations(folder / "run")
        engine.publish(0)
        bare, _ = spent(lambda: closed_loop(engine, asked))
        size = sum(path.stat().st_size for path in (folder / "run").glob("store.db*"))
        calls = sum(len(trajectory.calls) for trajectory in found)
        row: dict[str, Any] = {
            "rollouts": len(found),
            "calls": calls,
            "seconds": seconds,
            "bare": bare,
            "store bytes": size,
            "sampled": sum(
                call.sampled_tokens for trajectory in found for call in trajectory.calls
            ),
        }
        if counts_too:
            counts, closed = Counter[str](), Counter[str]()
            engine.publish(0)
            with counting(counts):
                asyncio.run(rollouts(count, folder / "counted", graph, 0, options))
            engine.publish(0)
            with counting(closed):
                closed_loop(engine, asked)
            row |= {"counts": counts, "bare engine steps": closed["engine steps"]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--graph", default="tool_loop")
    parser.add_argument(
        "--options", type=json.loads, default={}, help="further fields of CollectConfig, as JSON"
    )
    parser.add_argument("--counts", action="store_true")
    given = parser.parse_args()
    with accounted() as (clock, told):
        total_seconds.set(clock)
        row = measure(given.rollouts, given.graph, given.options, counts_too=given.counts)
    sys.stdout.write(json.dumps(row | {"children told by": told}, default=dict) + "\n")


if __name__ == "__main__":
    main()
