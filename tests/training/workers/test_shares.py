"""Shares of rollout workers, and worker deaths that end a run. The workers are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hrm_agent.errors import RunError
from hrm_agent.models import Engine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.training.workers.handle import WorkerDiedError, WorkerHandle
from hrm_agent.training.workers.pool import RolloutWorkers
from hrm_agent.training.workers.wire import WorkerSetup
from hrm_agent.trajectory import TaskRef, Trajectory


class StandIn(WorkerHandle):
    """Worker whose runs end when a test calls `finish` or `die`."""

    pid = 0

    def __init__(self, place: str) -> None:
        super().__init__({})
        self.place = place

    async def open(self, setup: WorkerSetup) -> None: ...
    async def close(self) -> None: ...
    async def kill(self) -> None: ...
    def write(self, frame: bytes) -> None: ...

    def die(self) -> None:
        self.end_all(WorkerDiedError(f"on {self.place}"))

    def finish(self) -> None:
        """End one run."""
        next(ended for ended in self._runs.values() if not ended.done()).set_result(
            cast(Trajectory, None)
        )


class Pool:
    """Pool whose workers a test opens one by one."""

    def __init__(self, runner: EpisodeRunner, count: int) -> None:
        self.wanted: asyncio.Queue[asyncio.Future[StandIn]] = asyncio.Queue()
        setup: Any = SimpleNamespace(policy="scripted", mode=None)
        self.workers = RolloutWorkers(setup, count, runner, self._open)

    async def _open(self, engines: dict[str, Engine], setup: WorkerSetup) -> StandIn:
        del engines, setup
        place: asyncio.Future[StandIn] = asyncio.get_running_loop().create_future()
        self.wanted.put_nowait(place)
        return await place

    async def opens(self, place: str) -> StandIn:
        worker = StandIn(place)
        (await self.wanted.get()).set_result(worker)
        return worker

    def run(self, count: int) -> list[asyncio.Task[Trajectory]]:
        episodes = [
            Episode(TaskRef(family="f", id="t", prompt="?"), f"run/{n}", "a:graph")
            for n in range(count)
        ]
        return [asyncio.create_task(self.workers.run(episode)) for episode in episodes]


@asynccontextmanager
async def pool(tmp_path: Path, count: int) -> AsyncGenerator[Pool]:
    with open_store(tmp_path / "store.db") as store:
        runner: Any = SimpleNamespace(backend="scripted", store=store)
        opened = Pool(runner, count)
        try:
            yield opened
        finally:
            await opened.workers.close()


async def settled() -> None:
    """Let all pending tasks run as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_run_begins_with_the_first_worker_and_keeps_the_share_of_those_to_come(
    tmp_path: Path,
) -> None:
    async with pool(tmp_path, 3) as opened:
        runs = opened.run(9)
        first = await opened.opens("a")
        await settled()
        assert first.runs == 3
        second = await opened.opens("b")
        await settled()
        assert (first.runs, second.runs) == (3, 3)
        for _ in range(3):  # the third finds no place for now: what others have done makes room
            first.finish()
            await settled()
        assert (first.runs, second.runs) == (2, 3)
        while not all(run.done() for run in runs):
            for worker in (first, second):
                if worker.runs:
                    worker.finish()
            await settled()
        assert (first.runs, second.runs) == (0, 0)


async def test_workers_that_are_lost_with_their_node_count_as_one_death(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with pool(tmp_path, 4) as opened:
        runs = opened.run(8)
        lost = [await opened.opens("a") for _ in range(4)]
        await settled()
        for worker in lost:
            worker.die()
        again = [await opened.opens("b") for _ in range(4)]
        while not all(run.done() for run in runs):
            for worker in again:
                if worker.runs:
                    worker.finish()
            await asyncio.sleep(0)
        await asyncio.gather(*runs)
    assert (
        capfd.readouterr().err.count(
            "A rollout worker died on a; its open rollouts go on in another"
        )
        == 4
    )


async def test_deaths_one_after_another_end_the_run_wherever_they_are(tmp_path: Path) -> None:
    async with pool(tmp_path, 1) as opened:
        (run,) = opened.run(1)
        for _ in range(3):
            worker = await opened.opens("a")
            while not worker.runs:
                await asyncio.sleep(0)
            worker.die()
        with pytest.raises(
            RunError, match="3 rollout workers died one after another, the last one on a"
        ):
            await run


async def test_what_ends_the_cluster_ends_every_run(tmp_path: Path) -> None:
    async with pool(tmp_path, 2) as opened:
        runs = opened.run(4)
        await opened.opens("a")
        await settled()
        opened.workers.fail(RunError("The head is gone."))
        found = await asyncio.gather(*runs, return_exceptions=True)
        assert [str(each).strip() for each in found] == ["The head is gone."] * 4


async def test_closed_workers_open_none_for_a_rollout_that_goes_on(tmp_path: Path) -> None:
    """Ray would connect anew for it, by itself, and that connection would outlive the run."""
    async with pool(tmp_path, 1) as opened:
        open_runs = opened.run(2)
        lost = await opened.opens("a")
        await settled()
    lost.die()
    found = await asyncio.gather(*open_runs, *opened.run(1), return_exceptions=True)
    assert [str(each) for each in found] == [
        "The rollout workers are closed: their run has ended."
    ] * 3
    assert opened.wanted.empty()
