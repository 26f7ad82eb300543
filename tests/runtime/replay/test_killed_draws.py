"""A run that is killed in a node that has drawn: resumed, the node draws the same, and nothing is
asked again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus


def run(folder: Path, moment: str) -> int:
    command = [
        sys.executable,
        "-m",
        "tests.support.begin",
        "tests.support.graphs.killed_draws",
        str(folder),
        moment,
    ]
    return subprocess.run(command, check=False).returncode


def log(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text().splitlines()


@pytest.mark.whole
async def test_what_was_drawn_before_the_kill_is_drawn_again(tmp_path: Path) -> None:
    assert run(tmp_path, "model second") == -9
    before = log(tmp_path)
    assert [line.split()[1] for line in before] == ["first", "second"]
    assert run(tmp_path, "-") == 0
    after = log(tmp_path)[len(before) :]
    assert [line.split()[1] for line in after] == [
        "second",
        "third",
    ], "the first answer is on record"
    with open_store(tmp_path / "store.db") as store:
        done = store.journal.trajectory("thread")
        assert done.status is RunStatus.COMPLETED and len(done.calls) == 3
        found = await replay_async(store, "thread")
        assert found.equal and found.unused == 0, found
