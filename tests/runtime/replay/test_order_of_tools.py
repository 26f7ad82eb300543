"""Agents that take their tools from a set offer them in a different order in each process. The
requests count as equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models import call_recording, policy
from hrm_agent.models.external import recorded as external_models
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TaskRef
from tests.support.graphs.own_agent import HostedModel, multiply

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?")


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Asked(HostedModel):
    """Model that keeps the number of tools of each request."""

    times: list[int] = []

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Any:
        self.times.append(len(kwargs["tools"]))
        return super()._generate(messages, stop, run_manager, **kwargs)


def agent(
    model: Any, tools: Sequence[Any], asked: asyncio.Event | None = None
) -> Pregel[Any, Any, Any, Any]:
    async def ask(state: MessagesState) -> dict[str, Any]:
        answer = await model.bind_tools(tools).ainvoke(state["messages"])
        if asked is not None:
            asked.set()
            await asyncio.Event().wait()  # until it is cancelled
        return {"messages": [answer]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


async def interrupted(runner: EpisodeRunner, model: Any, tools: Sequence[Any]) -> None:
    """Run an episode that is cancelled after the model's answer, before its node ends."""
    asked = asyncio.Event()
    begun = asyncio.create_task(runner.run(Episode(TASK, "t", graph=agent(model, tools, asked))))
    await asked.wait()
    begun.cancel()
    await asyncio.wait([begun])


@pytest.mark.parametrize("whose", ["hosted", "policy"])
async def test_it_is_resumed_and_replayed_without_asking_again(
    whose: str, store: RunStore, environment: LocalEnvironment
) -> None:
    hosted = Asked(disable_streaming=True)
    with ScriptedEngine(["forty-two"]) as engine:
        model: Any = hosted if whose == "hosted" else policy()
        runner = EpisodeRunner(store, engine, whose, environment)
        await interrupted(runner, model, [multiply, add])
        done = await runner.run(Episode(TASK, "t", graph=agent(model, [add, multiply])))
    assert len(done.calls) == 1 and hosted.times in ([2], [])
    found = await replay_async(store, "t", graph=agent(model, [add, multiply]))
    assert found.equal, found
    other = await replay_async(store, "t", graph=agent(model, [add]))
    assert not other.equal and other.divergence is not None, "other tools are another request"


@pytest.mark.parametrize("whose", ["hosted", "policy"])
async def test_a_record_that_has_the_hash_of_the_order_itself_is_gone_on_with(
    whose: str, store: RunStore, environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = Asked(disable_streaming=True)
    tools = [multiply, add]
    with ScriptedEngine(["forty-two"]) as engine:
        model: Any = hosted if whose == "hosted" else policy()
        runner = EpisodeRunner(store, engine, whose, environment)
        with monkeypatch.context() as patch:
            for module in (call_recording, external_models):
                patch.setattr(module, "in_one_order", list)
            await interrupted(runner, model, tools)
        done = await runner.run(Episode(TASK, "t", graph=agent(model, tools)))
    assert len(done.calls) == 1 and hosted.times in ([2], [])
