"""States that differ in form alone."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from hrm_agent.runtime.replay.checkpoint_diff import state_changes
from hrm_agent.runtime.replay.renaming import Renaming

EARLIER = {"calls": 2, "tokens": 5, "cost": 0.0, "began": 100.0, "ended": 130.0}
BEGUN_EARLIER = {"calls": 2, "tokens": 5, "cost": 0.0, "thread": "t", "spans": [[200.0, 201.0]], "seconds": 0.037}
"""Of two calls the first was counted by the earlier version."""
BOTH_NOW = BEGUN_EARLIER | {"spans": [[100.0, 101.0], [200.0, 201.0]], "seconds": 0.0}
NOW = {"calls": 2, "tokens": 5, "cost": 0.0, "thread": "t", "spans": [[100.0, 101.0]], "seconds": 0.0}


def checkpoint(spent: dict[str, Any]) -> CheckpointTuple:
    return CheckpointTuple({"configurable": {}}, empty_checkpoint() | {"channel_values": {"spent": spent}}, {}, None)


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
    found = state_changes(JsonPlusSerializer(), checkpoint(recorded), checkpoint(now), Renaming().equal)
    assert [change.channel for change in found] == ["spent"] * differs
