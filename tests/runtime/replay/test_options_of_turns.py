"""Options of an invocation (context, configurable, limit of steps): each turn is replayed and
forked with its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from hrm_agent import record
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ModelError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay, replay_async
from hrm_agent.runtime.time_travel.fork import fork
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, TaskRef


@dataclass
class Who:
    name: str = "nobody"


class State(TypedDict, total=False):
    task: str
    said: Annotated[list[Any], operator.add]
    remaining: RemainingSteps
    last: IsLastStep


def tell(state: State, runtime: Runtime[Who], config: RunnableConfig) -> State:
    tone = config.get("configurable", {}).get("tone")
    name = runtime.context.name if runtime.context else None
    return {
        "said": [
            (name, tone, config.get("recursion_limit"), state.get("remaining"), state.get("last"))
        ]
    }


def telling(checkpointer: Any = None) -> Any:
    """Tells within a subgraph, and in the graph around it."""
    inner = (
        StateGraph(State, context_schema=Who)
        .add_node("tell", tell)
        .add_edge(START, "tell")
        .compile()
    )
    builder: Any = (
        StateGraph(State, context_schema=Who).add_node("inner", inner).add_node("tell", tell)
    )
    return (
        builder.add_edge(START, "inner")
        .add_edge("inner", "tell")
        .compile(checkpointer=checkpointer)
    )


graph = telling()


def limited(after: Callable[[State], None]) -> Any:
    """Graph that runs until two steps remain. `after` is called in each step."""

    def count(state: State) -> State:
        after(state)
        return {"said": [state.get("remaining")]}

    def where(state: State) -> str:
        return END if len(state.get("said", ())) > 6 or state.get("remaining", 0) < 3 else "count"

    builder: Any = StateGraph(State).add_node("count", count).add_edge(START, "count")
    return builder.add_conditional_edges("count", where, ["count", END]).compile()


@pytest.mark.parametrize("kind", ["own checkpointer", "the store's", "none"])
def test_each_turn_of_a_program_is_replayed_with_what_it_was_given(
    kind: str, tmp_path: Path
) -> None:
    with record(tmp_path / "s.db"), open_store(tmp_path / "s.db") as store:
        saver = {
            "own checkpointer": InMemorySaver(),
            "the store's": store.checkpointer,
            "none": None,
        }[kind]
        asked = telling(saver)
        for name, tone, limit in (("ann", "dry", 7), ("bob", "wet", 9), (None, None, None)):
            options: dict[str, Any] = {
                "configurable": {"thread_id": "t", **({"tone": tone} if tone else {})}
            }
            options |= {"recursion_limit": limit} if limit else {}
            values = asked.invoke(
                {"task": "x"}, options, **({"context": Who(name)} if name else {})
            )
            assert tuple(values["said"][-1][:2]) == (name, tone)
    with open_store(tmp_path / "s.db") as store:
        runs = list(store.journal.trajectories())
        assert len(runs) == (3 if kind == "none" else 1)
        for run in runs:
            assert (found := replay(store, run.id, graph=graph)).equal, found


def test_a_fork_goes_on_with_the_options_of_its_moment(tmp_path: Path) -> None:
    """The newest turn has other options."""
    with record(tmp_path / "s.db"):
        asked = telling(InMemorySaver())
        for name, tone in (("ann", "dry"), ("bob", "wet")):
            asked.invoke(
                {"task": "x"}, {"configurable": {"thread_id": "t", "tone": tone}}, context=Who(name)
            )
    with open_store(tmp_path / "s.db") as store:
        for at, expected in (("2", ("ann", "dry")), ("last", ("bob", "wet"))):
            (episode,) = fork(store, "t", at, graph=f"{__name__}:graph")
            assert dict(episode.context) == {"name": expected[0]}
            assert episode.task.metadata["configurable"] == {"tone": expected[1]}


async def test_a_run_that_met_its_limit_and_went_on_counts_as_it_did(tmp_path: Path) -> None:
    """Every attempt has the full number of steps again. A node may read the number of steps left."""
    counting = limited(lambda state: None)
    endless: Any = StateGraph(State).add_node("tell", tell).add_edge(START, "tell")
    endless = endless.add_conditional_edges(
        "tell", lambda s: END if len(s["said"]) > 6 else "tell"
    ).compile()
    with open_store(tmp_path / "s.db") as store, ScriptedEngine([]) as engine:
        runner = EpisodeRunner(
            store, engine, "scripted", LocalEnvironment(), recursion_limit=5, takes_up_stopped=True
        )
        for thread, asked in (("ends", counting), ("limit", endless)):
            episode = Episode(TaskRef(id="1", family="test", prompt="x"), thread, graph=asked)
            ended = await runner.run(episode)
            attempts = 1
            while ended.status is RunStatus.TRUNCATED:
                ended = await runner.run(episode)
                attempts += 1
            assert attempts == (2 if thread == "limit" else 1)
            found = await replay_async(store, thread, graph=asked)
            assert found.equal and not found.not_compared, found


async def test_a_resumed_run_counts_as_it_did(tmp_path: Path) -> None:
    """Remaining steps are counted anew from the step at which the run is resumed."""
    counted = list[int]()

    def after(state: State) -> None:
        counted.append(len(counted))
        if len(counted) == 3:
            raise ModelError("The provider does not answer.")

    asked = limited(after)
    with open_store(tmp_path / "s.db") as store, ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", LocalEnvironment(), recursion_limit=6)
        episode = Episode(TaskRef(id="1", family="test", prompt="x"), "t", graph=asked)
        with pytest.raises(ModelError):
            await runner.run(episode)
        await runner.run(episode)
        newest = store.checkpointer.get_tuple({"configurable": {"thread_id": "t"}})
        assert newest is not None
        assert newest.checkpoint["channel_values"]["said"] == [5, 4, 7, 6, 5, 4, 3]
        assert (found := await replay_async(store, "t", graph=asked)).equal, found


def test_a_question_in_between_counts_as_it_did(tmp_path: Path) -> None:
    def ask(state: State) -> State:
        return {"said": [interrupt("which?"), state.get("remaining")]}

    builder: Any = (
        StateGraph(State).add_node("ask", ask).add_node("after", ask).add_edge(START, "ask")
    )
    asked = builder.add_edge("ask", "after").compile(checkpointer=InMemorySaver())
    with record(tmp_path / "s.db"):
        for limit, given in (
            (9, {"task": "x"}),
            (5, Command(resume="one")),
            (7, Command(resume="two")),
        ):
            asked.invoke(given, {"configurable": {"thread_id": "t"}, "recursion_limit": limit})
    with open_store(tmp_path / "s.db") as store:
        (run,) = store.journal.trajectories()
        assert (found := replay(store, run.id, graph=asked)).equal, found
