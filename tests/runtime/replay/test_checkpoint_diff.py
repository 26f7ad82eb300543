"""States that differ only in form."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt

from hrm_agent.runtime.replay.checkpoint_diff import state_changes, task_writes, write_changes
from hrm_agent.runtime.replay.ignored_paths import Ignored
from hrm_agent.runtime.replay.renaming import Renaming

EARLIER = {"calls": 2, "tokens": 5, "cost": 0.0, "began": 100.0, "ended": 130.0}
BEGUN_EARLIER = {
    "calls": 2,
    "tokens": 5,
    "cost": 0.0,
    "thread": "t",
    "spans": [[200.0, 201.0]],
    "seconds": 0.037,
}
"""Usage of two calls, of which the first was counted by the earlier version."""
BOTH_NOW = BEGUN_EARLIER | {"spans": [[100.0, 101.0], [200.0, 201.0]], "seconds": 0.0}
NOW = {
    "calls": 2,
    "tokens": 5,
    "cost": 0.0,
    "thread": "t",
    "spans": [[100.0, 101.0]],
    "seconds": 0.0,
}


def checkpoint(spent: dict[str, Any]) -> CheckpointTuple:
    return CheckpointTuple(
        {"configurable": {}}, empty_checkpoint() | {"channel_values": {"spent": spent}}, {}, None
    )


@pytest.mark.parametrize(
    ("recorded", "now", "differs"),
    [
        (EARLIER, NOW, False),
        (EARLIER, NOW | {"tokens": 6}, True),
        (NOW, NOW | {"spans": []}, True),
        (NOW, EARLIER, True),
        (BEGUN_EARLIER, BOTH_NOW, False),
        (BEGUN_EARLIER, BOTH_NOW | {"calls": 3}, True),
        (BEGUN_EARLIER, BOTH_NOW | {"spans": [[100.0, 101.0], [200.0, 202.0]]}, True),
        (BEGUN_EARLIER, BOTH_NOW | {"thread": "another"}, True),
        (BEGUN_EARLIER | {"seconds": 0.0}, BOTH_NOW, True),
        ({"calls": 2, "tokens": 5, "cost": 0.0, "seconds": 30.0}, NOW, False),
    ],
)
def test_usage_that_an_earlier_version_recorded_is_compared_without_its_times(
    recorded: dict[str, Any], now: dict[str, Any], differs: bool
) -> None:
    found = state_changes(
        JsonPlusSerializer(), checkpoint(recorded), checkpoint(now), Renaming().equal
    )
    assert [change.channel for change in found] == ["spent"] * differs


def written(*writes: tuple[str, Any]) -> CheckpointTuple:
    pending = [("task", channel, value) for channel, value in writes]
    return CheckpointTuple({"configurable": {}}, empty_checkpoint(), {}, None, pending)


@pytest.mark.parametrize(
    ("recorded", "now", "differs"),
    [
        (AIMessage("x"), AIMessage("x", id="1"), False),  # whether it had got its id yet is chance
        (AIMessage("x", id="2"), AIMessage("x", id="1"), True),
        ([AIMessage("x")], [AIMessage("y", id="1")], True),
        ([AIMessageChunk("x", id="1")], [AIMessage("x", id="1")], False),
        ({"a": [AIMessage("x", id="1")]}, {"a": [AIMessage("x")]}, False),
        ([1, 2], [1, 2, 3], True),
        (1, True, True),
        (1, 1.0, True),
        ({8, 16}, {16, 8}, False),
        ({"a": {8, 16}}, {"a": {16, 8}}, False),
        ({8, 16}, {8, 24}, True),
        ([8, 16], {8, 16}, True),
    ],
)
def test_a_write_is_compared_as_the_state_takes_it(recorded: Any, now: Any, differs: bool) -> None:
    then, new = (task_writes(written(("channel", value)))["task"] for value in (recorded, now))
    found = write_changes(JsonPlusSerializer(), then, new, Renaming().equal, Ignored())
    assert [change.channel for change in found] == ["channel"] * differs


def asked(question: str, id_: str) -> list[tuple[str, Any]]:
    return [("__interrupt__", (Interrupt(question, id=id_),))]


@pytest.mark.parametrize(
    ("recorded", "now", "told"),
    [
        ([("a", 1)], [("a", 1), ("b", 2)], ["writes"]),
        ([("a", 1), ("branch:to:x", None)], [("a", 1), ("branch:to:y", None)], []),
        (
            [("__interrupt__", (Interrupt("a?", id="1"),))],
            [("__interrupt__", (Interrupt("a?", id="2"),))],
            [],
        ),
        (
            [("__interrupt__", (Interrupt("a?", id="1"),))],
            [("__interrupt__", (Interrupt("b?", id="1"),))],
            ["question"],
        ),
        ([("a", 1), ("__error__", "away")], [("a", 1)], []),
        (
            [("__error__", "away"), ("__error_source_node__", "x")],
            [("__error__", "gone")],
            ["writes"],
        ),
    ],
)
def test_what_counts_of_a_tasks_writes(recorded: Any, now: Any, told: list[str]) -> None:
    then, new = (task_writes(written(*writes))["task"] for writes in (recorded, now))
    found = write_changes(JsonPlusSerializer(), then, new, Renaming().equal, Ignored())
    assert [change.channel for change in found] == told
