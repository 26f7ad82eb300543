"""Tasks that bring the graph's whole input: given as it is, under ids that stay, and followed by
further turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.conversation import first_input
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TASK_INPUTS, TaskRef
from tests.support.graphs.scripts import boxed

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "6 * 7?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "And 6 * 8?"},
]


class Sum(TypedDict):
    left: int
    right: int
    answer: str


adder = (
    StateGraph(Sum).add_node("add", lambda state: {"answer": "3"}).add_edge(START, "add").compile()
)


def task(**inputs: Any) -> TaskRef:
    return TaskRef(id="1", family="test", prompt="And 6 * 8?", metadata={TASK_INPUTS: inputs})


def test_messages_have_the_same_ids_each_time() -> None:
    graph = load_graph("tool_loop")
    first = first_input(graph, task(messages=TALK), "t")["messages"]
    assert first == first_input(graph, task(messages=TALK), "t")["messages"]
    assert len({said.id for said in first}) == 4
    assert [said.content for said in first] == [said["content"] for said in TALK]
    plain = first_input(graph, TaskRef(id="1", family="test", prompt="6 * 8?"), "t")["messages"]
    assert first[-1].id == plain[-1].id, "what was asked is found by it"
    assert "id" not in TALK[0], "the task itself stays as it was"


def test_a_name_without_a_place_is_told() -> None:
    assert first_input(adder, task(left=1, right=2), "t") == {"left": 1, "right": 2}
    with pytest.raises(
        ConfigError, match=r"no field 'rigth'.*Did you mean 'right'.*left, right, answer"
    ):
        first_input(adder, task(left=1, rigth=2), "t")


async def test_the_model_is_asked_with_them_and_the_talk_goes_on(
    store: RunStore, environment: LocalEnvironment
) -> None:
    def answers(messages: Sequence[BaseMessage]) -> str:
        told = any("Be brief." in message.text for message in messages)
        return boxed(sum(message.type == "human" for message in messages) if told else 0)

    with ScriptedEngine(answers) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        episode = Episode(task(messages=TALK), "t", seed=1)
        first = await runner.run(episode)
        again = await runner.run(episode, say="And 6 * 9?")
    assert (first.answer, again.answer) == (boxed(2), boxed(3))
