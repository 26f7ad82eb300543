"""Programs with their own checkpointer: they behave the same under a record, and can be continued
from it.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from hrm_agent import record
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import RunError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.newest_state import newest_state
from hrm_agent.runtime.replay.player import ReplayVerdict, replay_async
from hrm_agent.runtime.time_travel.fork import fork, history
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.maintenance import verify
from hrm_agent.trajectory import RunStatus, Trajectory

TALK: RunnableConfig = {"configurable": {"thread_id": "talk"}}


class Echo(BaseChatModel):
    """Model that answers with the text of its prompt."""

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(f"echo {messages[-1].text}"))]
        )


def talking(saver: Any) -> Any:
    """Echoes, and asks how that was."""

    def echo(state: MessagesState) -> dict[str, Any]:
        return {"messages": [Echo().invoke(state["messages"])]}

    def ask(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [
                AIMessage(f"it was {interrupt('How was it?')} after {len(state['messages'])}")
            ]
        }

    builder = StateGraph(MessagesState).add_node("echo", echo).add_node("ask", ask)
    return builder.add_edge(START, "echo").add_edge("echo", "ask").compile(checkpointer=saver)


def nested(saver: Any) -> Any:
    return (
        StateGraph(MessagesState)
        .add_node("talk", talking(None))
        .add_edge(START, "talk")
        .compile(checkpointer=saver)
    )


class Log(TypedDict, total=False):
    messages: Annotated[
        list[Any],
        DeltaChannel(lambda held, given: [*held, *(each for more in given for each in more)]),
    ]


def delta(saver: Any) -> Any:
    def ask(state: Log) -> dict[str, Any]:
        return {
            "messages": [
                AIMessage(f"it was {interrupt('How was it?')} after {len(state['messages'])}")
            ]
        }

    return StateGraph(Log).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)


class OldSaver(InMemorySaver):
    """Saver written for an earlier LangGraph, whose writes have no path."""

    def put_writes(self, config: Any, writes: Any, task_id: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().put_writes(config, writes, task_id)

    async def aput_writes(self, config: Any, writes: Any, task_id: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.put_writes(config, writes, task_id)


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncGenerator[BaseCheckpointSaver[Any]]:
    if kind == "sqlite":
        with SqliteSaver.from_conn_string(str(folder / "own.db")) as saver:
            yield saver
    elif kind == "async sqlite":
        async with AsyncSqliteSaver.from_conn_string(str(folder / "own.db")) as saver:
            yield saver
    else:
        yield {"memory": InMemorySaver, "old": OldSaver}[kind]()


async def invoked(graph: Any, given: Any, kind: str, config: RunnableConfig = TALK) -> Any:
    if kind == "async sqlite":
        return await graph.ainvoke(given, config)
    return graph.invoke(given, config)


def said(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def texts(state: Any) -> list[str]:
    return [str(message.text) for message in state["messages"]]


async def conversation(graph: Any, kind: str) -> AsyncIterator[list[str]]:
    """Two turns with an answer each, an edit between them, and a third turn that waits."""
    for turn, answer in (("one", "fine"), ("two", "long")):
        await invoked(graph, said(turn), kind)
        yield texts(await invoked(graph, Command(resume=answer), kind))
        if turn == "one":
            if kind == "async sqlite":
                await graph.aupdate_state(TALK, said("an edit"))
            else:
                graph.update_state(TALK, said("an edit"))
    yield texts(await invoked(graph, said("three"), kind))


async def resumed(
    store: RunStore, environment: LocalEnvironment, graph: Any, thread: str, answer: str
) -> Trajectory:
    with ScriptedEngine(lambda _: "") as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        known = store.journal.trajectory(thread)
        return await runner.run(Episode(known.task, thread, graph=graph), answer=answer)


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (talking, "memory"),
        (talking, "sqlite"),
        (talking, "async sqlite"),
        (talking, "old"),
        (nested, "memory"),
        (delta, "memory"),
        (delta, "async sqlite"),
    ],
)
async def test_the_record_has_its_checkpoints(
    environment: LocalEnvironment, tmp_path: Path, build: Any, kind: str
) -> None:
    async with opened(kind, tmp_path) as saver:
        alone = [heard async for heard in conversation(build(saver), kind)]
    (tmp_path / "own.db").unlink(missing_ok=True)
    async with opened(kind, tmp_path) as saver:
        graph = build(saver)
        with record(tmp_path / "record.db"):
            assert [heard async for heard in conversation(graph, kind)] == alone
        listed = (
            [found async for found in saver.alist(TALK)]
            if kind == "async sqlite"
            else list(saver.list(TALK))
        )
        own = [found.checkpoint["id"] for found in listed if not _namespace(found.config)]
    with open_store(tmp_path / "record.db") as store:
        kept = [
            found.checkpoint["id"]
            for found in store.checkpointer.list(TALK)
            if not _namespace(found.config)
        ]
        assert kept == own
        trajectory = store.journal.trajectory("talk")
        assert [turn.prompt for turn in trajectory.turns] == ["two", "three"]
        graph = build(None).copy(update={"checkpointer": store.checkpointer})
        assert texts(graph.get_state(TALK).values) == alone[-1]
        assert (await replay_async(store, "talk", graph=build(None))).equal
        assert history(store, "talk", graph=build(None)).last.questions
        fork(store, "talk", name="branch")
        for thread in ("talk", "branch"):
            ended = await resumed(store, environment, build(InMemorySaver()), thread, "odd")
            assert ended.status is RunStatus.COMPLETED and (ended.answer or "").startswith(
                "it was odd after "
            )
            assert (await replay_async(store, thread, graph=build(None))).equal
        assert list(verify(store)) == []


def _namespace(config: RunnableConfig) -> str:
    return config.get("configurable", {}).get("checkpoint_ns", "")


@pytest.mark.parametrize(
    ("build", "kind"), [(talking, "memory"), (talking, "async sqlite"), (delta, "memory")]
)
async def test_a_thread_that_began_before_its_record(
    environment: LocalEnvironment, tmp_path: Path, build: Any, kind: str
) -> None:
    async with opened(kind, tmp_path) as saver:
        graph = build(saver)
        await invoked(graph, said("before"), kind)
        before = texts(await invoked(graph, Command(resume="dull"), kind))
        with record(tmp_path / "record.db"):
            await invoked(graph, said("after"), kind)
    with open_store(tmp_path / "record.db") as store:
        ended = await resumed(store, environment, build(None), "talk", "odd")
        assert (ended.answer or "").startswith(
            f"it was odd after {len(before) + 1 + (build is talking)}"
        )
        first = history(store, "talk", graph=build(None)).moments[0]
        assert build is delta or texts(first.values) == before
        if build is talking:
            assert (await replay_async(store, "talk", graph=build(None))).equal


async def test_a_question_from_before_the_record_is_answered_inside(
    tmp_path: Path, environment: LocalEnvironment
) -> None:
    graph = talking(InMemorySaver())
    graph.invoke(said("before"), TALK)
    with record(tmp_path / "record.db"):
        graph.invoke(Command(resume="dull"), TALK)
    with open_store(tmp_path / "record.db") as store:
        assert store.journal.trajectory("talk").answer == "it was dull after 2"
        assert texts(newest_state(store, "talk", "")) == texts(graph.get_state(TALK).values)
        assert (await replay_async(store, "talk", graph=talking(None))).equal


async def test_two_programs_with_one_name_of_a_thread_are_two_threads(tmp_path: Path) -> None:
    first, second = talking(InMemorySaver()), talking(InMemorySaver())
    with record(tmp_path / "record.db"):
        for graph, name in ((first, "a"), (second, "b"), (first, "c"), (second, "d")):
            graph.invoke(said(name), TALK)
            graph.invoke(Command(resume=name), TALK)
    with open_store(tmp_path / "record.db") as store:
        found = list(store.journal.trajectories())
        assert [[each.task.prompt, *(turn.prompt for turn in each.turns)] for each in found] == [
            ["a", "c"],
            ["b", "d"],
        ]
        for each, graph in zip(found, (first, second), strict=True):
            assert texts(newest_state(store, each.thread_id, "")) == texts(
                graph.get_state(TALK).values
            )
            assert (await replay_async(store, each.id, graph=talking(None))).equal


async def test_a_program_that_goes_back_branches_off_on_record(tmp_path: Path) -> None:
    graph = talking(InMemorySaver())
    with record(tmp_path / "record.db"):
        graph.invoke(said("one"), TALK)
        graph.invoke(Command(resume="a"), TALK)
        waiting = next(
            found.config for found in graph.get_state_history(TALK) if found.next == ("ask",)
        )
        graph.invoke(Command(resume="b"), waiting)
    with open_store(tmp_path / "record.db") as store:
        assert texts(newest_state(store, "talk", "")) == texts(graph.get_state(TALK).values)
        assert len(list(store.checkpointer.list(TALK))) == len(list(graph.get_state_history(TALK)))


async def test_writes_that_a_kill_kept_from_the_record_are_put_there(
    tmp_path: Path, environment: LocalEnvironment
) -> None:
    builder = StateGraph(MessagesState).add_node(
        "echo", lambda _: {"messages": [AIMessage("done", id="done")]}
    )
    builder.add_node(
        "ask", lambda _: {"messages": [AIMessage(interrupt("How was it?"), id="asked")]}
    )
    graph = (
        builder.add_edge(START, "echo").add_edge(START, "ask").compile(checkpointer=InMemorySaver())
    )
    where = tmp_path / "record.db"
    with record(where):
        graph.invoke(said("one"), TALK)
    with open_store(where) as store:
        query = "DELETE FROM writes WHERE checkpoint_id = (SELECT max(id) FROM checkpoints)"
        store.database.write(lambda cursor: cursor.execute(query))
    with record(where):
        graph.invoke(Command(resume="fine"), TALK)
    with open_store(where) as store:
        found = await replay_async(store, "talk", graph=graph)
        assert (found.verdict, found.changes, found.ended) == (ReplayVerdict.EQUAL, (), "")


class Opaque:
    pass


class Held(TypedDict, total=False):
    seen: Annotated[list[Any], operator.add]


async def test_a_state_that_cannot_be_stored_does_not_reach_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def see(_: Held) -> dict[str, Any]:
        return {"seen": [Opaque()]}

    class Keeps(InMemorySaver):
        """Saver that keeps checkpoints without copying them."""

        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            held.append(checkpoint)
            return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}

        def put_writes(
            self, config: Any, writes: Sequence[Any], task_id: str, task_path: str = ""
        ) -> None:
            held.append(writes)

    held = list[Any]()
    graph = (
        StateGraph(Held).add_node("see", see).add_edge(START, "see").compile(checkpointer=Keeps())
    )
    with record(tmp_path / "record.db"):
        assert len(graph.invoke({"seen": []}, TALK)["seen"]) == 1
    assert held and "Not everything is recorded" in caplog.text
    with open_store(tmp_path / "record.db") as store:
        assert store.journal.trajectory("talk").status is RunStatus.COMPLETED


async def test_a_store_that_is_the_graphs_own_too_is_written_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "record.db") as store:
        graph = talking(store.checkpointer)
        with record(tmp_path / "record.db"):
            graph.invoke(said("one"), TALK)
        assert len(list(store.checkpointer.list(TALK))) == 3
        assert (await replay_async(store, "talk", graph=talking(None))).equal


async def test_a_thread_without_checkpoints_says_why(tmp_path: Path) -> None:
    graph = talking(InMemorySaver())
    with record(tmp_path / "record.db"):
        graph.invoke(said("one"), TALK)
    with open_store(tmp_path / "record.db") as store:
        store.checkpointer.delete_thread("talk")  # as an earlier version left it
        for look in (replay_async(store, "talk", graph=graph), _history(store)):
            with pytest.raises(RunError, match="checkpointer of its own, InMemorySaver"):
                await look


async def _history(store: RunStore) -> Any:
    return history(store, "talk")
