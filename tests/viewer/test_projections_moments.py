"""Pages of moments, for threads with branches in place, subgraphs and questions, agree with the
whole history.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from hrm_agent.cli.common.tree import tree_data
from hrm_agent.runtime.time_travel.read_history import history
from hrm_agent.store import open_store
from hrm_agent.trajectory import StopReason
from hrm_agent.viewer.json_text import NotThere, json_text
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections.trajectory.graph import graph
from hrm_agent.viewer.projections.trajectory.moments import moment, moments
from hrm_agent.viewer.projections.trajectory.trajectory import commands_of
from tests.support.trajectory.samples import make_trajectory


class _State(TypedDict):
    done: Annotated[list[str], operator.add]
    count: int


class _Thoughts(TypedDict):
    done: Annotated[list[str], operator.add]


def _think(state: _State) -> dict[str, Any]:
    return {"done": [f"thought {state['count']}"]}


def _inner() -> Any:
    inner = StateGraph(_State, output_schema=_Thoughts)
    inner.add_node("think", _think)
    inner.add_edge(START, "think")
    return inner.compile()


def _ask(state: _State) -> dict[str, Any]:
    return {"done": [str(interrupt("go on?")), str(state["count"])]}


def _outer(saver: Any) -> Any:
    outer = StateGraph(_State)
    outer.add_node("work", lambda state: {"count": state["count"] + 1, "done": ["worked"]})
    outer.add_node("inside", _inner())
    outer.add_node("ask", _ask)
    outer.add_edge(START, "work")
    outer.add_conditional_edges(
        "work",
        lambda state: [Send("inside", state), Send("inside", {**state, "count": 9})],
        ["inside"],
    )
    outer.add_conditional_edges(
        "inside", lambda state: "work" if state["count"] < 2 else "ask", ["work", "ask"]
    )
    outer.add_edge("ask", END)
    return outer.compile(checkpointer=saver)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path: Path = tmp_path_factory.mktemp("moments") / "store.db"
    config: Any = {"configurable": {"thread_id": "t"}}
    with open_store(path) as store:
        compiled = _outer(store.checkpointer)
        compiled.invoke({"done": [], "count": 0}, config)
        earlier = [
            each for each in compiled.get_state_history(config) if each.values.get("count") == 1
        ]
        compiled.update_state(earlier[0].config, {"done": ["edited"]}, as_node="work")
        compiled.invoke(None, config)
        found = Place("store", str(path), None)
        yield found
        found.close()


def whole(place: Place) -> list[dict[str, Any]]:
    with open_store(place.where, create=False) as store:
        return json.loads(json.dumps(tree_data(history(store, "t", values=False))))["moments"]


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
def test_pages_together_are_the_whole_history(place: Place, limit: int) -> None:
    told, found, after = whole(place), list[dict[str, Any]](), 0
    while after is not None:
        page = json.loads(json_text(moments(place, "t", after, limit)))
        found += page["moments"]
        after = page["next"]
    assert [{name: each[name] for name in told[0]} for each in found] == told
    assert any(each["inside"] for each in found) and found[-1]["interrupts"][0]["value"] == "go on?"
    assert len({each["parent"] for each in found}) < len(found), "there is a branch"


def test_one_moment_with_its_question(place: Place) -> None:
    told = whole(place)
    found = moment(place, "t", told[-1]["checkpoint"])
    assert found["interrupts"][0]["value"] == "go on?" and found["next"] == ["ask"]
    channels = {channel["name"]: channel for channel in found["channels"]}
    assert channels["count"]["value"] == 2 and channels["done"]["kind"] == "json"
    inside = next(run for each in told for run in each["inside"])["moments"][-1]
    nested = moment(place, "t", f"{inside['checkpoint']}|{inside['namespace']}")
    assert {channel["name"] for channel in nested["channels"]} == {"done", "count"} and nested[
        "moment"
    ] is None
    with pytest.raises(NotThere):
        moment(place, "t", "1f1e93a3-46c0-6a75-8008-e2fef11c0f71")


def test_observed_transitions(place: Place) -> None:
    found = graph(place, "t")
    taken = {(edge["from"], edge["to"]): edge["taken"] for edge in found["edges"]}
    assert found["source"] == "observed" and taken["__start__", "work"] == 1
    assert taken["work", "inside"] >= 4 and taken["inside", "ask"] >= 1


def test_a_run_that_waits_says_how_it_is_answered(place: Place) -> None:
    asked = make_trajectory(stop_reason=StopReason.INTERRUPT, thread_id="a thread")
    assert commands_of(place, asked)["resume"].startswith("hrm-agent resume 'a thread' --answer ")
    assert "resume" not in commands_of(place, make_trajectory())
