"""Caches and stores that a graph holds beside its state. Rollouts share none by default. An
in-memory store is restored with its thread.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import CachePolicy, interrupt

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.runtime.time_travel.fork import fork
from hrm_agent.store import RunStore
from hrm_agent.store.upkeep.maintenance import verify
from hrm_agent.trajectory import TaskRef, Trajectory
from hrm_agent.trajectory.lint import lint

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?")
ROLLOUTS = 3
SAME = CachePolicy(key_func=lambda *_, **__: "same")


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await policy().ainvoke([("user", str(state["messages"][0].text))])]}


def cached(cache: BaseCache[Any]) -> Any:
    return (
        StateGraph(MessagesState)
        .add_node("think", think, cache_policy=SAME)
        .add_edge(START, "think")
        .compile(cache=cache)
    )


def cached_inside(cache: BaseCache[Any]) -> Any:
    return (
        StateGraph(MessagesState)
        .add_node("inner", cached(cache))
        .add_edge(START, "inner")
        .compile()
    )


def cached_in_a_node(cache: BaseCache[Any]) -> Any:
    inner = cached(cache)

    async def call(state: MessagesState) -> Any:
        return await inner.ainvoke({"messages": state["messages"]})

    return StateGraph(MessagesState).add_node("call", call).add_edge(START, "call").compile()


def cached_task(cache: BaseCache[Any]) -> Any:
    @task(cache_policy=SAME)
    async def ask(question: str) -> str:
        return str((await policy().ainvoke([("user", question)])).text)

    @entrypoint(cache=cache)
    async def flow(given: dict[str, Any]) -> str:
        return await ask(str(given["messages"][0].text))

    return flow


def with_saver(cache: BaseCache[Any]) -> Any:
    found = (
        StateGraph(MessagesState)
        .add_node("think", think, cache_policy=SAME)
        .add_edge(START, "think")
    )
    return found.compile(cache=cache, checkpointer=InMemorySaver())


def rollouts(graph: Any, count: int = ROLLOUTS) -> list[Episode]:
    names = [f"run/{index}" for index in range(count)]
    return [
        Episode(
            TASK, name, graph=graph, run_id="run", group_id="run/1", sample_index=index, seed=index
        )
        for index, name in enumerate(names)
    ]


async def run_all(
    store: RunStore, environment: LocalEnvironment, episodes: list[Episode], **options: Any
) -> list[Trajectory]:
    with ScriptedEngine(lambda _: "42") as engine:
        return await EpisodeRunner(store, engine, "scripted", environment, **options).run_all(
            episodes, concurrency=1
        )


@pytest.mark.parametrize(
    "of", [InMemoryCache, lambda: SqliteCache(path=":memory:")], ids=["memory", "database"]
)
@pytest.mark.parametrize(
    "build", [cached, cached_inside, cached_in_a_node, cached_task, with_saver]
)
async def test_rollouts_share_no_cache(
    store: RunStore, environment: LocalEnvironment, build: Any, of: Any
) -> None:
    found = await run_all(store, environment, rollouts(build(of())))
    assert [len(each.calls) for each in found] == [1] * ROLLOUTS
    assert [lint(each) for each in found] == [[]] * ROLLOUTS
    for each in found:
        played = await replay_async(store, each.id, graph=build(of()))
        assert played.equal and played.unused == 0


async def test_a_cache_that_rollouts_are_told_to_share_answers_the_others(
    store: RunStore, environment: LocalEnvironment
) -> None:
    found = await run_all(store, environment, rollouts(cached(InMemoryCache())), share_memory=True)
    assert [len(each.calls) for each in found] == [1, 0, 0]


async def test_single_runs_of_a_process_share_their_cache(
    store: RunStore, environment: LocalEnvironment
) -> None:
    graph = cached(InMemoryCache())
    found = await run_all(
        store, environment, [Episode(TASK, name, graph=graph) for name in ("one", "two")]
    )
    assert [len(each.calls) for each in found] == [1, 0]


def counting(memories: BaseStore | None, *, holds: InMemoryStore | None = None) -> Any:
    """Answers how often it was asked, as far as its memories go. `holds`: asked in place of its own
    store.
    """

    async def count(_: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        asked = holds if holds is not None else store
        found = await asked.aget(("user", "1"), "asked")
        number = found.value["number"] + 1 if found is not None else 1
        await asked.aput(("user", "1"), "asked", {"number": number})
        return {"messages": [await policy().ainvoke([("user", f"asked for the {number}. time")])]}

    return (
        StateGraph(MessagesState)
        .add_node("count", count)
        .add_edge(START, "count")
        .compile(store=memories)
    )


def asked(trajectory: Trajectory) -> list[str]:
    return [str(call.request[0]["content"]) for call in trajectory.calls]


@pytest.mark.parametrize("held_by", ["graph", "module"])
async def test_rollouts_begin_with_what_the_program_put_into_its_store(
    store: RunStore, environment: LocalEnvironment, held_by: str
) -> None:
    memories = InMemoryStore()
    memories.put(("user", "1"), "asked", {"number": 4})
    graph = counting(memories) if held_by == "graph" else counting(None, holds=memories)
    found = await run_all(store, environment, rollouts(graph))
    assert [asked(each) for each in found] == [["asked for the 5. time"]] * ROLLOUTS
    assert (item := memories.get(("user", "1"), "asked")) is not None and item.value == {
        "number": 4
    }


async def test_a_store_on_a_database_is_refused_for_rollouts_alone(
    store: RunStore, environment: LocalEnvironment, tmp_path: Path
) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "memories.db")) as memories:
        memories.setup()

        def count(_: MessagesState, *, store: BaseStore) -> dict[str, Any]:
            store.put(("user", "1"), "asked", {"number": 1})
            return {"messages": [("ai", "1")]}

        graph = (
            StateGraph(MessagesState)
            .add_node("count", count)
            .add_edge(START, "count")
            .compile(store=memories)
        )
        with pytest.raises(ConfigError, match=r"SqliteStore.*--share-memory"):
            await run_all(store, environment, rollouts(graph))
        assert not store.threads()
        await run_all(store, environment, [Episode(TASK, "alone", graph=graph)])
        await run_all(store, environment, rollouts(graph), share_memory=True)


async def turns(
    store: RunStore, environment: LocalEnvironment, thread: str, count: int, **options: Any
) -> Trajectory:
    """Each turn with a graph of its own, as each process has."""
    found: Trajectory | None = None
    with ScriptedEngine(lambda _: "42") as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        for _ in range(count):
            episode = Episode(
                TASK, thread, graph=counting(options["own"]() if "own" in options else None)
            )
            found = await runner.run(episode, **({"say": "and now?"} if found is not None else {}))
    assert found is not None
    return found


@pytest.mark.parametrize("own", [{}, {"own": InMemoryStore}], ids=["given", "own"])
async def test_a_thread_has_its_memories_in_a_later_process(
    store: RunStore, environment: LocalEnvironment, own: dict[str, Any]
) -> None:
    said = [f"asked for the {number}. time" for number in (1, 2, 3)]
    trajectory = await turns(store, environment, "t", 3, **own)
    assert asked(trajectory) == said
    assert (await replay_async(store, "t", graph=counting(None))).equal
    assert list(verify(store)) == []
    first = trajectory.calls[1].identity.root_checkpoint_id
    for name, at, heard in (("late", "last", said), ("early", first, said[:1])):
        fork(store, "t", at, name=name)
        with ScriptedEngine(lambda _: "42") as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            episode = Episode(TASK, name, graph=counting(None))
            ended = (
                await runner.run(episode)
                if name == "early"
                else await runner.run(episode, say="again?")
            )
        assert asked(ended) == [*heard, f"asked for the {len(heard) + 1}. time"]
        assert (await replay_async(store, name, graph=counting(None))).equal


async def test_what_was_deleted_stays_so_and_what_was_put_can_be_searched(
    store: RunStore, environment: LocalEnvironment
) -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        return [[float(text.count("a")), float(text.count("b")) + 0.1] for text in texts]

    def remembering() -> Any:
        def put(_: MessagesState, *, store: BaseStore) -> dict[str, Any]:
            store.put(("m",), "gone", {"text": "aaa"})
            store.put(("m",), "kept", {"text": "abb"})
            store.put(("m",), "unsearched", {"text": "bbb"}, index=False)
            store.delete(("m",), "gone")
            return {}

        def look(_: MessagesState, *, store: BaseStore) -> dict[str, Any]:
            interrupt("go on?")
            found = [(item.key, item.score is not None) for item in store.search(("m",), query="b")]
            return {"messages": [("ai", str(found))]}

        graph = StateGraph(MessagesState).add_node("put", put).add_node("look", look)
        graph = graph.add_edge(START, "put").add_edge("put", "look")
        return graph.compile(
            store=InMemoryStore(index={"dims": 2, "embed": embed, "fields": ["text"]})
        )

    with ScriptedEngine(lambda _: "") as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        await runner.run(Episode(TASK, "t", graph=remembering()))
        ended = await runner.run(Episode(TASK, "t", graph=remembering()), answer="yes")
    assert ended.answer == "[('kept', True), ('unsearched', False)]"


async def test_what_another_run_has_changed_since_stands(
    store: RunStore, environment: LocalEnvironment
) -> None:
    memories = InMemoryStore()
    with ScriptedEngine(lambda _: "42") as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        # in an earlier process
        await runner.run(Episode(TASK, "a", graph=counting(InMemoryStore())))
        graph = counting(memories)
        for name in ("b", "c"):
            await runner.run(Episode(TASK, name, graph=graph))
        ended = await runner.run(Episode(TASK, "a", graph=graph), say="and now?")
    assert asked(ended)[-1] == "asked for the 3. time"


class Opaque:
    pass


async def test_what_no_record_can_hold_is_told(
    store: RunStore, environment: LocalEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    def put(_: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        store.put(("m",), "it", {"held": Opaque()})
        return {"messages": [("ai", str(store.get(("m",), "it") is not None))]}

    graph = StateGraph(MessagesState).add_node("put", put).add_edge(START, "put").compile()
    with caplog.at_level(logging.WARNING):
        (found,) = await run_all(store, environment, [Episode(TASK, "t", graph=graph)])
    assert found.answer == "True"
    assert "a later process will not find it" in caplog.text and "Opaque" in caplog.text


async def test_pruned_checkpoints_leave_the_memories(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await turns(store, environment, "t", 2)
    store.checkpointer.prune(["t"])
    assert list(verify(store)) == []
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    assert len(list(store.checkpointer.list(config))) == 1
    with ScriptedEngine(lambda _: "42") as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        ended = await runner.run(Episode(TASK, "t", graph=counting(None)), say="and now?")
    assert asked(ended)[-1] == "asked for the 3. time"
