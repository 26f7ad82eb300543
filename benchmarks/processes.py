"""Speed-up by worker processes: the same rollouts by one process and by several, around one engine.

    python -m benchmarks.processes [--processes 1 2] [--problems 256] [--repeats 3] [--json FILE]

Rollouts of the small policy's tool loop, as in training: store, sandbox, journal. Each number of
processes has its own run, opened and warmed up before timing. Then they take turns, `--repeats`
times, on the same problems. The wall clock needs a quiet machine. CPU milliseconds are per rollout,
over all processes: the engine's thread, the rest of its process, the workers, and all their
sandboxes. The last column shows whether the tokens are equal to those of the first row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from hrm_agent.models import load_policy
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.rollout import group_episodes, open_run, rollout
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.workers.pool import RolloutWorkers, opened_workers

POLICY = "builtin:cold-start"
MAX_TOKENS = 256
WARM_UP = 32
Row = dict[str, Any]
Tokens = dict[str, list[tuple[int, ...]]]


def cpu_by_part(workers: RolloutWorkers | None, engine_thread: int) -> dict[str, float]:
    """CPU seconds so far, by part. Those of sandboxes are those of the living and ended children of
    the processes that run graphs.
    """
    ours = psutil.Process()
    engine = next(sum(each[1:]) for each in ours.threads() if each.id == engine_thread)
    graphs = [psutil.Process(pid) for pid in workers.pids] if workers is not None else []
    family = set(ours.children(recursive=True)) - set(graphs)
    own, theirs = ours.cpu_times(), [each.cpu_times() for each in graphs]
    dead = sum(times.children_user + times.children_system for times in (own, *theirs))
    return {
        "engine": engine,
        "its process": own.user + own.system - engine,
        "workers": sum(times.user + times.system for times in theirs),
        "sandbox": dead + sum(map(cpu_seconds, family)),
    }


def cpu_seconds(process: psutil.Process) -> float:
    try:
        return sum(process.cpu_times()[:4])
    # a call's process ended meanwhile: its parent's figures include it
    except psutil.NoSuchProcess:
        return 0.0


class Run:
    """Run with the worker processes for its graphs."""

    def __init__(
        self,
        runner: EpisodeRunner,
        config: CollectConfig,
        tasks: list[Any],
        workers: RolloutWorkers | None,
    ) -> None:
        self.runner, self.config, self.workers = runner, config, workers
        self._tasks = tasks
        engine: Any = runner.backend
        self._engine_thread = int(engine._loop.native_id)

    async def rollouts(self, stage: str, count: int) -> Tokens:
        episodes = group_episodes(
            self._tasks[:count], 1, run_id="run", stage=stage, seed=0, graph=self.config.graph
        )
        found = await rollout(
            self.runner, episodes, concurrency=self.config.concurrency, workers=self.workers
        )
        return {each.task.id: [call.token_ids for call in each.calls] for each in found}

    async def timed(self, stage: str, count: int) -> tuple[Row, Tokens]:
        wall, before = time.perf_counter(), cpu_by_part(self.workers, self._engine_thread)
        tokens = await self.rollouts(stage, count)
        wall, after = time.perf_counter() - wall, cpu_by_part(self.workers, self._engine_thread)
        spent = {part: (after[part] - before[part]) / count * 1e3 for part in after}
        return {"s_wall": wall, "ms_cpu": sum(spent.values()), **spent}, tokens


async def compare(processes: list[int], problems: int, repeats: int) -> list[Row]:
    """Medians over `repeats`, and the ratio of wall clocks to the first, per repeat."""
    engine = load_policy(POLICY)
    found: dict[int, list[Row]] = {count: [] for count in processes}
    same = dict.fromkeys(processes, True)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs: dict[int, Run] = {}
        for count in processes:
            config = CollectConfig(
                policy=POLICY, count=problems, max_tokens=MAX_TOKENS, processes=count
            )
            draw = partial(
                load_tasks, config.tasks, split=config.split, seed=config.seed, count=problems
            )
            runner = await stack.enter_async_context(
                open_run(folder / str(count), POLICY, config, backend=engine)
            )
            opened = opened_workers(count, runner, config, draw=draw)
            runs[count] = Run(runner, config, draw(), await stack.enter_async_context(opened))
            await runs[count].rollouts("warm-up", WARM_UP)
        for repeat in range(repeats):
            first: Tokens | None = None
            for count, run in runs.items():
                row, tokens = await run.timed(f"repeat-{repeat}", problems)
                first = first or tokens
                same[count] &= tokens == first
                found[count].append(row)
    base = found[processes[0]]
    rows: list[Row] = []
    for count, timed in found.items():
        ratio = statistics.median(
            a["s_wall"] / b["s_wall"] for a, b in zip(timed, base, strict=True)
        )
        medians = {key: statistics.median(row[key] for row in timed) for key in timed[0]}
        rows.append({"processes": count, **medians, "of_first": ratio, "same_tokens": same[count]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="The same rollouts by one process and by several")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    rows = asyncio.run(compare(arguments.processes, arguments.problems, arguments.repeats))
    table = Table(*rows[0])
    for row in rows:
        table.add_row(
            *(f"{value:,.3f}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
