"""A reader that disconnects, an interrupt, a slow start: the state of the run, and the messages for
the user.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hrm_agent.models.slow_start import told_if_slow
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus

PROJECT = Path(__file__).parents[3]
SLOW = """
import asyncio, os
from tests.support.graphs.own_agent import builder
from langgraph.graph import END, MessagesState

async def gate(state):
    open("waiting", "w").close()  # a named pipe: until the test has opened it, too
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return {}

builder.add_node("gate", gate)
builder.add_edge("tools", "gate")  # once
graph = builder.compile()
"""


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "slow.py").write_text(SLOW)
    os.mkfifo(folder / "waiting")
    command = [
        sys.executable,
        "-m",
        "hrm_agent",
        "run",
        "6 * 7?",
        "--graph",
        "slow:graph",
        "--thread",
        "t",
        *words,
    ]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )


@pytest.mark.parametrize("words", [["--json"], []], ids=["json", "text"])
def test_a_run_whose_reader_goes_away_is_finished(words: list[str], tmp_path: Path) -> None:
    process = begin(tmp_path, *words)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    (tmp_path / "waiting").read_bytes()
    (tmp_path / "go").touch()
    said = process.stderr.read()
    assert process.wait(60) == 0, said
    with open_store(tmp_path / "runs" / "store.db") as store:
        assert store.journal.trajectory("t").status is RunStatus.COMPLETED


def test_a_graph_that_ends_the_process_is_told_from_one_that_has_done_its_work(
    tmp_path: Path,
) -> None:
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom langgraph.graph import START, MessagesState, StateGraph\n\n"
        "def leave(state):\n    sys.exit(3)\n\n"
        'graph = StateGraph(MessagesState).add_node(leave).add_edge(START, "leave").compile()\n'
    )
    command = [
        sys.executable,
        "-m",
        "hrm_agent",
        "run",
        "6 * 7?",
        "--graph",
        "./leaves.py:graph",
        "--thread",
        "t",
    ]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert (
        "tried to end this process by sys.exit(3)" in done.stderr
        and "`hrm-agent resume t " in done.stderr
    )


def test_an_interrupt_names_the_command_that_resumes(tmp_path: Path) -> None:
    process = begin(tmp_path)
    assert process.stdout is not None and process.stderr is not None
    (tmp_path / "waiting").read_bytes()  # once the node waits
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    process.stdout.close()
    assert process.wait(60) == 130, said
    assert "Resume it: `hrm-agent resume t --store runs/store.db`" in said
    with open_store(tmp_path / "runs" / "store.db") as store:
        assert store.journal.trajectory("t").status is RunStatus.RUNNING


def test_a_slow_start_is_told_and_a_quick_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with told_if_slow("never told", seconds=60):
        pass
    others = threading.enumerate()
    with told_if_slow("loading", seconds=0.001):
        for thread in set(threading.enumerate()) - set(others):
            thread.join()
    assert capsys.readouterr().err == "hrm-agent: loading\n"
