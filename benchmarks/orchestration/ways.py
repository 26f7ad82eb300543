"""Ways to run a conversation. Each way opens to a function that runs one conversation and returns
its final text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.orchestration import bare
from benchmarks.orchestration.conversation import PROBLEM, Instant, engine
from hrm_agent.environment import Environment, LocalEnvironment, using_environment
from hrm_agent.models import policy, using_policy
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.settings import Durability
from hrm_agent.store import open_store
from hrm_agent.trajectory import MemoryJournal, Recording, TaskRef, recording

__all__ = ["CAPTURE", "SANDBOX", "WAYS", "Opened"]

Converse = Callable[[int], Awaitable[str]]
"""Function that runs a conversation by its number, which names its thread, and returns the final
text.
"""
Opened = AbstractAsyncContextManager[Converse]
STOCK: dict[str, Callable[..., Any]] = {"tool_loop": bare.tool_loop, "reasoning": bare.reasoning}


@asynccontextmanager
async def plain(agent: str, folder: Path) -> AsyncGenerator[Converse]:
    with engine(agent) as opened:
        yield lambda _: bare.plain(opened, agent)


@asynccontextmanager
async def stock(agent: str, folder: Path, saver: str = "") -> AsyncGenerator[Converse]:
    """Stock LangGraph without our code, with a checkpointer of its own or with none."""
    async with AsyncExitStack() as stack:
        opened = stack.enter_context(engine(agent))
        graph = STOCK[agent](partial(bare.BareModel, engine=opened))
        if saver == "memory":
            graph = graph.copy(update={"checkpointer": InMemorySaver()})
        if saver == "sqlite":
            file = AsyncSqliteSaver.from_conn_string(str(folder / "stock.db"))
            graph = graph.copy(update={"checkpointer": await stack.enter_async_context(file)})
        yield partial(_said, graph)


@asynccontextmanager
async def ours_in_memory(agent: str, folder: Path) -> AsyncGenerator[Converse]:
    """Our graph, recorded in memory, without store and checkpoints."""
    with engine(agent) as opened, using_policy(opened), using_environment(Instant()):

        async def converse(number: int) -> str:
            with recording(Recording(MemoryJournal(), seed=number)):
                return await _said(load_graph(agent), number)

        yield converse


@asynccontextmanager
async def ours(
    agent: str,
    folder: Path,
    environment: Callable[[], Environment] = Instant,
    durability: Durability = "steps",
) -> AsyncGenerator[Converse]:
    """Our graph as every command runs it: an episode, with the store."""
    with open_store(folder / "store.db") as store, engine(agent) as opened:
        runner = EpisodeRunner(store, opened, "scripted", environment(), durability=durability)

        async def converse(number: int) -> str:
            task = TaskRef(id=str(number), family="benchmark", prompt=PROBLEM)
            trajectory = await runner.run(
                Episode(task, f"thread {number}", graph=agent, seed=number)
            )
            return trajectory.answer or ""

        try:
            yield converse
        finally:
            await runner.environment.close()


@asynccontextmanager
async def captured(agent: str, folder: Path, recorded: bool) -> AsyncGenerator[Converse]:
    """Stock graph on our store, whose model calls are recorded or not. Its tool calls are not
    recorded.
    """
    with open_store(folder / "store.db") as store, engine(agent) as opened:
        model = policy if recorded else partial(bare.BareModel, engine=opened)
        graph = STOCK[agent](model).copy(update={"checkpointer": store.checkpointer})

        async def converse(number: int) -> str:
            with recording(Recording(store.journal, seed=number)), using_policy(opened):
                return await _said(graph, number)

        yield converse


async def _said(graph: Any, number: int) -> str:
    """Run a graph with LangGraph's defaults and return the final text."""
    config = {"configurable": {"thread_id": f"thread {number}"}}
    end = await graph.ainvoke({"messages": [HumanMessage(PROBLEM)]}, config)
    return str(end["messages"][-1].text)


WAYS: dict[str, Callable[[str, Path], Opened]] = {
    "floor: plain Python": plain,
    "stock LangGraph": stock,
    "stock LangGraph, InMemorySaver": partial(stock, saver="memory"),
    "stock LangGraph, SqliteSaver": partial(stock, saver="sqlite"),
    "ours, in memory": ours_in_memory,
    "ours": ours,
    "ours, as collect and train rl": partial(ours, durability="calls"),
}
CAPTURE: dict[str, Callable[[str, Path], Opened]] = {
    "stock graph, our store, not recorded": partial(captured, recorded=False),
    "stock graph, our store, recorded": partial(captured, recorded=True),
}
SANDBOX: dict[str, Callable[[str, Path], Opened]] = {
    "ours, real sandbox": partial(ours, environment=LocalEnvironment)
}
