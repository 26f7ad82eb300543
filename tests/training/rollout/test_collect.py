"""A run folder: resumed under another name, and by one process at a time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.errors import RunError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.collect import collect

CONFIG = CollectConfig(policy="scripted", count=3, context={"max_turns": 1})
HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def run(folder: Path, engine: ScriptedEngine) -> list[str]:
    return [t.thread_id for t in asyncio.run(collect(CONFIG, folder, backend=engine))]


def test_a_moved_folder_is_the_same_run(tmp_path: Path) -> None:
    with ScriptedEngine(lambda _: "<answer>\\boxed{1}</answer>") as engine:
        first = run(tmp_path / "one", engine)
        (tmp_path / "one").rename(tmp_path / "two")
        assert run(tmp_path / "two", engine) == first == [f"one/collect/{i}/0" for i in range(3)]
        assert engine.calls == 3


def test_two_processes_are_not_at_work_in_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / ".lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with (
            ScriptedEngine([]) as engine,
            pytest.raises(RunError, match="Another process is using"),
        ):
            run(tmp_path, engine)
        other.kill()
    with ScriptedEngine(lambda _: "x") as engine:
        assert len(run(tmp_path, engine)) == 3, "the lock goes with its process"
