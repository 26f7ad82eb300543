"""Steps that go with the next commit (`durability = "calls"`)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.errors import RunError, StoreError, StoreFullError
from hrm_agent.graphs.tool_loop import graph as tool_loop
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore, open_store
from hrm_agent.testing import block_until
from hrm_agent.trajectory import RunStatus, TaskRef
from tests.support.graphs.kill_driver import Arithmetic
from tests.support.graphs.scripts import multiplier
from tests.support.trajectory.samples import make_call, make_trajectory

TASK = TaskRef(id="1", family="test", prompt="What is 11 * 7?")


def runner(store: RunStore, engine: ScriptedEngine, **options: Any) -> EpisodeRunner:
    return EpisodeRunner(store, engine, "scripted", Arithmetic(), **options)


async def test_nothing_is_written_after_a_step_that_could_not_be(store: RunStore, url: str) -> None:
    """The record would otherwise report a run as ended whose state lacks its end."""

    def intrude(state: MessagesState) -> dict[str, Any]:
        with open_store(url) as other:
            config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
            other.checkpointer.put(
                config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {}
            )
        return {"messages": [HumanMessage("here")]}

    builder = (
        StateGraph(MessagesState).add_node("intrude", intrude).add_node("end", lambda state: {})
    )
    graph = builder.add_edge(START, "intrude").add_edge("intrude", "end").compile()
    episode = Episode(TASK, "t", graph=graph)
    with ScriptedEngine([]) as engine, pytest.raises(RunError, match="continued by another run"):
        await runner(store, engine, durability="calls").run(episode)
    found = store.journal.find_trajectory("t")
    assert found is None or found.status is RunStatus.RUNNING
    assert not store.journal.is_over(episode.trajectory_id)


async def test_the_record_is_that_of_steps_that_are_committed_one_by_one(store: RunStore) -> None:
    with ScriptedEngine(multiplier) as engine:
        joined = await runner(store, engine, durability="calls").run(
            Episode(TASK, "joined", graph=tool_loop, seed=1)
        )
        single = await runner(store, engine).run(Episode(TASK, "single", graph=tool_loop, seed=1))
    assert joined.answer == single.answer
    assert [call.response["content"] for call in joined.calls] == [
        call.response["content"] for call in single.calls
    ]
    assert [call.value for call in joined.tool_calls] == [call.value for call in single.tool_calls]
    assert store.journal.trajectory(joined.id) == joined, "what was returned is what is read"
    steps = [
        [
            found.metadata.get("step")
            for found in store.checkpointer.list({"configurable": {"thread_id": name}})
        ]
        for name in ("joined", "single")
    ]
    assert steps[0] == steps[1]


def begun(thread: str, id_: str) -> Any:
    facts = {"status": RunStatus.RUNNING, "stop_reason": None, "answer": None, "ended_at": None}
    return make_trajectory(id=id_, thread_id=thread, calls=(), tool_calls=(), **facts)


def test_a_row_that_the_database_refuses_ends_its_run_and_no_other(
    url: str, store: RunStore
) -> None:
    """The row would make every commit that includes it fail."""
    with (
        open_store(url) as other,
        store.leases.ahead(["a", "b"]),
        store.lease("a", joins=True) as first,
    ):
        other.journal.write_trajectory(begun("b", "written by who holds no lease"))
        with store.lease("b", joins=True) as second:
            store.journal.write_trajectory(begun("b", "of this run"))
            block_until(lambda: second.error is not None)
            store.journal.write_trajectory(
                make_trajectory(id="id", thread_id="a", calls=(), tool_calls=())
            )
        assert isinstance(second.error, StoreError) and first.error is None
    assert store.journal.trajectory("a").id == "id"
    assert store.journal.trajectory("b").id == "written by who holds no lease"


CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def put(store: RunStore, at: Any) -> Any:
    facts: Any = {"source": "loop", "step": 0, "parents": {}}
    return store.checkpointer.put(at, empty_checkpoint(), facts, {})


def joins(store: RunStore) -> bool:
    return store.database.joins(store.database.held.of("t"))


def test_while_commits_fail_a_step_waits_for_its_own(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that calls no model would otherwise go on for ever with nothing on record."""

    def full(_: Any) -> None:
        raise StoreFullError("The disk is full.", "Free some space.")

    with store.lease("t", joins=True):
        with monkeypatch.context() as broken:
            broken.setattr(store.database, "_transact", full)
            first = put(store, CONFIG)
            block_until(lambda: not joins(store))
            with pytest.raises(StoreFullError):
                put(store, first)
        put(store, first)
        assert joins(store)
    assert len(list(store.checkpointer.list(CONFIG))) == 2


def test_while_a_commit_is_late_a_step_waits_for_its_own(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow, or another process writes. A kill would otherwise take all work since the
    commit began.
    """
    transact, submit, goes_on = store.database._transact, store.database.submit, threading.Event()

    def slow(works: Any) -> list[Any]:
        goes_on.wait()
        return transact(works)

    def waited_for(*values: Any, **options: Any) -> Any:
        goes_on.set()
        return submit(*values, **options)

    with store.lease("t", joins=True):
        monkeypatch.setattr(store.database, "_transact", slow)
        first = put(store, CONFIG)
        try:
            block_until(lambda: not joins(store))
            monkeypatch.setattr(store.database, "submit", waited_for)
            put(store, first)
            assert goes_on.is_set()
        finally:
            goes_on.set()
        with store.database.peek() as cursor:
            assert cursor.execute("SELECT count(*) FROM checkpoints").fetchone()[0] == 2
        assert joins(store)


def test_what_is_known_of_a_call_is_what_is_read(store: RunStore) -> None:
    """Half characters are stored as others, tuples as lists, and no object is shared with the
    caller.
    """
    tool: dict[str, Any] = {
        "type": "function",
        "function": {"name": "f", "parameters": {"required": ("a",)}},
    }
    sent = [
        HumanMessage("a\ud800b"),
        HumanMessage("z", additional_kwargs={"k": (1, 2), "large": 2**63}),
    ]
    call = make_call("task", request=None, tools=(tool,))
    call = call.model_copy(update={"identity": call.identity.model_copy(update={"thread_id": "t"})})
    with store.lease("t"):
        store.journal.write_trajectory(
            make_trajectory(id="id", thread_id="t", calls=(), tool_calls=())
        )
        store.journal.write_call(call, sent)
        tool["function"]["name"] = "changed"
        known = store.journal.trajectory("t")
    assert known == store.journal.trajectory("t") and known.calls[0].tools
    assert known.calls[0].tools[0]["function"] == {"name": "f", "parameters": {"required": ["a"]}}


async def test_what_a_caller_changes_in_a_record_changes_no_other(store: RunStore) -> None:
    with ScriptedEngine(multiplier) as engine:
        first, second = [
            await runner(store, engine).run(Episode(TASK, name, graph=tool_loop, seed=1))
            for name in ("one", "two")
        ]
        assert first.calls[0].request and second.calls[0].request
        first.calls[0].request[0]["content"] = "changed"
        third = await runner(store, engine).run(Episode(TASK, "three", graph=tool_loop, seed=1))
    assert third.calls[0].request and third.calls[0].request[0] == second.calls[0].request[0]
