"""A run that a test kills: rollouts of both built-in graphs, with every engine and tool call logged outside the
process.

    python -m tests.graphs.kill_driver FOLDER

A line of the log is written when the engine is asked or the sandbox called: `model SEED` or `tool CODE`. The seed
names a model call, because it is a function of its place in the run; the code names a tool call, because each task
has numbers of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from graphs.episode import EpisodeRunner
from graphs.prompts import TOOL_LOOP_PROMPT
from hrm_agent.environment import ExecutionResult, LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import open_store
from hrm_agent.trajectory import Trajectory
from tests.graphs.scripts import Roles, multiplier
from training.rollout import group_episodes, rollout
from training.tasks import Task

TASKS = 12


class Log:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def tool_line(code: str) -> str:
    return "tool " + code.replace("\n", " ")


class LoggedEngine(ScriptedEngine):
    log: Log

    def submit(self, request: Any) -> Any:
        self.log.write(f"model {request.sampling.seed}")
        return super().submit(request)


class LoggedEnvironment(LocalEnvironment):
    log: Log

    async def execute(self, code: str, **options: Any) -> ExecutionResult:
        self.log.write(tool_line(code))
        return await super().execute(code, **options)


def answer(messages: Any) -> str:
    time.sleep(0.005)
    roles = Roles()
    number = messages[1].text.partition("Sort ")[2].partition(":")[0]
    roles.plan = {
        "subgoals": [
            {"name": "apples", "goal": f"3 * {number}", "needs": []},
            {"name": "pears", "goal": f"5 * {number}", "needs": []},
            {"name": "total", "goal": "apples + pears", "needs": ["apples", "pears"]},
        ]
    }
    return multiplier(messages) if messages[0].text == TOOL_LOOP_PROMPT else roles(messages)


def tasks(graph: str) -> list[Task]:
    prompts = [f"What is {i + 11} * 7?" if graph == "tool_loop" else f"Sort {i + 11}: fruit" for i in range(TASKS)]
    return [
        Task(str(i), "test", prompt, lambda text: float("Answer" in text or "boxed" in text))
        for i, prompt in enumerate(prompts)
    ]


async def main(folder: Path) -> list[Trajectory]:
    log = Log(folder / "log.txt")
    engine, environment = LoggedEngine(answer), LoggedEnvironment()
    engine.log = environment.log = log
    episodes = [
        episode
        for graph in ("tool_loop", "reasoning")
        for episode in group_episodes(tasks(graph), 1, run_id="run", stage=graph, seed=7, graph=graph)
    ]
    with open_store(folder / "store.db") as store, engine:
        done = await rollout(EpisodeRunner(store, engine, "scripted", environment), episodes, concurrency=8)
    await environment.close()
    return done


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
    print("complete")
