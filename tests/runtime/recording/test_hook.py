"""Unchanged programs, recorded by `hrm-agent record -- COMMAND`: scripts, modules, tests, servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from hrm_agent.cli.main import main
from hrm_agent.runtime.recording import hook
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, Trajectory
from tests.support.postgres import free_port

PROJECT = Path(__file__).parents[3]
PROGRAM = """
import sys
early = [name for name in sys.modules if name.startswith(("langgraph", "pydantic", "hrm_agent.store"))]
assert not early or "pytest" in sys.modules
from tests.support.graphs.own_agent import graph

def main():
    answer = graph.invoke({"messages": [("user", "What is 6 * 7?")]})
    print(answer["messages"][-1].text)
    assert "torch" not in sys.modules

def test_it():
    main()

if __name__ == "__main__":
    main()
    sys.exit(3)
"""
SERVER = """
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.runtime.recording.test_record import echoing, echoing_async

async def ask(request):
    given = {"messages": [("user", request.path_params["text"])]}
    if request.path_params["text"].startswith("thread"):
        answer = await run_in_threadpool(echoing.invoke, given)
    else:
        answer = await echoing_async.ainvoke(given)
    return PlainTextResponse(answer["messages"][-1].text)

app = Starlette(routes=[Route("/{text}", ask)])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT}{os.pathsep}{tmp_path}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "theirs.py").write_text(PROGRAM)
    return tmp_path


def on_record() -> list[Trajectory]:
    with open_store("runs/x.db", create=False) as store:
        return list(store.journal.trajectories())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["theirs.py"], 3),
        (["-m", "theirs"], 3),
        (["-m", "pytest", "-q", "-p", "no:cacheprovider", "theirs.py"], 0),
    ],
    ids=["script", "module", "pytest"],
)
def test_a_program_is_recorded_and_keeps_its_exit_code(words: list[str], code: int) -> None:
    assert main(["record", "--store", "runs/x.db", "--", sys.executable, *words]) == code
    (trajectory,) = on_record()
    assert (trajectory.answer, trajectory.policy) == ("It is 42.", "HostedModel")
    assert trajectory.graph == "tests.support.graphs.own_agent:graph"


def test_a_library_that_wraps_the_entry_points_before_the_first_run() -> None:
    """Tracing libraries replace `Pregel.stream` by a wrapper that calls what it found there."""
    program = """
from theirs import main
from langgraph.pregel import Pregel
found, calls = Pregel.stream, []

def stream(self, *given, **options):
    calls.append(self)
    yield from found(self, *given, **options)

Pregel.stream = stream
main()
main()
assert len(calls) == 2, calls
assert Pregel.stream is stream
"""
    words = ["record", "--store", "runs/x.db", "--", sys.executable, "-c", program]
    assert main(words) == 0
    assert [t.answer for t in on_record()] == ["It is 42.", "It is 42."]


def test_the_line_that_is_installed_records_and_leaves_other_checkpointers_as_they_are() -> None:
    line = (Path(hook.__file__).parent / "startup" / "hrm_agent_record.pth").read_text()
    check = (
        'import os; assert "LANGGRAPH_STRICT_MSGPACK" not in os.environ; from theirs import main;'
        " main()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "LANGGRAPH_STRICT_MSGPACK"}
    words = [sys.executable, "-c", f"{line}\n{check}"]
    subprocess.run(words, env=environment | {"HRM_AGENT_STORE": "runs/x.db"}, check=True)
    assert [t.answer for t in on_record()] == ["It is 42."]
    idle = "import sys; print([name for name in sys.modules if name.startswith('hrm_agent')])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{line}\n{idle}"], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", "without the variable nothing of ours is imported"


def test_a_programs_own_checkpointer_reads_what_it_reads_without_a_record() -> None:
    program = """
from hrm_agent import record
from typing import Any, TypedDict
from pydantic import BaseModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

class Inner(BaseModel):
    x: int = 1

class State(TypedDict):
    held: Any

builder = StateGraph(State)
builder.add_node("hold", lambda state: print(type(state["held"]).__name__) or {"held": Inner()})
builder.add_edge(START, "hold")
graph = builder.compile(checkpointer=InMemorySaver())
config = {"configurable": {"thread_id": "t"}}
with record("runs/x.db"):
    graph.invoke({"held": None}, config)
    graph.invoke({"held": graph.get_state(config).values["held"]}, config)
"""
    words = [sys.executable, "-c", program]
    environment = {k: v for k, v in os.environ.items() if k != "LANGGRAPH_STRICT_MSGPACK"}
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "NoneType\nInner\n"


def test_a_sitecustomize_that_is_hidden_runs_as_well(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "sitecustomize.py").write_text("print('theirs')")
    assert (
        main(["record", "--store", "runs/x.db", "--", sys.executable, "-c", "print('program')"])
        == 0
    )
    assert capfd.readouterr().out == "theirs\nprogram\n"


def test_what_is_wrong_is_told_before_the_program_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["record"]) == 2 and "Put the program after two hyphens" in capfd.readouterr().err
    assert (
        main(["record", "--", "no-such-program"]) == 2
        and "'no-such-program'" in capfd.readouterr().err
    )
    Path("theirs.db").write_text("no database, but a text that is long enough to be taken for one")
    words = [sys.executable, "-c", "print('run')"]
    assert main(["record", "--store", "theirs.db", "--", *words]) == 2
    assert capfd.readouterr().out == ""


def test_a_server_with_many_requests_at_once(folder: Path) -> None:
    (folder / "server.py").write_text(SERVER)
    port = free_port()
    serving = [
        sys.executable,
        "-m",
        "uvicorn",
        "server:app",
        "--port",
        str(port),
        "--log-level",
        "error",
    ]
    words = [sys.executable, "-m", "hrm_agent", "record", "--store", "runs/x.db", "--", *serving]
    with subprocess.Popen(words) as process, ThreadPoolExecutor(12) as pool:
        texts = [f"{kind}-{i}" for i in range(12) for kind in ("thread", "task")]
        try:
            _until_it_serves(f"http://127.0.0.1:{port}/first", process)
            answers = [
                *pool.map(
                    lambda text: urlopen(f"http://127.0.0.1:{port}/{text}", timeout=60).read(),
                    texts,
                )
            ]
        finally:
            process.send_signal(signal.SIGTERM)
    assert [answer.decode() for answer in answers] == [f"echo {text}" for text in texts]
    found = on_record()
    assert sorted(t.task.prompt for t in found) == sorted([*texts, "first"])
    assert all(
        [json.dumps(c.response["content"]) for c in t.calls] == [f'"echo {t.task.prompt}"']
        for t in found
    )
    assert {t.status for t in found} == {RunStatus.COMPLETED}


def _until_it_serves(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urlopen(url, timeout=60).read()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
