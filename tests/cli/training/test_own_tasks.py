"""`collect`, `eval` and `train rl` on users' own tasks, in users' own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from tests.cli.conftest import Command
from tests.support.training.packages import install

FINAL = """
from hrm_agent.training.tasks import Task

SECRET = 226

def tasks(split, size=2):
    for i in range(size):
        yield Task(prompt=f"{split} {i}?", verify=lambda text: float(text.endswith(f"Final answer: {SECRET}")))

unscored = ["Tell a story.", {"prompt": "Tell another.", "mood": "glad"}]
taken = [{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}]
noprompt = [{"answer": 3}]

def endless():
    while True:
        yield "again"

def broken():
    raise KeyError("no data")
"""
ADDER = """
from operator import add
from typing import Annotated, TypedDict
from langgraph.graph import END, START, StateGraph

class State(TypedDict):
    left: int
    right: int
    answer: str

def work(state):
    return {"answer": f"<answer>\\\\boxed{{{state['left'] + state['right']}}}</answer>"}

graph = StateGraph(State).add_node("work", work).add_edge(START, "work").add_edge("work", END)
tasks = [{"id": "six", "inputs": {"left": 2, "right": 4}, "answer": 6}]
other = [{"inputs": {"left": 2, "rigth": 4}, "answer": 6}]
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    (tmp_path / "final.py").write_text(FINAL)
    (tmp_path / "adder.py").write_text(ADDER)
    (tmp_path / "p.jsonl").write_text(
        json.dumps("I think.\nFinal answer: 226") + "\n" + json.dumps("226") + "\n"
    )
    return f"scripted:{tmp_path / 'p.jsonl'}"


def test_tasks_with_their_own_verifier_are_evaluated(policy: str, hrm: Command) -> None:
    done = hrm(
        "eval",
        "--tasks",
        "./final.py:tasks?size=2",
        "--policy",
        policy,
        "--out",
        "runs/a",
        "--json",
    )
    assert done.code == 0 and done.json["pass_at_1"] == 0.5 and done.json["problems"] == 2, done.err
    with open_store("runs/a/store.db") as store:
        first, second = store.journal.headers()
    assert first.task.family == "./final.py:tasks?size=2" and first.task.prompt == "eval 0?"
    assert first.task.metadata == {"drawn": {"split": "eval", "place": 0}}
    assert (first.rewards, second.rewards) == ({"correct": 1.0}, {"correct": 0.0})


def test_tasks_without_a_verifier_are_recorded_and_not_scored(policy: str, hrm: Command) -> None:
    words = ("--tasks", "./final.py:unscored", "--policy", policy)
    assert hrm("collect", *words, "--out", "runs/u").code == 0
    with open_store("runs/u/store.db") as store:
        found = store.journal.headers()
    assert [each.rewards for each in found] == [{}, {}] and found[1].task.metadata["mood"] == "glad"
    unscored = hrm("eval", "runs/u")
    assert (
        unscored.code == 2
        and "No run in runs/u has a reward. Run `hrm-agent rescore runs/u" in unscored.err
    )
    train = ("train", "rl", "--tasks", "./final.py:unscored", "--steps", "1", "--out", "runs/t")
    for command in (("eval", *words, "--out", "runs/e"), train):
        refused = hrm(*command)
        # said where that is slow
        (said,) = [line for line in refused.err.splitlines() if "loading torch" not in line]
        assert (
            refused.code == 2
            and "neither a reference answer nor a verifier" in said
            and "--rewards" in said
        )
        assert not Path(command[-1], "config.toml").exists(), "others can be named next"


def test_inputs_of_a_task_are_the_input_of_the_graph(policy: str, hrm: Command) -> None:
    words = ("--graph", "./adder.py:graph", "--policy", policy, "--json")
    done = hrm("eval", "--tasks", "./adder.py:tasks", *words, "--out", "runs/g")
    assert done.code == 0 and done.json["pass_at_1"] == 1.0, done.err
    refused = hrm("eval", "--tasks", "./adder.py:other", *words, "--out", "runs/h")
    assert refused.code == 2 and "The graph's input has no field 'rigth'" in refused.err
    assert "Did you mean 'right'" in refused.err


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("./none.py:tasks", "There is no file none.py in "),
        ("nowhere.tasks:all", "no module of that name"),
        ("./final.py:task", "no attribute 'task'. Did you mean 'tasks'"),
        ("./final.py:SECRET", "is of type int, not a list of tasks"),
        ("./final.py:taken", "the id '1' stands at items 0, 1"),
        ("./final.py:noprompt", "it has no prompt"),
        ("./final.py:broken", "KeyError: 'no data'"),
        ("rows.csv", "Cannot read"),
        ("my-tasks", "There is no task family 'my-tasks'"),
    ],
)
def test_what_are_no_tasks_is_told_in_a_line(
    tasks: str, said: str, policy: str, hrm: Command
) -> None:
    for command in ("eval", "collect"):
        done = hrm(command, "--tasks", tasks, "--policy", policy, "--out", "runs/x")
        assert done.code == 2 and said in done.err and done.err.count("\n") == 1, done.err
    assert not Path("runs/x").exists(), "a right name can be tried next"


def test_a_run_is_resumed_from_elsewhere_and_says_what_has_changed(
    policy: str, hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        hrm("collect", "--tasks", "./final.py:tasks", "--policy", policy, "--out", "runs/a").code
        == 0
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = hrm("resume", str(tmp_path / "runs" / "a"), "--json")
    assert done.code == 0 and done.json["trajectories"] == 2 and "changed" not in done.err
    (tmp_path / "final.py").write_text(FINAL + "\nMORE = 1\n")
    done = hrm("resume", str(tmp_path / "runs" / "a"))
    assert done.code == 0
    assert (
        f"hrm-agent: ./final.py has changed since the run in {tmp_path}/runs/a began; tasks that"
        " are on" in done.err
    )


def test_another_version_of_the_tasks_package_is_refused(
    policy: str, hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    install(
        site, "cli-sums", "tasks = ['Say 226.', 'Say 227.']\n", version="1.0", registers="cli-sums"
    )
    monkeypatch.syspath_prepend(site)
    assert hrm("collect", "--tasks", "cli-sums", "--policy", policy, "--out", "runs/p").code == 0
    install(site, "cli-sums", "tasks = ['Say 226.']\n", version="1.1", registers="cli-sums")
    refused = hrm("resume", "runs/p")
    assert refused.code == 2 and "are of cli-sums 1.0, but version 1.1 is installed" in refused.err
    assert "pip install cli-sums==1.0" in refused.err and refused.err.count("\n") == 1


def test_training_is_told_what_has_changed(policy: str, hrm: Command, tmp_path: Path) -> None:
    words = ("--prompts-per-step", "1", "--group-size", "2", "--max-tokens", "8", "--out", "runs/t")
    sums = "tasks = [{'id': 'a', 'prompt': 'What is 6 * 7?', 'answer': %d}]\n"
    (tmp_path / "sums.py").write_text(sums % 41)
    train = ("train", "rl", "--tasks", "./sums.py:tasks", *words)
    trained = hrm(*train, "--steps", "1", "--context", "max_turns=2", "tool_format=fenced")
    assert trained.code == 0
    assert (
        "eval --policy runs/t/model --tasks ./sums.py:tasks --max-tokens 8 --context max_turns=2"
        " --context tool_format=fenced\n"
    ) in trained.out
    (tmp_path / "sums.py").write_text(sums % 42)
    assert (
        "./sums.py has changed since the run in runs/t began"
        in hrm(*train, "--steps", "2", "--context", "max_turns=2", "tool_format=fenced").err
    )
