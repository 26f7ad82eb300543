"""`kill -9` at any moment: nothing that had finished runs again, nothing is missing, nothing is doubled."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus
from hrm_agent.trajectory.lint import lint
from tests.graphs.kill_driver import TASKS, main, tool_line


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.graphs.kill_driver", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(folder: Path) -> set[str]:
    """Log lines of the model calls and tool calls that are on record as finished."""
    if not (folder / "store.db").exists():
        return set()
    with open_store(folder / "store.db") as store:
        runs = list(store.journal.trajectories())
        models = {f"model {call.sampling.seed}" for run in runs for call in run.calls}
        tools = {
            tool_line(call.arguments["code"]) for run in runs for call in run.tool_calls if call.status is not None
        }
    return models | tools


def kill_after(folder: Path, log_lines: int) -> bool:
    """Kill a run when its log has grown by so many lines; False if it ended first."""
    log = folder / "log.txt"
    size = len(log.read_text().splitlines()) if log.exists() else 0
    process = start(folder)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and len(log.read_text().splitlines()) >= size + log_lines:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.001)
    assert process.poll() == 0, "the run neither ended nor was it killed"
    return False


async def check_killed_runs(folder: Path, moments: list[int]) -> None:
    for moment in moments:
        before = finished(folder)
        lines = (folder / "log.txt").read_text().splitlines() if (folder / "log.txt").exists() else []
        killed = kill_after(folder, moment)
        asked = (folder / "log.txt").read_text().splitlines()[len(lines) :]
        assert not before & set(asked), "a finished call was made again"
        assert before <= finished(folder), "a finished call was lost"
        if not killed:
            break
    lines = (folder / "log.txt").read_text().splitlines()
    before = finished(folder)
    trajectories = await main(folder)
    asked = (folder / "log.txt").read_text().splitlines()[len(lines) :]
    assert not before & set(asked)
    assert len(trajectories) == len({t.id for t in trajectories}) == 2 * TASKS
    assert all(t.status is RunStatus.COMPLETED and lint(t) == [] for t in trajectories)
    calls = [call for t in trajectories for call in t.calls]
    assert len(calls) == len({(c.sampling.seed) for c in calls}), "a call is doubled"
    assert [len(t.calls) for t in trajectories] == [2] * TASKS + [9] * TASKS
    assert [len(t.tool_calls) for t in trajectories] == [1] * TASKS + [3] * TASKS
    assert all(c.status is not None for t in trajectories for c in t.tool_calls)
    with sqlite3.connect(folder / "store.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_kill_and_resume(tmp_path: Path) -> None:
    rng = random.Random(1)
    await check_killed_runs(tmp_path, [rng.randint(5, 60) for _ in range(6)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_kill_and_resume_often(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    await check_killed_runs(tmp_path, [rng.randint(1, 30) for _ in range(20)])
