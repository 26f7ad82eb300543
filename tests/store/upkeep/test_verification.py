"""Checks of `verify` beyond hashes: threads that cannot be opened, and records that contradict
checkpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.maintenance import delete_runs, prune, verify
from hrm_agent.store.values.serializer import allowed_types
from hrm_agent.store.values.value_reader import MSGPACK, hash_of
from hrm_agent.tools.record_call import as_message
from hrm_agent.trajectory import RunStatus, ToolCall, ToolStatus
from tests.support.store.bodies import execute
from tests.support.store.writer import call, trajectory
from tests.support.trajectory.samples import make_tool_call

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def tool_call(thread: str = "t", **changes: Any) -> ToolCall:
    made = make_tool_call("task", **changes)
    return made.model_copy(
        update={"identity": made.identity.model_copy(update={"thread_id": thread})}
    )


def begin(store: RunStore, thread: str, graph: str) -> None:
    store.journal.write_trajectory(
        trajectory(thread, RunStatus.RUNNING).model_copy(update={"graph": graph})
    )


def recorded(
    store: RunStore, thread: str = "t", graph: str = "tool_loop", shown: int | None = None
) -> Any:
    """A thread in whose step a model and a tool were called; its graph. `shown`: characters of the
    tool's answer.
    """
    made, ran = call(thread, 0), tool_call(thread, id=f"record of {thread}")
    answer = as_message(ran)
    answer = answer.model_copy(update={"content": answer.text[:shown]})

    def step(state: MessagesState) -> dict[str, Any]:
        asked = AIMessage(
            "asked " * 20, id=f"said on {thread}", response_metadata={"call_id": made.id}
        )
        return {"messages": [asked, answer]}

    builder = StateGraph(MessagesState).add_node("step", step).add_edge(START, "step")
    compiled = builder.compile(checkpointer=store.checkpointer)
    begin(store, thread, graph)
    store.journal.write_call(made)
    store.journal.write_tool_call(ran)
    config: Any = {"configurable": {"thread_id": thread}}
    compiled.invoke(
        {"messages": [HumanMessage("hello", id=f"hello on {thread}")]}, config, durability="sync"
    )
    return compiled


def rewrite(store: RunStore, **changes: Any) -> None:
    """Change the tool call's record, as another program would."""
    ((record,),) = execute(store.url, "SELECT record FROM tool_calls")
    changed = json.dumps({**json.loads(record), **changes}).encode()
    execute(store.url, "UPDATE tool_calls SET record = ?", (changed,))


CONTRADICTIONS: dict[str, tuple[Callable[[RunStore], object], str]] = {
    "another answer": (
        lambda s: rewrite(s, content="43"),
        "was answered with another text than its record",
    ),
    "another end": (lambda s: rewrite(s, status="timeout"), "ended ok, its record .* says timeout"),
    "no end": (lambda s: rewrite(s, status=None), "says that it is under way"),
    "no tool record": (
        lambda s: execute(s.url, "DELETE FROM tool_calls"),
        "its record .* is not there",
    ),
    "no call": (
        lambda s: [execute(s.url, f"DELETE FROM {table}") for table in ("calls", "tokens")],
        "names the model call .*, which is not on record",
    ),
}


@pytest.fixture
def file(tmp_path: Path) -> Any:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_record_that_contradicts_its_checkpoint_is_found(kind: str, file: RunStore) -> None:
    damage, said = CONTRADICTIONS[kind]
    recorded(file)
    assert list(verify(file)) == []
    damage(file)
    (found,) = verify(file)
    assert found.startswith("thread 't', checkpoint ")
    assert re.search(said, found), found


def test_pending_writes_are_held_against_records_too(file: RunStore) -> None:
    """The writes are those of a task that has ended, in a step that has not."""
    ran = tool_call()
    begin(file, "t", "tool_loop")
    file.journal.write_tool_call(ran)
    graph = StateGraph(MessagesState).add_node("a", lambda _: {"messages": [as_message(ran)]})
    graph = graph.add_node("b", lambda _: 1 / 0).add_edge(START, "a").add_edge(START, "b")
    with pytest.raises(ZeroDivisionError):
        graph.compile(checkpointer=file.checkpointer).invoke(
            {"messages": []}, CONFIG, durability="sync"
        )
    assert list(verify(file)) == []
    rewrite(file, content="43")
    assert len(list(verify(file))) == 1


def test_a_graph_of_ones_own_may_shorten_what_a_tool_answered(file: RunStore) -> None:
    recorded(file, "own", "own.graphs:agent", shown=1)
    assert list(verify(file)) == []
    recorded(file, "ours", "hrm_agent.graphs.tool_loop:graph", shown=1)
    assert "was answered with another text" in next(iter(verify(file)))


def test_an_edited_result_is_no_contradiction(store: RunStore) -> None:
    """A person may change a tool's recorded answer, and so may a graph, later."""
    graph = recorded(store)
    last = graph.get_state(CONFIG).values["messages"][-1]
    graph.update_state(CONFIG, {"messages": [last.model_copy(update={"content": "another"})]})
    assert list(verify(store)) == []
    graph.invoke({"messages": [HumanMessage("more")]}, CONFIG)
    assert list(verify(store)) == []


@dataclass
class Own:
    number: int


class Owning(TypedDict):
    value: Any


def test_a_type_that_is_not_known_here_is_told_as_such(store: RunStore, url: str) -> None:
    """The value is reported neither as sound nor as damaged. It is checked if its type is allowed."""
    name = f"{__name__}:Own"
    with open_store(url, allow=[name]) as knowing:
        graph = StateGraph(Owning).add_node("n", lambda _: {"value": Own(7)}).add_edge(START, "n")
        graph.compile(checkpointer=knowing.checkpointer).invoke({"value": 0}, CONFIG)
    (found,) = verify(store)
    assert "cannot be opened here" in found and f"{__name__}.Own" in found and "--allow" in found
    assert "need not be damage" in found
    assert list(verify(store, allowed_types([name]))) == []


def test_a_thread_that_cannot_be_opened_is_not_sound(file: RunStore) -> None:
    """A value whose bytes match their hash but cannot be read. Every checkpoint that holds it is
    counted.
    """
    recorded(file)
    recorded(file, "u")
    data = b"\xc1"
    name = hash_of(MSGPACK, data)
    execute(
        file.url, "INSERT INTO blobs (hash, kind, data) VALUES (?, ?, ?)", (name, MSGPACK, data)
    )
    for id_, manifest in execute(
        file.url, "SELECT id, manifest FROM checkpoints WHERE thread_id = 'u'"
    ):
        rest, channels = ormsgpack.unpackb(manifest)
        changed = [
            [key, version, name if key == "messages" and ref else ref]
            for key, version, ref in channels
        ]
        packed = ormsgpack.packb([rest, changed])
        execute(
            file.url,
            "UPDATE checkpoints SET manifest = ? WHERE thread_id = 'u' AND id = ?",
            (packed, id_),
        )
    found = [finding for finding in verify(file) if finding.startswith("thread")]
    assert len(found) == 1 and found[0].startswith(
        "thread 'u': 2 of 3 checkpoints cannot be opened; "
    )
    assert "is not valid msgpack" in found[0]


def test_a_manifest_without_its_fields_cannot_be_opened(file: RunStore) -> None:
    recorded(file)
    rows = execute(file.url, "SELECT id, metadata FROM checkpoints")
    execute(file.url, "UPDATE checkpoints SET metadata = ? WHERE id = ?", (b"\xc1", rows[-1][0]))
    assert "1 of 3 checkpoints cannot be opened" in " ".join(verify(file))
    execute(file.url, "UPDATE checkpoints SET metadata = ?", (ormsgpack.packb({}),))
    assert list(verify(file)) == []


# one damaged trajectory among others


def damaged(store: RunStore) -> None:
    for thread in ("t", "u", "v"):
        store.journal.write_trajectory(trajectory(thread, RunStatus.COMPLETED))
    execute(store.url, "UPDATE trajectories SET record = ? WHERE thread_id = 'u'", (b'{"id": 1}',))


def test_the_others_are_read_beside_a_damaged_one(file: RunStore) -> None:
    damaged(file)
    told: dict[str, StoreError] = {}
    found = [each.thread_id for each in file.journal.trajectories(on_damage=told.__setitem__)]
    assert found == ["t", "v"]
    assert "The trajectory id of u cannot be read: id: Input should be a valid string." in str(
        told["id of u"]
    )
    with pytest.raises(
        StoreError, match=r"trajectory id of u cannot be read: .* `hrm-agent store verify`"
    ):
        list(file.journal.trajectories())


def test_a_damaged_one_can_be_deleted_and_is_not_pruned(file: RunStore) -> None:
    damaged(file)
    pruned = prune(file, status=[RunStatus.COMPLETED])
    assert pruned.thread_ids == ("t", "v") and list(pruned.kept.values()) == [1]
    assert "cannot be read" in next(iter(pruned.kept))
    delete_runs(file, ["u"])
    assert file.threads() == [] and list(verify(file)) == []


def test_a_finished_tool_call_whose_record_is_damaged_is_told(file: RunStore) -> None:
    recorded(file)
    execute(file.url, "UPDATE tool_calls SET record = ?", (b"{}",))
    with pytest.raises(StoreError, match=r"The tool call record of t cannot be read: "):
        file.journal.write_tool_call(tool_call(id="record of t", status=ToolStatus.OK))
    assert any(
        finding.startswith("The tool call record of t cannot be read") for finding in verify(file)
    )
