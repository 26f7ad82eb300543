"""Parts of a graph with their own model: loaded on first use, off the event loop, once, and never
in a replay.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.open import opened_environment
from hrm_agent.models import load_policy, policy, using_policy
from hrm_agent.models.loading import policy_loader as load
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import open_store
from hrm_agent.trajectory import TaskRef


class Verdict(BaseModel):
    """Verdict of a judge."""

    good: bool


@pytest.fixture
def other(tmp_path: Path) -> str:
    path = tmp_path / "other.jsonl"
    path.write_text("".join(json.dumps(f'{{"good": true, "n": {i}}}') + "\n" for i in range(8)))
    return f"scripted:{path}"


def two_models(other: str) -> Any:
    """Graph of two nodes: the current policy, and a judge with its own model."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await policy().ainvoke(state["messages"])]}

    async def judge(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [
                await policy(model=other, schema=Verdict, temperature=0).ainvoke(state["messages"])
            ]
        }

    builder = StateGraph(MessagesState).add_node("answer", answer).add_node("judge", judge)
    return builder.add_edge(START, "answer").add_edge("answer", "judge").compile()


async def test_it_is_recorded_under_its_name_and_never_loaded_in_a_replay(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = two_models(other)
    task = TaskRef(id="1", family="test", prompt="What is 6 * 7?")
    with open_store(tmp_path / "s.db") as store, ScriptedEngine(["42"]) as engine:
        async with opened_environment(None, isolation=Isolation.L0) as environment:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            trajectory = await runner.run(Episode(task, "thread", graph=graph, seed=1))
        assert trajectory.answer == '{"good": true, "n": 0}'
        assert [call.model for call in trajectory.calls] == ["scripted", other]
        assert [call.model for call in trajectory.policy_calls] == ["scripted"]
        judge: Any = load_policy(other)
        assert judge.requests[0].schema == Verdict.model_json_schema()
        assert engine.requests[0].schema is None
        monkeypatch.setattr(load, "_loaded", {})
        monkeypatch.setattr(load, "_load", lambda name: pytest.fail(f"{name} was loaded"))
        found = await replay_async(store, trajectory.id, graph=graph)
        assert found.equal and found.unused == 0


async def test_many_ask_at_once_and_it_is_loaded_once_off_the_loop(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load_, names = load._load, threading.current_thread().name

    loop, went_on = asyncio.get_running_loop(), threading.Event()

    def slowly(name: str) -> Any:
        loads.append(threading.current_thread().name)
        loop.call_soon_threadsafe(went_on.set)
        assert went_on.wait(60), "the loop stood still while it was loaded"
        return load_(name)

    monkeypatch.setattr(load, "_load", slowly)
    with ScriptedEngine([]) as engine, using_policy(engine):
        said = await asyncio.gather(
            *(policy(model=other).ainvoke(f"question {i}") for i in range(8))
        )
    assert len({message.text for message in said}) == 8
    assert len(loads) == 1 and loads[0] != names
    assert engine.calls == 0


def test_the_policy_in_force_is_meant_by_its_own_name() -> None:
    with ScriptedEngine(["here"], name="runs/x/model?load=nf4") as engine, using_policy(engine):
        assert policy(model="runs/x/model?load=nf4").invoke("Who?").text == "here"
