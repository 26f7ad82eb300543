"""JSON given as a graph's input, where the state declares classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.graph import START, StateGraph, add_messages
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.conversation import first_input
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TASK_INPUTS, TaskRef


class Animal(BaseModel):
    name: str
    length: float = Field(default=1.0, gt=0)


@dataclass
class Zoo:
    animals: list[Animal] = field(default_factory=list[Animal])


class Keeper(TypedDict, total=False):
    said: Annotated[list[BaseMessage], add_messages]
    zoo: Zoo
    newest: Animal | None
    by_name: dict[str, Animal]
    notes: dict[str, Any]
    answer: str


@dataclass
class Visit:
    zoo: Zoo
    answer: str = ""


class Whole(BaseModel):
    zoo: Zoo
    count: int = 0
    answer: str


def count(state: Any) -> dict[str, Any]:
    zoo: Zoo = state["zoo"] if isinstance(state, dict) else state.zoo
    return {"answer": str(sum(animal.length for animal in zoo.animals))}


def graph_of(state: Any) -> Any:
    return StateGraph(state).add_node("count", count).add_edge(START, "count").compile()


def asked(**inputs: Any) -> TaskRef:
    return TaskRef(id="t", family="test", prompt="How long?", metadata={TASK_INPUTS: inputs})


WHALE = {"name": "whale", "length": 30}


def test_fields_get_the_objects_that_they_declare() -> None:
    notes = {"zoo": {"animals": [WHALE]}}
    said = [{"role": "user", "content": "a"}]
    task = asked(
        zoo={"animals": [WHALE]}, newest=WHALE, by_name={"w": WHALE}, notes=notes, said=said
    )
    found = first_input(graph_of(Keeper), task, "t")
    whale = Animal(name="whale", length=30)
    assert (
        found["zoo"] == Zoo([whale])
        and found["newest"] == whale
        and found["by_name"] == {"w": whale}
    )
    assert found["notes"] == notes and found["said"] == said, "as LangGraph takes them"
    assert first_input(graph_of(Keeper), asked(newest=None), "t") == {"newest": None}


@pytest.mark.parametrize("state", [Keeper, Visit, Whole])
async def test_nodes_see_them_and_the_run_is_replayed(
    state: Any, store: RunStore, environment: LocalEnvironment
) -> None:
    graph = graph_of(state)
    inputs = {"zoo": {"animals": [WHALE, {"name": "seal"}]}} | (
        {"answer": ""} if state is Whole else {}
    )
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        done = await runner.run(Episode(asked(**inputs), "t", graph=graph))
    assert (done.error, done.answer) == (None, "31.0")
    assert (await replay_async(store, "t", graph=graph)).equal


@pytest.mark.parametrize(
    ("state", "inputs", "said"),
    [
        (
            Keeper,
            {"zoo": {"animals": [{"name": "eel", "length": "long"}]}},
            r"'zoo.animals.0.length'.*not 'long'",
        ),
        (Keeper, {"newest": {"length": 2}}, r"'newest.name'.*Field required"),
        (Visit, {"zoo": ["eel"]}, r"'zoo'.*not \['eel'\]"),
        (
            Whole,
            {"zoo": {"animals": [{"name": "eel", "length": -1}]}},
            r"'zoo.animals.0.length'.*greater than 0",
        ),
        (Whole, {"zoo": {}, "count": "many"}, r"'count'.*not 'many'"),
    ],
)
def test_what_is_no_such_object_is_told_with_its_place(state: Any, inputs: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        first_input(graph_of(state), asked(**inputs), "t")


keeper = graph_of(Keeper)
