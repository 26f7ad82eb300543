"""A run that dies by `kill -9` in a node that has read the clock and drawn ids.

python -m tests.support.graphs.killed_draws FOLDER MOMENT

MOMENT is the beginning of the log's line after which the process dies; `-` lets it end.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.messages import SystemMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.trajectory import TaskRef, Trajectory
from tests.support.graphs.drawing_agents import Model


async def think(state: MessagesState, last: str = "third") -> dict[str, Any]:
    """Ask three times. Each request contains the previous answer."""
    said = "nothing"
    for name in ("first", "second", last):
        prompt = (
            f"{name} {datetime.now(UTC).isoformat()} {time.time()} {uuid4()} {random.random()},"
            f" after {said}"
        )
        said = (await Model().ainvoke([SystemMessage(prompt)])).text
    return {"messages": [SystemMessage(said)]}


async def think_otherwise(state: MessagesState) -> dict[str, Any]:
    return await think(state, "fourth")


graph = StateGraph(MessagesState).add_node("think", think).add_edge(START, "think").compile()
otherwise = (
    StateGraph(MessagesState).add_node("think", think_otherwise).add_edge(START, "think").compile()
)
"""Graph after a change of its code."""


async def main(folder: Path) -> Trajectory:
    environment = LocalEnvironment()
    with open_store(folder / "store.db") as store, ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        task = TaskRef(id="1", family="test", prompt="Go.")
        done = await runner.run(
            Episode(task, "thread", graph="tests.support.graphs.killed_draws:graph")
        )
    await environment.close()
    return done


if __name__ == "__main__":
    os.environ |= {"AGENT_FOLDER": sys.argv[1], "AGENT_MOMENT": sys.argv[2]}
    ended = asyncio.run(main(Path(sys.argv[1])))
    assert ended.error is None, ended.error
