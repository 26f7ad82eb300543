"""Processes that run `hrm-agent`: one that is stopped for longer than its lease, and two that
cannot see each other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from hrm_agent.store import RunStore, open_store
from hrm_agent.store.upkeep.maintenance import verify
from hrm_agent.testing import block_until
from hrm_agent.trajectory import RunStatus, ToolStatus
from hrm_agent.trajectory.lint import lint
from tests.support.postgres import PostgresServer
from tests.support.store import slow_agent
from tests.support.store.bodies import execute, is_file
from tests.support.store.cli_process import CliProcess, hrm_agent
from tests.support.trajectory.samples import make_trajectory

pytestmark = pytest.mark.whole


def place_of(folder: Path, shared: Path, answers: tuple[str, ...] = slow_agent.SCRIPT) -> str:
    """A folder in which the slow agent can be run; the policy that plays its model."""
    folder.mkdir()
    shutil.copy(slow_agent.__file__, folder / "agent.py")
    (folder / slow_agent.PLACE).write_text(str(shared))
    script = shared / "script.jsonl"
    script.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"scripted:{script}"


def begun(shared: Path, process: CliProcess) -> int:
    """Number of tools that a process has begun."""
    noted = shared / "begun.txt"
    lines = noted.read_text().splitlines() if noted.exists() else []
    assert process.process.is_alive() or len(lines) >= 2, process.said.read_text()
    return sum(line.endswith(f" {process.pid}") for line in lines)


def stop(process: CliProcess, url: str) -> None:
    """Stop a process, but not during a write, when it would hold SQLite's lock on the file."""
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        if not is_file(url):
            return
        with closing(
            sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
        ) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(process.pid, signal.SIGCONT)


def has_run_out(url: str) -> bool:
    return execute(url, "SELECT max(expires_at) FROM leases")[0][0] < time.time()


def test_a_process_that_was_stopped_writes_nothing_to_a_thread_that_was_taken_over(
    url: str, tmp_path: Path
) -> None:
    """The thread's tools run in both processes. The record has the second one's outcomes, and the
    first one gets an error.
    """
    shared = tmp_path / "shared"
    shared.mkdir()
    here, there = tmp_path / "here", tmp_path / "there"
    policy = place_of(here, shared)
    begin = (
        "run",
        "Do both.",
        "--graph",
        "./agent.py:graph",
        "--policy",
        policy,
        "--thread",
        "t",
        "--store",
        url,
    )
    with hrm_agent(here, *begin) as first:
        block_until(lambda: begun(shared, first) == 2)
        stop(first, url)
        block_until(lambda: has_run_out(url))
        place_of(there, shared, slow_agent.SCRIPT[1:])  # what the model says first is on record
        with hrm_agent(there, "resume", "t", "--store", url, lease=60.0) as second:
            block_until(lambda: begun(shared, second) == 2)
            (shared / "open").touch()
            code, said = second.ended()
            assert code == 0 and "completed (answer)" in said, said
        os.kill(first.pid, signal.SIGCONT)
        code, said = first.ended()
    said = " ".join(said.split())
    assert code == 2 and "Thread 't' was taken over by another process" in said, said
    assert f"Process {second.pid} on" in said and "is not recorded" in said
    assert "Nothing was written" not in said and "Traceback" not in said
    with open_store(url) as store:
        record = store.journal.trajectory("t")
        assert (
            record.status is RunStatus.COMPLETED
            and lint(record) == []
            and list(verify(store)) == []
        )
        outcomes = {(call.status, call.content) for call in record.tool_calls}
        assert outcomes == {(ToolStatus.OK, f"{what} by {second.pid}") for what in ("one", "two")}
        assert len(record.tool_calls) == len(record.calls) == 2
    with hrm_agent(there, "replay", "t", "--store", url) as third:
        code, said = third.ended()
    assert code == 0, said


def test_a_thread_goes_on_from_another_folder(tmp_path: Path, postgres: PostgresServer) -> None:
    """Killed in one folder, resumed from another one: graph, model and options are in the store,
    not beside it.
    """
    url = postgres.create_database()
    shared = tmp_path / "shared"
    shared.mkdir()
    here, there = tmp_path / "here", tmp_path / "there"
    begin = (
        "run",
        "Do both.",
        "--graph",
        "./agent.py:graph",
        "--policy",
        place_of(here, shared),
        "--thread",
        "t",
    )
    with hrm_agent(here, *begin, "--store", url, "--temperature", "0.25", "--seed", "7") as first:
        block_until(lambda: begun(shared, first) == 2)
    assert [path.name for path in here.rglob("config.toml")] == []
    place_of(there, shared, slow_agent.SCRIPT[1:])
    (shared / "open").touch()
    with hrm_agent(there, "resume", "t", "--store", url) as second:
        code, said = second.ended()
    assert code == 0 and "completed (answer)" in said, said
    with open_store(url) as store:
        record = store.journal.trajectory("t")
        assert {call.sampling.temperature for call in record.calls} == {0.25}
        assert 'graph = "./agent.py:graph"' in (store.options.read("t") or "")
        check_copies(store, tmp_path)
    postgres.drop_database(url)


def check_copies(store: RunStore, tmp_path: Path) -> None:
    from hrm_agent.store.upkeep.copying import copy_store
    from hrm_agent.store.upkeep.maintenance import delete_runs, stats

    with open_store(tmp_path / "copy.db") as copied:
        copy_store(store, copied)
        assert copied.options.read("t") == store.options.read("t") is not None
    delete_runs(store, ["t"])
    assert store.options.read("t") is None and set(stats(store).rows.values()) == {0}


HOLDER = """
import sys
from hrm_agent.store import open_store
with open_store(sys.argv[1]) as store, store.lease("t"):
    print("held", flush=True)
    sys.stdin.read()
"""
TAKER = """
import sys
from hrm_agent.errors import RunError
from hrm_agent.store import open_store
try:
    with open_store(sys.argv[1]) as store, store.lease("t"):
        print("taken")
except RunError as error:
    print(error)
"""


STOPPED = """
import os, signal, sys
from hrm_agent.store import open_store
from hrm_agent.store.database import leases
leases.LEASE_SECONDS, leases.HEARTBEAT_SECONDS = 1.0, 3600.0
with open_store(sys.argv[1]) as store, store.lease("t"):
    store.database.write(lambda cursor: os.kill(os.getpid(), signal.SIGSTOP), "t")
"""


def test_a_process_that_is_stopped_in_a_transaction_keeps_nobody_out(
    postgres: PostgresServer,
) -> None:
    """The stopped transaction holds the lock of all writers. Opening the store requests nothing
    that waits for it.
    """
    url = postgres.create_database()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with open_store(url) as store:
        stopped = subprocess.Popen([sys.executable, "-c", STOPPED, url], env=environment)
        try:
            assert os.WIFSTOPPED(os.waitpid(stopped.pid, os.WUNTRACED)[1])
            block_until(lambda: has_run_out(url))
            command = [sys.executable, "-c", TAKER, url]
            second = subprocess.run(
                command, env=environment, timeout=60, capture_output=True, text=True, check=False
            )
            assert second.stdout == "taken\n", second.stderr
            store.journal.write_trajectory(make_trajectory())
        finally:
            stopped.kill()
            stopped.wait()
        assert execute(url, "SELECT epoch FROM leases WHERE thread_id = 't'") == [(2,)]
    postgres.drop_database(url)


def test_a_live_owner_in_another_container_is_not_taken_for_dead(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Two PID namespaces under one host name: each sees only its own processes, and both have a
    process 1.
    """
    url = postgres.create_database()
    root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    container = [
        "unshare",
        *root,
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-c",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = {
        "text": True,
        "env": environment,
        "cwd": tmp_path,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
    }

    def taken() -> str:
        with subprocess.Popen([*container, TAKER, url], **options) as second:  # type: ignore[call-overload]
            return second.communicate(timeout=120)[0]

    with subprocess.Popen([*container, HOLDER, url], **options) as first:  # type: ignore[call-overload]
        assert first.stdout.readline() == "held\n"
        assert re.match(r"Thread 't' is being run already, by process \d+ on ", taken())
        first.kill()
        first.wait()
        assert "is being run already" in taken(), "whether it lives cannot be seen from here"
        execute(url, "UPDATE leases SET expires_at = 1")
        assert taken() == "taken\n"
    postgres.drop_database(url)
