"""A task that failed or was cancelled is run again,
whatever it had written to the state by then.
"""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from hrm_agent.store import RunStore

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


def say(name: str) -> Any:
    return lambda _: {"seen": [name]}


def routed(saver: BaseCheckpointSaver[Any], route: Any, error_handler: Any = None) -> Any:
    """Graph that runs `first`, then `second` if `route` returns it."""
    builder = StateGraph(State)
    builder.add_node("first", say("first"), error_handler=error_handler)
    builder.add_node("second", say("second"))
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", route, ["second", END])
    return builder.compile(checkpointer=saver)


async def test_cancelled_between_its_write_and_its_edge(store: RunStore) -> None:
    asked = asyncio.Event()

    async def route(_: State) -> str:
        if asked.is_set():
            return "second"
        asked.set()
        return await asyncio.Future[str]()

    async def run() -> None:
        async for _ in graph.astream({"seen": []}, CONFIG, durability="sync", subgraphs=True):
            pass

    graph = routed(store.checkpointer, route)
    running = asyncio.create_task(run())
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await graph.aget_state(CONFIG)).next == ("first",)
    assert await graph.ainvoke(None, CONFIG, durability="sync") == {"seen": ["first", "second"]}


def test_failed_between_its_write_and_its_edge(store: RunStore) -> None:
    failures = [ValueError("not yet"), ValueError("not yet")]

    def route(_: State) -> str:
        if failures:
            raise failures.pop()
        return "second"

    graph = routed(store.checkpointer, route)
    for given in ({"seen": []}, None):
        with pytest.raises(ValueError, match="not yet"):
            graph.invoke(given, CONFIG, durability="sync")
        assert graph.get_state(CONFIG).next == ("first",)
    assert graph.invoke(None, CONFIG, durability="sync") == {"seen": ["first", "second"]}


@pytest.mark.parametrize("kept", ["by LangGraph", "in the store"])
def test_an_error_that_the_graph_handles_leaves_what_was_written(
    kept: str, store: RunStore
) -> None:
    failures = [KeyError("handler")]

    def route(_: State) -> str:
        raise ValueError("always")

    def handle(_: State) -> State:
        if failures:
            raise failures.pop()
        return {"seen": ["handled"]}

    graph = routed(InMemorySaver() if kept == "by LangGraph" else store.checkpointer, route, handle)
    with pytest.raises(KeyError):
        graph.invoke({"seen": []}, CONFIG, durability="sync")
    assert graph.invoke(None, CONFIG, durability="sync") == {"seen": ["first", "handled"]}


def test_a_task_that_ended_after_an_error_is_taken_over_as_ended(store: RunStore) -> None:
    """The task's error stays on record beside its writes. The other task is the only one still to
    be run.
    """
    ran, failing = Counter[str](), {"a", "b"}

    def node(name: str) -> Any:
        def run(_: State) -> State:
            ran[name] += 1
            if name in failing:
                raise ValueError(name)
            return {"seen": [name]}

        return run

    builder = StateGraph(State)
    for name in "ab":
        builder.add_node(name, node(name))
        builder.add_edge(START, name)
    theirs = InMemorySaver()
    graph = builder.compile(checkpointer=theirs)
    for given, mended in (({"seen": []}, "a"), (None, "b")):
        with pytest.raises(ValueError, match=r"^[ab]\b"):
            graph.invoke(given, CONFIG, durability="sync")
        failing.remove(mended)
    for found in reversed(list(theirs.list(CONFIG))):
        store.checkpointer.adopt(found, {})
    before = ran.copy()
    assert builder.compile(checkpointer=store.checkpointer).invoke(None, CONFIG)["seen"] == [
        "a",
        "b",
    ]
    assert ran - before == Counter("b")
