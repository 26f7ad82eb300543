"""Histories without values need no LangGraph to be read and equal the full history without its
values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import StoreError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.time_travel.fork import fork, siblings
from hrm_agent.runtime.time_travel.history import History, Moment, Step
from hrm_agent.runtime.time_travel.read_history import history
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.browse.state import newest_plain_channels, outlines
from hrm_agent.store.values.plain_reader import NeedsItsType, SentTask
from hrm_agent.trajectory import TaskRef
from tests.support.graphs.scripts import TASK_PROMPT, Roles, multiplier


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


def bare(moment: Moment) -> Moment:
    def step(given: Step) -> Step:
        return replace(
            given,
            inside=tuple(
                replace(part, moments=tuple(map(bare, part.moments))) for part in given.inside
            ),
        )

    under_way = None if moment.under_way is None else step(moment.under_way)
    return replace(moment, values={}, ran=step(moment.ran), under_way=under_way)


def without_values(found: History) -> History:
    branches = tuple(
        replace(branch, history=without_values(branch.history)) for branch in found.branches
    )
    return replace(found, moments=tuple(map(bare, found.moments)), branches=branches)


@pytest.mark.parametrize(
    ("graph", "script"), [("tool_loop", lambda: multiplier), ("reasoning", Roles)]
)
async def test_of_the_built_in_graphs(
    graph: str, script: Callable[[], Any], store: RunStore, environment: LocalEnvironment
) -> None:
    task = TaskRef(id="1", family="test", prompt=TASK_PROMPT)
    with ScriptedEngine(script()) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        await runner.run(Episode(task, "thread", graph=graph, seed=1))
    with ScriptedEngine(script()) as engine:
        await siblings(EpisodeRunner(store, engine, "scripted", environment), "thread", 2, seed=7)
    fork(store, "thread", "last", edit={"messages": []}, name="edited")
    for thread in ("thread", "edited"):
        assert outlines(store, thread)
        found = history(store, thread, values=False)
        assert found == without_values(history(store, thread))
    assert found.moments and all(moment.values == {} for moment in found.walk())


class Visits(TypedDict):
    seen: Annotated[list[str], operator.add]
    places: set[str]


def visit(state: Visits) -> dict[str, Any]:
    return {"seen": [f"{state['seen'][0]}={interrupt({'where': state['seen'][0]})}"]}


def test_of_a_thread_without_a_recorder(store: RunStore) -> None:
    """Sent tasks, nodes that wait for two others, questions and sets."""
    builder = StateGraph(Visits).add_node("each", visit).add_node("left", lambda _: {"seen": ["l"]})
    builder.add_node("right", lambda _: {"places": {"x"}}).add_node(
        "both", lambda _: {"seen": ["both"]}
    )
    builder.add_edge(START, "left").add_edge(START, "right").add_edge(["left", "right"], "both")
    builder.add_conditional_edges(
        "both", lambda state: [Send("each", {**state, "seen": [p]}) for p in "ab"], ["each"]
    )
    graph = builder.compile(checkpointer=store.checkpointer)
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"seen": [], "places": {"start"}}, config)
    sent = [
        found.checkpoint["channel_values"].get("__pregel_tasks") for found in outlines(store, "t")
    ]
    assert [SentTask("each"), SentTask("each")] in sent
    for _ in range(2):
        found = history(store, "t", values=False)
        assert found == without_values(history(store, "t"))
        first = next(iter(found.last.questions), None)
        if first is not None:
            assert first.value in ({"where": "a"}, {"where": "b"})
            graph.invoke(Command(resume={first.id: "seen"}), config)


class Place:
    """Type that is not allowed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _asdict(self) -> dict[str, str]:
        return {"name": self.name}


def test_a_type_that_nobody_allowed_is_refused_as_ever(store: RunStore) -> None:
    builder = StateGraph(MessagesState).add_node(
        "say", lambda _: {"messages": [AIMessage("", artifact=Place("x"))]}
    )
    saver = store.checkpointer.with_allowlist([(Place.__module__, "Place")])
    builder.add_edge(START, "say").compile(checkpointer=saver).invoke(
        {"messages": []}, {"configurable": {"thread_id": "t"}}
    )
    with pytest.raises(NeedsItsType):
        outlines(store, "t")
    with pytest.raises(NeedsItsType):
        newest_plain_channels(store, "t", ["messages"])
    assert (
        newest_plain_channels(store, "t", ["sources"])
        == newest_plain_channels(store, "none", ["sources"])
        == {}
    )
    for values in (True, False):
        with pytest.raises(StoreError, match=r"Place, which is not allowed"):
            history(store, "t", values=values)
