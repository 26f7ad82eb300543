"""Records the planted runs in a store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.failures.plants import LostEnvironment, Plant
from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.trajectory import Sampling, TaskRef

__all__ = ["record"]

RUN = "planted"
SHARED_SECONDS = 60.0


def record(folder: Path, plants: Iterable[Plant]) -> dict[str, str]:
    """Run the plants and record them in `folder`. Returns the planted class by thread."""
    return asyncio.run(_record(folder, [*plants]))


async def _record(folder: Path, plants: list[Plant]) -> dict[str, str]:
    environment = LocalEnvironment(slots=8)
    found: dict[str, str] = {}
    try:
        with open_store(folder / "store.db") as store:
            gate = asyncio.Semaphore(16)
            engines = [ScriptedEngine(plant.script) for plant in plants]
            runner = EpisodeRunner(
                store,
                engines[0],
                "scripted",
                environment,
                Sampling(max_tokens=2**14),
                repeats_errors=True,
            )

            async def run(number: int, plant: Plant, engine: ScriptedEngine) -> None:
                thread = f"{RUN}/{number}"
                found[thread] = plant.planted
                own = replace(
                    runner,
                    backend=engine,
                    environment=LostEnvironment() if plant.lost else environment,
                )
                task = TaskRef(
                    id=str(number), family=plant.planted, prompt=plant.prompt, answer=plant.answer
                )
                episode = Episode(
                    task,
                    thread,
                    graph=plant.graph,
                    run_id=RUN,
                    seed=number,
                    context=plant.context,
                    verify=plant.verifier,
                )
                async with gate:
                    await own.run(episode)
                engine.close()

            await asyncio.gather(
                *(run(i, *each) for i, each in enumerate(zip(plants, engines, strict=True)))
            )
    finally:
        await environment.close()
    return found
