"""Requests to a hosted model: stored by reference to the checkpoints' messages, and read back
unchanged.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.errors import StoreError, StoreVersionError, UnstorableError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.database.tables import STORE_VERSION
from hrm_agent.store.upkeep.copying import copy_store
from hrm_agent.store.upkeep.maintenance import collect_values, delete_runs, stats, verify
from hrm_agent.store.values.value_reader import BYTES, LIST, MSGPACK
from hrm_agent.trajectory import Call, MemoryJournal
from tests.support.store.bodies import execute, set_version, stored_bytes, version_of
from tests.support.trajectory.samples import make_call, make_trajectory


class Marked(HumanMessage):
    """User's class with which a checkpoint could not be read back."""


@dataclass
class Thing:
    name: str


MESSAGES: list[BaseMessage] = [
    SystemMessage("You answer."),
    HumanMessage("What is 6 * 7?" * 40, id="h", name="Ann", additional_kwargs={"cache": True}),
    AIMessage(
        [
            {"type": "text", "text": "I count."},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1.5}},
        ],
        id="a",
        tool_calls=[{"name": "f", "args": {"x": 1.5, "deep": [True, None, {"y": "é"}]}, "id": "c"}],
        usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        response_metadata={"logprobs": None, "model_name": "hosted"},
    ),
    ToolMessage("42", tool_call_id="c", artifact={"status": "ok", "record": "r"}, status="error"),
    Marked("of my own", id="m"),
    ToolMessage("a thing", tool_call_id="d", artifact=Thing("lamp")),
    HumanMessage([{"type": "image_url", "image_url": {"url": "data:," + "x" * 900}}]),
    SystemMessage("Be brief."),
]


def text_call(number: int, **facts: Any) -> Call:
    kept: dict[str, Any] = {"token_ids": (), "mask": (), "logprobs": (), "untrainable": "no ids"}
    return make_call(f"task {number}", **{**kept, **facts})


def dumps(messages: list[BaseMessage]) -> tuple[dict[str, Any], ...]:
    return tuple(message.model_dump(mode="json") for message in messages)


def read(store: RunStore, call: Call) -> Call:
    found = store.journal.find_call(call.id)
    assert found is not None
    return found


@pytest.mark.parametrize("count", range(1, len(MESSAGES) + 1))
def test_what_is_read_back_is_what_was_sent(count: int, store: RunStore) -> None:
    call, sent = text_call(count), MESSAGES[:count]
    store.journal.write_call(call, sent)
    assert read(store, call) == call.model_copy(update={"request": dumps(sent)})
    assert [*verify(store)] == []


IMAGE: Any = {"image": {"format": "jpeg", "source": {"bytes": b"\xff\xd8"}}}
"""A part of a message as Bedrock takes it."""


@pytest.mark.parametrize("kind", [HumanMessage, Marked])
def test_bytes_are_shown_as_base64(kind: type[HumanMessage], store: RunStore) -> None:
    sent, call = [kind([IMAGE, {"data": b"text"}])], text_call(1)
    store.journal.write_call(call, sent)
    (journal := MemoryJournal()).write_call(call, sent)
    for found in (read(store, call), journal.find_call(call.id)):
        assert found is not None and found.request is not None
        shown = [{"image": {"format": "jpeg", "source": {"bytes": "/9g="}}}, {"data": "dGV4dA=="}]
        assert found.request[0]["content"] == shown and found.model_dump_json()
    assert sent[0].content[0] == IMAGE, "what is sent is left alone"
    assert [*verify(store)] == []


def test_a_request_that_was_read_is_written_as_it_is(store: RunStore) -> None:
    """An import, or a run that takes over another's answers."""
    call = text_call(1, request=dumps(MESSAGES))
    store.journal.write_call(call)
    assert read(store, call).request == call.request and store.journal.write_call(call) == call


def test_a_journal_in_memory_reads_it_back(store: RunStore) -> None:
    journal, call = MemoryJournal(), text_call(1)
    journal.write_call(call, MESSAGES[:4])
    (found,) = journal.calls_of_task("thread-1", "task 1")
    assert found.request == dumps(MESSAGES[:4])


def talk(store: RunStore, turns: int) -> list[Call]:
    """A conversation whose every answer is a call, sent with a system turn and all of the state."""
    calls: list[Call] = []

    def answer(state: MessagesState) -> dict[str, Any]:
        sent = [SystemMessage("You answer."), *state["messages"]]
        calls.append(store.journal.write_call(text_call(len(calls)), sent))
        return {"messages": [AIMessage(f"answer {len(calls)} " * 40)]}

    graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")
    kept = graph.compile(checkpointer=store.checkpointer)
    for number in range(turns):
        said = [HumanMessage(f"question {number} " * 40)]
        kept.invoke(
            {"messages": said}, {"configurable": {"thread_id": "thread-1"}}, durability="sync"
        )
    return calls


def test_a_conversation_is_stored_once(store: RunStore, url: str) -> None:
    with_calls = talk(store, 40)
    found = stats(store)
    assert found.bytes["requests"] < 80 * 40, "two references each"
    assert read(store, with_calls[-1]).request is not None
    execute(url, "DELETE FROM requests")
    assert collect_values(store) <= 1 + 40 // 16, (
        "the system turn, and a list that no checkpoint ended with"
    )


def test_they_are_kept_as_long_as_their_run_is(store: RunStore) -> None:
    made = make_trajectory(calls=(), tool_calls=())
    store.journal.write_trajectory(made)
    call = talk(store, 3)[-1]
    before = read(store, call).request
    store.checkpointer.delete_thread("thread-1")
    collect_values(store)
    assert read(store, call).request == before and [*verify(store)] == []
    delete_runs(store, ["thread-1"])
    assert stats(store).rows["requests"] == stats(store).rows["values"] == 0


def test_a_thread_begun_again_after_a_collection_stores_them_again(
    store: RunStore, url: str
) -> None:
    store.journal.write_call(first := text_call(1), MESSAGES[:3])
    execute(url, "DELETE FROM requests")
    assert collect_values(store) > 0
    store.journal.write_call(second := text_call(2), MESSAGES[:3])
    assert read(store, second).request == dumps(MESSAGES[:3]) and read(store, first).request is None


def test_damage_is_found_and_named(store: RunStore, url: str) -> None:
    store.journal.write_call(call := text_call(1), MESSAGES)
    execute(url, "DELETE FROM blobs WHERE seq = 2")
    assert [finding for finding in verify(store) if finding.endswith("which is lost")]
    with pytest.raises(StoreError, match=f"request of model call {call.id}.*not in the store"):
        store.journal.find_call(call.id)
    execute(url, "UPDATE requests SET data = ?", (b"\xc1",))
    assert [f for f in verify(store) if "cannot be read" in f]
    with pytest.raises(StoreError, match="No values were collected"):
        collect_values(store)
    execute(url, "DELETE FROM requests")
    assert f"model call {call.id}: has neither tokens nor a request" in [*verify(store)]


def deep(levels: int) -> bytes:
    data = ormsgpack.packb([])
    for _ in range(levels):
        data = ormsgpack.packb([[LIST, data]])
    return data


HOSTILE = {
    "no list": ormsgpack.packb(5),
    "an empty reference": ormsgpack.packb([[]]),
    "a number": ormsgpack.packb([7]),
    "no list of messages": ormsgpack.packb([[BYTES, b"abc"]]),
    "a text": ormsgpack.packb([[LIST, ormsgpack.packb([[MSGPACK, ormsgpack.packb("hi")]])]]),
    "JSON that is no object": ormsgpack.packb([[LIST, ormsgpack.packb([[BYTES, b"5"]])]]),
    "JSON that is none": ormsgpack.packb([[LIST, ormsgpack.packb([[BYTES, b"{"]])]]),
    "an unknown kind": ormsgpack.packb([[99, b"x"]]),
    "a node that is none": ormsgpack.packb([[LIST, b"\xc1"]]),
    "too deep": deep(2000),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_row_is_refused_by_all_who_read_it(kind: str, tmp_path: Path) -> None:
    """`StoreError` is the only exception. `collect_values` may accept a row that names its values
    correctly.
    """
    with open_store(tmp_path / "store.db") as store, open_store(tmp_path / "copy.db") as target:
        store.journal.write_call(call := text_call(1), MESSAGES[:1])
        execute(store.url, "UPDATE requests SET data = ?", (HOSTILE[kind],))
        with pytest.raises(StoreError, match=f"request of model call {call.id} was not read: "):
            store.journal.find_call(call.id)
        assert [
            finding for finding in verify(store) if f"request of model call {call.id}" in finding
        ]
        for care in (collect_values, lambda store: copy_store(store, target)):
            with suppress(StoreError):
                care(store)


def test_what_cannot_be_shown_is_refused_when_it_is_written(store: RunStore) -> None:
    value: Any = "deep"
    for _ in range(300):
        value = [value]
    with pytest.raises(
        UnstorableError, match=r"call of thread 'thread-1' was sent a message .*It was not recorded"
    ):
        store.journal.write_call(
            text_call(1), [HumanMessage("x", additional_kwargs={"value": value})]
        )
    assert stats(store).rows["model calls"] == 0


def test_it_is_sealed_and_copied_under_another_key(
    store: RunStore, url: str, tmp_path: Path
) -> None:
    calls, targets = talk(store, 3), [("sealed", os.urandom(32)), ("plain", None)]
    wanted, source = [read(store, call) for call in calls], store
    for name, key in targets:
        with open_store(tmp_path / f"{name}.db", key=key) as target:
            assert copy_store(source, target)["requests"] == 3
            assert [read(target, call) for call in calls] == wanted and [*verify(target)] == []
        if key is not None:
            assert b"question 1" not in stored_bytes(f"sqlite:///{tmp_path}/{name}.db")
            source = open_store(tmp_path / f"{name}.db", key=key)
    source.close()


def test_a_store_of_a_newer_version_is_left_alone(url: str) -> None:
    open_store(url).close()
    set_version(url, STORE_VERSION + 1)
    for create in (True, False):
        with pytest.raises(
            StoreVersionError,
            match=f"schema version {STORE_VERSION + 1}; versions up to {STORE_VERSION} are known",
        ):
            open_store(url, create=create)
    assert version_of(url) == STORE_VERSION + 1


def test_a_store_made_before_goes_on(url: str) -> None:
    """The request in the record itself, a row of no tokens, and no table for requests."""
    call = text_call(1, request=dumps(MESSAGES[:3]))
    with open_store(url) as store:
        store.journal.write_call(call)
        execute(url, "UPDATE calls SET record = ?", (call.model_dump_json().encode(),))
        execute(url, "INSERT INTO tokens VALUES (?, ?, ?, ?)", (call.id, b"", b"", b""))
    execute(url, "DROP TABLE requests")
    set_version(url, 2)
    with open_store(url) as store:
        assert version_of(url) == STORE_VERSION == 6, (
            "a program of that time would collect what requests name"
        )
        assert read(store, call) == call
        store.journal.write_call(later := text_call(2), MESSAGES)
        assert read(store, later).request == dumps(MESSAGES) and [*verify(store)] == []


def tools(count: int) -> tuple[dict[str, Any], ...]:
    described = {
        "description": "multiplies " * 40,
        "parameters": {"type": "object", "properties": {"x": {}}},
    }
    return tuple(
        {"type": "function", "function": {"name": f"f{n}", **described}} for n in range(count)
    )


@pytest.mark.parametrize(
    "facts", [{}, {"token_ids": (5, 6), "mask": (False, True), "logprobs": (0.0, -0.5)}]
)
@pytest.mark.parametrize("sent", [[], MESSAGES])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_tools_are_read_back_as_they_were_offered(
    facts: dict[str, Any], sent: list[BaseMessage], count: int, store: RunStore
) -> None:
    call = text_call(1, tools=tools(count), **facts)
    store.journal.write_call(call, sent)
    wanted = call.model_copy(update={"request": dumps(sent) if sent else None})
    assert read(store, call) == wanted and [*verify(store)] == []
    bare = store.journal.find_call(call.id, request=False)
    assert bare == call.model_copy(update={"tools": None}), "what need not be read is not"


def test_tools_that_are_offered_again_are_not_stored_again(store: RunStore, url: str) -> None:
    store.journal.write_call(text_call(0, tools=tools(8)), MESSAGES)
    before = stats(store)
    for number in range(1, 50):
        store.journal.write_call(text_call(number, tools=tools(8)), MESSAGES)
    with open_store(url) as other:  # another process knows nothing of the first
        other.journal.write_call(text_call(50, tools=tools(8)), MESSAGES)
    after = stats(store)
    assert after.rows["values"] == before.rows["values"] and after.rows["requests"] == 51
    assert after.bytes["requests"] - before.bytes["requests"] < 50 * 120


def test_tools_are_kept_as_long_as_a_call_names_them(store: RunStore, tmp_path: Path) -> None:
    for thread, offer in (("a", tools(1)), ("b", tools(2))):
        sample = make_trajectory(id=thread, thread_id=thread, calls=(), tool_calls=())
        store.journal.write_trajectory(sample)
        where = make_call("task", tools=offer).identity.model_copy(update={"thread_id": thread})
        store.journal.write_call(make_call("task", identity=where, tools=offer), MESSAGES[:2])
    assert collect_values(store) == 0
    assert delete_runs(store, ["b"]) > 0
    (left,) = store.journal.trajectory("a").calls
    assert left.tools == tools(1) and [*verify(store)] == []
    with open_store(tmp_path / "sealed.db", key=os.urandom(32)) as target:
        copy_store(store, target)
        assert target.journal.trajectory("a").calls == (left,) and [*verify(target)] == []
        assert b"multiplies" not in stored_bytes(f"sqlite:///{tmp_path}/sealed.db")


def test_a_request_of_an_earlier_version_has_no_tools(store: RunStore) -> None:
    store.journal.write_call(call := text_call(1), MESSAGES)
    with store.database.read() as cursor:
        ((row,),) = cursor.execute("SELECT data FROM requests").fetchall()
    assert len(ormsgpack.unpackb(row)) == 2 and read(store, call).tools is None
