"""`run`, `resume`, `collect` and `eval` on scripted policies,
the real sandbox and the real store.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local import environment as local
from hrm_agent.environment.remote.address import TOKEN_VARIABLE
from hrm_agent.errors import HrmError
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, StopReason
from tests.cli.conftest import SCRIPT, Command
from tests.support.environment.served import TOKEN, served
from tests.support.store.bodies import execute

TASK = "What is 6 * 7?"
OK_CALLS = 'hrm_environment_calls_total{status="ok"}'


def test_a_run_shows_each_step_and_is_on_record(
    scripted: str, hrm: Command, tmp_path: Path
) -> None:
    done = hrm("run", TASK, "--policy", scripted, "--thread", "t1")
    assert done.code == 0
    expected = [
        "<reason>compute</reason>",
        "> python: 6 * 7",
        "tools  ok",
        "42",
        r"<answer>\boxed{42}</answer>",
    ]
    places = [done.out.index(part) for part in expected]
    assert places == sorted(places)
    assert "completed (answer)" in done.out
    assert (tmp_path / "runs" / "store.db").exists()
    assert "Thread t1, newest moment first" in hrm("history", "t1", "--flat").out
    rows = hrm("history", "t1", "--flat", "--json").json
    assert [row["step"] for row in rows] == [3, 2, 1, 0, -1]
    assert [row["model calls"] for row in rows] == [1, 0, 1, 0, 0]
    assert [row["tool calls"] for row in rows] == [0, 1, 0, 0, 0]
    assert all(earlier["checkpoint"] == later["parent"] for later, earlier in pairwise(rows))
    assert hrm("lint", "runs").code == 0


def test_a_run_as_json(scripted: str, hrm: Command) -> None:
    events = hrm("run", TASK, "--policy", scripted, "--json").lines
    assert [event.get("type") for event in events if event["event"] == "message"] == [
        "ai",
        "tool",
        "ai",
    ]
    assert events[-1]["event"] == "end"
    assert events[-1]["status"] == "completed"


def test_a_finished_thread_is_read_back(scripted: str, hrm: Command) -> None:
    first = hrm("run", TASK, "--policy", scripted, "--thread", "t1", "--json").lines[-1]
    assert hrm("resume", "t1", "--json").lines == [first]
    assert hrm("run", TASK, "--policy", scripted, "--thread", "t1", "--json").lines == [first]


def test_a_thread_keeps_its_task_and_its_options(scripted: str, hrm: Command) -> None:
    hrm("run", TASK, "--policy", scripted, "--thread", "t1")
    done = hrm("run", "another", "--policy", scripted, "--thread", "t1")
    assert done.code == 2
    assert "is on record with another task" in done.err
    done = hrm("run", TASK, "--policy", scripted, "--thread", "t1", "--temperature", "0.5")
    assert done.code == 2
    assert "temperature: 1.0 there, 0.5 now" in done.err


def test_what_an_earlier_version_kept_as_its_defaults_is_no_other_configuration(
    scripted: str, hrm: Command
) -> None:
    """The earlier version had no `none` and stored the values themselves."""
    hrm(
        "run",
        TASK,
        "--policy",
        scripted,
        "--thread",
        "t1",
        "--max-tokens",
        "512",
        "--temperature",
        "1",
    )
    assert hrm("run", TASK, "--policy", scripted, "--thread", "t1").code == 0


def test_a_run_that_cannot_be_begun(scripted: str, hrm: Command) -> None:
    assert (
        "There is no graph 'tol_loop'"
        in hrm("run", TASK, "--policy", scripted, "--graph", "tol_loop").err
    )
    assert not Path("runs").exists()
    done = hrm("run", TASK, "--policy", scripted, "--context", "max_trns=3")
    assert done.code == 2
    assert "has no option 'max_trns'. Did you mean 'max_turns'?" in done.err
    assert (
        hrm("run", TASK, "--policy", scripted, "--context", "max_trns=3", "--thread", "named").code
        == 2
    )
    assert (
        hrm("run", TASK, "--policy", scripted, "--context", "max_turns=3", "--thread", "named").code
        == 0
    )
    assert "There is no model folder" in hrm("run", TASK, "--policy", "nothing-here").err
    assert "The task is not UTF-8" in hrm("run", "caf\udce9", "--policy", scripted).err


@pytest.fixture
def broken(tmp_path: Path) -> tuple[str, ...]:
    """A graph that fails on every question but one, and a policy that it never asks."""
    (tmp_path / "broken.py").write_text(
        "from typing import TypedDict\nfrom langgraph.graph import START, StateGraph\nclass"
        " State(TypedDict):\n    question: str\ndef node(state):\n    if '8' not in"
        " state['question']:\n        raise ValueError('no luck')\ngraph ="
        " StateGraph(State).add_node('n', node).add_edge(START, 'n').compile()\n"
    )
    (tmp_path / "one.jsonl").write_text('"x"\n')
    return "--policy", "scripted:one.jsonl", "--graph", "./broken.py:graph"


def test_a_run_that_fails_says_so(broken: tuple[str, ...], hrm: Command) -> None:
    done = hrm("run", TASK, *broken)
    assert done.code == 1
    assert "ValueError: no luck" in done.out
    assert "Traceback" not in done.out + done.err


def test_what_is_no_json_is_shown_all_the_same(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from typing import TypedDict\n"
        "from langgraph.graph import START, StateGraph\n"
        "class State(TypedDict):\n    question: str\n    table: dict\n"
        "def node(state):\n    return {'table': {('a', 1): {2}, 3: 'x'}}\n"
        "graph = StateGraph(State).add_node('n', node).add_edge(START, 'n').compile()\n"
    )
    (tmp_path / "one.jsonl").write_text('"x"\n')
    words = ("run", TASK, "--policy", "scripted:one.jsonl", "--graph", "./odd.py:graph")
    assert 'n  table: {"(\'a\', 1)": "{2}", "3": "x"}' in hrm(*words).out
    assert hrm(*words, "--json").lines[0]["value"] == {"('a', 1)": "{2}", "3": "x"}


def test_a_limit_is_no_failure(scripted: str, hrm: Command) -> None:
    done = hrm("run", TASK, "--policy", scripted, "--context", "max_turns=1", "--json")
    assert done.code == 0
    assert (done.lines[-1]["status"], done.lines[-1]["stop_reason"]) == ("truncated", "max_turns")


class Lesser(LocalEnvironment):
    """Environment that reports L1, as on a machine without namespaces. The actual isolation is
    strong.
    """

    def __init__(self, *, isolation: Isolation, spare_seconds: float | None) -> None:
        if not Isolation.L1.holds(isolation):
            raise HrmError("This machine isolates by L1 only.", "Accept less with --isolation.")
        super().__init__(isolation=isolation, spare_seconds=spare_seconds)

    @property
    def isolation(self) -> str:
        return "L1"

    @property
    def missing(self) -> dict[str, str]:
        return {"namespaces": "denied"}


@pytest.mark.parametrize(
    "words",
    [
        ("run", TASK, "--policy", "scripted:parrot.jsonl", "--thread", "t1"),
        ("collect", "--count", "1", "--policy", "scripted:parrot.jsonl", "--out", "runs/c"),
        ("eval", "--count", "1", "--policy", "scripted:parrot.jsonl", "--out", "runs/e"),
        (
            "train",
            "rl",
            "--steps",
            "1",
            "--prompts-per-step",
            "1",
            "--group-size",
            "2",
            "--out",
            "runs/t",
        ),
    ],
    ids=lambda words: words[0],
)
def test_less_isolation_has_to_be_asked_for_and_is_told(
    words: tuple[str, ...], parrot: str, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LocalEnvironment", Lesser)
    done = hrm(*words)
    assert done.code == 2
    assert "isolates by L1 only" in done.err
    done = hrm(*words, "--isolation", "l1")
    assert done.code == 0
    assert "under isolation L1, less than L2. No namespaces: denied. `hrm-agent doctor" in done.err
    assert hrm(*words, "--isolation", "L0").code == 0  # it may change when a run is resumed
    assert hrm("resume", words[-1]).code == 0


def test_code_runs_on_a_server(
    scripted: str, hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "run",
        TASK,
        "--policy",
        scripted,
        "--thread",
        "t",
        "--environment",
        f"unix:{tmp_path / 'server'}",
    )
    with (tmp_path / "script.jsonl").open("a") as script:
        script.write(json.dumps(SCRIPT[-1]) + "\n")  # for the fork
    environment = LocalEnvironment(slots=1)
    monkeypatch.setattr(local, "LocalEnvironment", None)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    done = hrm(*words)
    assert done.code == 2
    assert "Nothing listens at unix:" in done.err
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "server"))
        listener.listen()
        with served(environment, listener):
            assert hrm(*words).code == 0
            before = ok_calls(environment)
            assert before > 0
            # its options say where
            assert hrm("fork", "t", "--at", "before:tools", "--run").code == 0
            assert ok_calls(environment) > before
    environment.shutdown()


def ok_calls(environment: LocalEnvironment) -> int:
    text = asyncio.run(environment.metrics())
    return next(int(line.split()[-1]) for line in text.splitlines() if line.startswith(OK_CALLS))


def test_the_default_isolation_is_not_spoken_of(parrot: str, hrm: Command) -> None:
    done = hrm("run", TASK, "--policy", parrot)
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--isolation", "L9"),
            "'L9' is not a level of isolation. Name L3, L2 (the default), L1 or L0.",
        ),
        (
            ("--environment", "example.org"),
            "'example.org' is not an environment. Name http:",
        ),
        (("--environment", "unix:"), "'unix:' is not an environment"),
    ],
)
@pytest.mark.parametrize(
    "words", [("run", TASK), ("collect",), ("train", "rl")], ids=lambda words: words[0]
)
def test_a_wrong_environment_is_told_before_anything_is_loaded(
    words: tuple[str, ...], flags: tuple[str, str], message: str, hrm: Command
) -> None:
    done = hrm(*words, *flags, "--dry-run")
    assert done.code == 2
    assert message in done.err


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    rows = [{"question": f"What is {i} * 7?", "answer": str(i * 7)} for i in (6, 8)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"jsonl:{tmp_path / 'tasks.jsonl'}"


@pytest.fixture
def parrot(tmp_path: Path) -> str:
    """A policy that answers 42 to everything."""
    (tmp_path / "parrot.jsonl").write_text((json.dumps(r"<answer>\boxed{42}</answer>") + "\n") * 4)
    return f"scripted:{tmp_path / 'parrot.jsonl'}"


def test_a_policy_that_is_not_there_leaves_no_run_behind(
    tasks: str, hrm: Command, tmp_path: Path
) -> None:
    done = hrm("collect", "--tasks", tasks, "--policy", "scripted:nope.jsonl", "--out", "started")
    assert done.code == 2 and not list(Path("started").glob("store*"))


def test_collect_then_everything_else(
    tasks: str, parrot: str, hrm: Command, tmp_path: Path
) -> None:
    words = ("--tasks", tasks, "--count", "none", "--policy", parrot, "--out", "runs/c")
    done = hrm("collect", *words, "--json")
    assert done.json == {"folder": "runs/c", "trajectories": 2, "statuses": {"completed": 2}}
    assert re.search(r"collect 2/2 \[.*\] 1 correct", done.err)
    assert (tmp_path / "runs/c/config.toml").read_text().startswith('command = "collect"')
    found = hrm("eval", "runs/c", "--json").json
    assert (found["problems"], found["pass_at_1"]) == (2, 0.5)
    assert "0.500  (95 % interval" in hrm("eval", "runs/c").out
    assert hrm("resume", "runs/c", "--json").json == done.json
    assert hrm("lint", "runs/c").code == 0
    assert hrm("show", "c/collect/0/0", "--store", "runs/c", "--json").json["rewards"].keys() == {
        "correct"
    }
    again = hrm("collect", *words, "--samples", "2")
    assert again.code == 2
    assert "samples: 1 there, 2 now" in again.err
    thread = hrm("resume", "c/collect/0/0", "--store", "runs/c")
    assert thread.code == 2
    assert "`hrm-agent resume runs/c`" in thread.err


@pytest.mark.parametrize("command", ["collect", "eval"])
def test_where_every_rollout_failed_the_command_did(
    command: str, tasks: str, broken: tuple[str, ...], hrm: Command, tmp_path: Path
) -> None:
    (tmp_path / "one-task.jsonl").write_text(json.dumps({"question": TASK, "answer": "42"}))
    words = (command, *broken, "--count", "none", "--json")
    done = hrm(*words, "--tasks", f"jsonl:{tmp_path / 'one-task.jsonl'}", "--out", "runs/all")
    assert (done.code, done.json["statuses"]) == (1, {"failed": 1})
    assert (
        done.err.splitlines()[-1]
        == "hrm-agent: Every rollout failed, most often by: ValueError: no luck"
    )
    assert hrm("resume", "runs/all").code == 1
    done = hrm(*words, "--tasks", tasks, "--out", "runs/some")
    assert done.code == 0
    assert done.json["statuses"]["failed"] == 1 and "Every rollout" not in done.err


def test_a_mean_over_nothing_is_null_in_json(tmp_path: Path, parrot: str, hrm: Command) -> None:
    (tmp_path / "hard.jsonl").write_text(
        json.dumps({"question": "What is 1 + 1?", "answer": "2"}) + "\n"
    )
    words = (
        "--tasks",
        f"jsonl:{tmp_path / 'hard.jsonl'}",
        "--count",
        "none",
        "--policy",
        parrot,
        "--out",
        "runs/h",
    )
    done = hrm("eval", *words, "--json")
    assert "NaN" not in done.out and done.json["correct_with_tool_error"] is None
    assert "none" in hrm("eval", "runs/h").out


def test_eval_of_a_policy(tasks: str, parrot: str, hrm: Command) -> None:
    found = hrm(
        "eval", "--tasks", tasks, "--count", "2", "--policy", parrot, "--out", "runs/e", "--json"
    ).json
    assert (found["trajectories"], found["statuses"]) == (2, {"completed": 2})
    assert hrm("resume", "runs/e", "--json").json == found


def test_a_run_that_was_stopped_stays_so_where_it_cannot_be_resumed(
    hrm: Command, scripted: str
) -> None:
    assert hrm("run", "What is 6 * 7?", "--policy", scripted, "--thread", "t").code == 0
    store = "sqlite:///runs/store.db"
    stopped: dict[str, Any] = {
        "status": RunStatus.ABORTED,
        "stop_reason": StopReason.ABORTED,
        "answer": None,
    }

    def status(**changes: Any) -> RunStatus:
        execute(store, "UPDATE trajectories SET status = 'running'")  # what has ended would stand
        with open_store(store) as opened:
            known = opened.journal.trajectory("t").model_copy(update=changes)
            opened.journal.write_trajectory(known)
            return known.status

    status(**stopped)
    (kept,) = execute(store, "SELECT thread_id, record FROM options")
    execute(store, "DELETE FROM options")
    done = hrm("resume", "t")
    assert done.code == 2 and "are not recorded" in done.err
    assert status() is RunStatus.ABORTED
    execute(store, "INSERT INTO options (thread_id, record) VALUES (?, ?)", kept)
    assert hrm("resume", "t").code == 0
    assert status() is RunStatus.COMPLETED


def test_what_cannot_be_resumed(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty is not a run folder" in hrm("resume", "empty").err
    (tmp_path / "empty" / "config.toml").write_text('command = "colect"\n')
    assert "Did you mean 'collect'?" in hrm("resume", "empty").err
    (tmp_path / "empty" / "config.toml").write_text("command = ")
    assert "cannot be read" in hrm("resume", "empty").err


def test_a_full_disk_then_room_again(tasks: str, tmp_path: Path) -> None:
    """The run is on its own tmpfs. It stops with one paragraph, and goes on when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    many = f"scripted:{tmp_path / 'many.jsonl'}"
    (tmp_path / "many.jsonl").write_text((json.dumps(r"<answer>\boxed{42}</answer>") + "\n") * 200)
    hrm = f"{sys.executable} -m hrm_agent.cli.main"
    script = f"""
        mount -t tmpfs -o size=200k none {disk}
        {hrm} collect --tasks '{tasks}' --count none --samples 40 --policy {many} --out {disk}/run; echo "exit $?"
        mount -o remount,size=50m {disk}
        {hrm} resume {disk}/run && {hrm} lint {disk}/run; echo "exit $?"
    """
    namespace = (
        ["unshare", "--mount"]
        if os.geteuid() == 0
        else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    done = subprocess.run(
        [*namespace, "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == [
        "exit 2",
        "exit 0",
    ], done.stderr
    assert "is full. What was committed is intact" in done.stderr and "Traceback" not in done.stderr
    assert " 0 findings" in done.stdout


def test_a_value_of_the_input_that_is_not_of_its_fields_class_is_told(
    scripted: str, hrm: Command
) -> None:
    words = (
        "run",
        "--graph",
        "tests.runtime.execution.test_typed_input:keeper",
        "--policy",
        scripted,
    )
    failed = hrm(*words, "--input", json.dumps({"zoo": {"animals": [{}]}}), "--store", "new.db")
    assert (
        failed.code == 2 and "'zoo.animals.0.name'" in failed.err and "Traceback" not in failed.err
    )
    assert hrm("history", "--store", "new.db", "--json").json == [], "nothing was begun"
    done = hrm(
        *words,
        "--input",
        json.dumps({"zoo": {"animals": [{"name": "whale", "length": 30}]}}),
        "--json",
    )
    assert done.lines[-1]["answer"] == "30.0"
