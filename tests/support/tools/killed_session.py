"""A run whose first cell gives another result each time. It is killed when the policy is asked for
the step after the cell.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from hrm_agent.environment import Environment, LocalEnvironment
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.trajectory import TaskRef, Trajectory
from tests.support.graphs.scripts import boxed, call

SCRIPT = [
    call("fixed = 1\nfixed"),
    call("import time\ndrawn = time.time_ns()\ndrawn"),
    call("drawn"),
    boxed(1),
]
EPISODE = Episode(TaskRef(id="1", family="test", prompt="Draw."), "t", seed=1)


async def run(folder: Path, environment: Environment, *, dies: bool = False) -> Trajectory:
    def answer(messages: Sequence[BaseMessage]) -> str:
        number = sum(message.type == "tool" for message in messages)
        if dies and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return SCRIPT[number]

    with open_store(folder / "store.db") as store, ScriptedEngine(answer) as engine:
        return await EpisodeRunner(store, engine, "scripted", environment).run(EPISODE)


def opened(url: str, token: str) -> Environment:
    return RemoteEnvironment(url, token=token) if url else LocalEnvironment(slots=1)


async def main(folder: str, url: str, token: str) -> Any:
    await run(Path(folder), opened(url, token), dies=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
