"""Forks and replays from a page: planned, then run by commands of their own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from hrm_agent.cli.main import main
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.store import open_store
from hrm_agent.testing import wait_until
from hrm_agent.trajectory import RunStatus
from hrm_agent.viewer.fork_jobs import ForkJobs, _address
from hrm_agent.viewer.json_text import NotThere
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections.run.trajectories import trajectories
from hrm_agent.viewer.projections.trajectory.moments import moment, moments
from hrm_agent.viewer.security import FORK_HEADER

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).parents[2]
GATED = """
import os
from langgraph.graph import START, MessagesState, StateGraph

def first(state):
    return {"messages": [("ai", "one")]}

def second(state):
    if os.path.exists("gate"):
        with open("gate", "w") as gate:  # a named pipe: until the test has opened it, too
            gate.write("here")
            gate.flush()
            open("shut").read()  # another, which nobody opens
    return {"messages": [("ai", "two")]}

graph = StateGraph(MessagesState).add_sequence([first, second]).add_edge(START, "first").compile()
"""


@pytest.fixture
def place(trained_run: Path, tmp_path: Path) -> Iterator[Place]:
    shutil.copytree(trained_run, tmp_path / "small")
    found = Place("small", str(tmp_path / "small"), tmp_path / "small")
    yield found
    found.close()


@pytest.fixture
def jobs() -> Iterator[ForkJobs]:
    found = ForkJobs()
    yield found
    found.close()


def after_tools(place: Place) -> tuple[str, str, str]:
    """A thread, its first moment after a tool ran, and the id of the tool call there."""
    row = next(row for row in trajectories(place, "small")["rows"] if row[12])
    found = next(each for each in moments(place, row[2])["moments"] if "tools" in each["nodes"])
    state = moment(place, row[2], found["checkpoint"])
    (channel,) = [channel for channel in state["channels"] if channel["name"] == "messages"]
    return row[2], found["checkpoint"], channel["messages"][-1]["tool_call_id"]


def ended(jobs: ForkJobs) -> list[dict[str, Any]]:
    asyncio.run(wait_until(lambda: all(job["state"] != "running" for job in jobs.all()["jobs"])))
    return jobs.all()["jobs"]


def test_a_fork_with_an_edit_and_a_replay(place: Place, jobs: ForkJobs) -> None:
    thread, checkpoint, call = after_tools(place)
    text = "the tool's result: $(touch /tmp/x) \"'\n" + "1" * 200_000
    request = {
        "place": "small",
        "thread": thread,
        "checkpoint": checkpoint,
        "edit": {"tools": {call: "1\n2"}},
    }
    long = {**request, "edit": {"tools": {call: text}}}
    plan = jobs.plan(place, request)
    assert plan["runs_again"][0] == "reason" and plan["model"] == "builtin:cold-start"
    assert plan["command"].startswith("hrm-agent fork ") and "--edit edit.json" in plan["command"]
    assert jobs.plan(place, request)["digest"] == plan["digest"] != jobs.plan(place, long)["digest"]
    with pytest.raises(RunError, match="differs from its plan"):
        jobs.fork(place, {**long, "digest": plan["digest"]})
    jobs.fork(place, {**request, "digest": plan["digest"], "count": 2})
    jobs.replay(place, {"place": "small", "id": thread})
    with pytest.raises(RunError, match="2 jobs are running"):
        jobs.replay(place, {"id": thread})
    replayed, forked = ended(jobs)
    assert (replayed["state"], replayed["result"]["verdict"]) == ("done", "equal")
    assert forked["state"] == "done", forked["error"]
    assert forked["threads"] == [f"{thread}/fork-1/0", f"{thread}/fork-1/1"]
    made = place.store().journal.trajectory(forked["trajectories"][0])
    assert made.forked_from is not None and made.forked_from.checkpoint_id == checkpoint
    shared = next(
        each for each in moments(place, thread)["moments"] if each["checkpoint"] == checkpoint
    )
    assert [fork["trajectory"] for fork in shared["branches"]] == forked["trajectories"]
    state = moment(
        place,
        forked["threads"][0],
        moments(place, forked["threads"][0])["moments"][-1]["checkpoint"],
    )
    (channel,) = [channel for channel in state["channels"] if channel["name"] == "messages"]
    assert "1\n2" in [message["text"]["text"] for message in channel["messages"]]


def test_what_is_refused(place: Place, jobs: ForkJobs) -> None:
    thread, checkpoint, _ = after_tools(place)
    good = {"thread": thread, "checkpoint": checkpoint}
    for wrong in (
        {"thread": thread},
        {**good, "edit": [1]},
        {**good, "edit": {"shell": "x"}},
        {**good, "edit": {"messages": {"a": 1}}},
        {**good, "edit": {"values": [1]}},
        {**good, "edit": {"as_node": 3}},
        {**good, "shell": "x"},
        {**good, "thread": "a\0b"},
        {**good, "checkpoint": "\ud800"},
        {**good, "thread": "x" * 300_000},
    ):
        with pytest.raises(ConfigError):
            jobs.plan(place, wrong)
    with pytest.raises(NotThere, match="no checkpoint"):
        jobs.plan(place, {**good, "checkpoint": "gone"})
    digest = jobs.plan(place, good)["digest"]
    for count in (0, 17, "2", True):
        with pytest.raises(ConfigError):
            jobs.fork(place, {**good, "digest": digest, "count": count})
    for id_ in ("", 3, "a\0b", "\ud800", "x" * 300_000):
        with pytest.raises(ConfigError):
            jobs.replay(place, {"id": id_})
    with pytest.raises(RunError, match="differs from its plan"):
        jobs.fork(place, {**good, "digest": "\ud800"})
    assert jobs.all() == {"jobs": []}


def test_a_password_is_given_to_a_command_by_its_environment_alone() -> None:
    for url in (
        "postgresql://me:se%40cret@host/name",
        "postgresql://me@host/name?password=se%40cret",
    ):
        where, environment = _address(Place("name", url, None))
        assert (where, environment["PGPASSWORD"]) == ("postgresql://me@host/name", "se@cret")


def test_a_command_that_fails_says_why_and_close_ends_those_under_way(
    place: Place, jobs: ForkJobs
) -> None:
    jobs.replay(place, {"id": "--no-such-option"})
    (job,) = ended(jobs)
    assert job["state"] == "failed" and "--no-such-option" in job["error"]["message"]
    jobs.replay(place, {"id": "nothing"})
    jobs.close()
    assert ended(jobs)[0]["state"] == "failed"
    with pytest.raises(RunError, match="is ending"):
        jobs.replay(place, {"id": "nothing"})


def test_a_fork_ends_with_a_viewer_that_is_killed_and_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(GATED)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "hrm_agent", *words, "--json"]

    def done(*words: str) -> str:
        run = subprocess.run(
            command(*words),
            check=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        return run.stdout

    done("run", "6 * 7?", "--graph", "./gated.py:graph", "--thread", "t", "--store", "store.db")
    os.mkfifo(tmp_path / "gate")
    os.mkfifo(tmp_path / "shut")
    words = command("view", "store.db", "--allow-fork", "--no-browser")
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as viewer:
        try:
            assert viewer.stdout is not None
            told = json.loads(viewer.stdout.readline())
            address = urlsplit(told["url"])
            site = f"{address.scheme}://{address.netloc}"
            token = address.fragment.removeprefix("token=").partition("&")[0]
            headers = {
                "Authorization": f"Bearer {token}",
                "Origin": site,
                "Content-Type": "application/json",
            }

            def ask(path: str, body: dict[str, Any] | None = None) -> Any:
                more = {FORK_HEADER: told["fork_token"]} if body else {}
                data = json.dumps(body).encode() if body else None
                with urlopen(Request(f"{site}/api/v1/{path}", data, headers | more)) as answer:
                    return json.load(answer)

            found = ask("moments?place=store.db&thread=t")["moments"]
            at = next(each["checkpoint"] for each in found if each["next"] == ["second"])
            body = {"place": "store.db", "thread": "t", "checkpoint": at}
            ask("fork", {**body, "digest": ask("fork/plan", body)["digest"]})
            with (tmp_path / "gate").open("rb", buffering=0) as gate:
                assert gate.read(4) == b"here"
                viewer.kill()
                assert gate.read() == b"", "whoever held it is gone"
        finally:
            viewer.kill()
    (tmp_path / "gate").unlink()
    with open_store(tmp_path / "store.db", read_only=True) as store:
        assert store.journal.trajectory("t/fork-1").status is RunStatus.RUNNING
    done("resume", "t/fork-1", "--store", "store.db")
    with open_store(tmp_path / "store.db", read_only=True) as store:
        assert store.journal.trajectory("t/fork-1").status is RunStatus.COMPLETED


def test_an_edit_of_a_file(
    place: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, checkpoint, call = after_tools(place)
    words = ("fork", thread, "--at", checkpoint, "--store", place.where, "--json", "--edit")
    (tmp_path / "edit.json").write_text('{"tools": {"' + call + '": "from a file"}}')
    assert main([*words, str(tmp_path / "edit.json")]) == 0
    assert f"{thread}/fork-1" in capsys.readouterr().out
    long = "$(touch /tmp/x) \"'\n" + "1" * 500_000
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"tools": {call: long}})))
    assert main([*words, "-"]) == 0, "longer than an argument may be"
    state = moment(
        place, f"{thread}/fork-2", moments(place, f"{thread}/fork-2")["moments"][-1]["checkpoint"]
    )
    (channel,) = [channel for channel in state["channels"] if channel["name"] == "messages"]
    assert channel["messages"][-1]["text"]["chars"] == len(long)
    (tmp_path / "edit.json").write_text('{"tool": {}}')
    assert main([*words, str(tmp_path / "edit.json")]) == 2
    assert "Extra inputs are not permitted" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "missing.json")]) == 2
    assert "No such file" in capsys.readouterr().err
