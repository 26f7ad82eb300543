"""A user's own model and tools are asked once: killed at any moment and resumed, nothing is asked
again.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, ToolStatus
from hrm_agent.trajectory.lint import lint

pytestmark = pytest.mark.whole

MOMENTS = [
    "model 1",
    "asked",
    "paid under pay:o-1",
    "model 4",
    "streamed",
    "read",
    "look 1",
    "looked",
    "paid again",
]
INTERRUPTED = {
    moment: moment for moment in ("model 1", "paid under pay:o-1", "model 4", "look 1")
} | {"streamed": "model 4"}
"""Moments within a call, and the call itself, which is the only one repeated."""
CALLS = Counter({"model 1": 1, "paid under pay:o-1": 1, "model 4": 1, "look 1": 2})


def run(folder: Path, moment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.support.begin",
        "tests.support.graphs.external_agent_driver",
        str(folder),
        moment,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(m, marks=() if m in ("paid under pay:o-1", "streamed") else pytest.mark.slow)
        for m in MOMENTS
    ],
)
async def test_killed_and_gone_on_with(moment: str, tmp_path: Path) -> None:
    assert run(tmp_path, moment).returncode == -9
    done = run(tmp_path, "-")
    assert done.stdout.strip() == "completed None", done.stderr
    lines = Counter((tmp_path / "log.txt").read_text().splitlines())
    again = Counter({INTERRUPTED[moment]: 1} if moment in INTERRUPTED else {})
    assert {call: lines[call] for call in CALLS} == CALLS + again
    with open_store(tmp_path / "store.db") as store:
        (trajectory,) = store.journal.trajectories()
        assert trajectory.status is RunStatus.COMPLETED and lint(trajectory) == []
        assert [call.response["content"].strip() for call in trajectory.calls] == [
            "I pay.",
            "Bought.",
        ]
        paid = [call for call in trajectory.tool_calls if call.name == "pay"]
        assert {(call.status, call.content, call.idempotency_key) for call in paid} == {
            (ToolStatus.OK, "paid o-1", "pay:o-1")
        }
        first: Any = paid[0].output
        assert first["message"]["artifact"]["receipt"][0] == 1
        found = await replay_async(store, "thread")
        assert found.equal and found.unused == 0
