"""`history`, `fork`, `resume --at`, `resume --answer` and `diff`, on scripted policies and the real
store.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.runtime.time_travel.fork import fork
from hrm_agent.store import open_store
from hrm_agent.store.journal.journal import StoreJournal
from hrm_agent.trajectory import RunStatus, Trajectory
from tests.cli.conftest import SCRIPT, Command

TASK = "What is 6 * 7?"
ASKING = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt


def ask(state):
    return {"messages": [AIMessage(f"{interrupt('which fruit?')}!")]}


def each(state):
    return {"messages": [AIMessage(f"{state['name']}: {interrupt(state['name'])}")]}


graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
many = StateGraph(MessagesState).add_node("each", each)
many.add_conditional_edges(START, lambda state: [Send("each", {"name": name}) for name in ("a", "b")], ["each"])
stops = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [AIMessage("done")]})
stops = stops.add_edge(START, "ask").compile(interrupt_before=["ask"])
"""


@pytest.fixture
def thread(scripted: str, hrm: Command) -> str:
    """A finished run of the tool loop."""
    assert hrm("run", TASK, "--policy", scripted, "--thread", "t1", "--seed", "1").code == 0
    return "t1"


@pytest.fixture
def answers(tmp_path: Path) -> str:
    """A policy that answers 41."""
    (tmp_path / "answers.jsonl").write_text((json.dumps(r"<answer>\boxed{41}</answer>") + "\n") * 8)
    return f"scripted:{tmp_path / 'answers.jsonl'}"


@pytest.fixture
def asking(tmp_path: Path, hrm: Command) -> tuple[str, ...]:
    (tmp_path / "asking.py").write_text(ASKING)
    (tmp_path / "none.jsonl").write_text('"x"\n')
    return "run", "choose", "--policy", "scripted:none.jsonl", "--thread", "t1", "--graph"


def test_a_history_is_drawn(thread: str, hrm: Command) -> None:
    lines = hrm("history", thread).out.splitlines()
    assert lines[0].startswith("Thread t1: completed (answer): <reason>done</reason>")
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2", "3", "4"]
    assert lines[1].split()[2:] == ["input", "->", "__start__"]
    assert "reason" in lines[3] and "1 call, " in lines[3] and lines[3].endswith("-> tools")
    assert "1 tool call, " in lines[4] and lines[5].endswith("end")
    data = hrm("history", thread, "--json").json
    assert [moment["index"] for moment in data["moments"]] == ["0", "1", "2", "3", "4"]
    assert [moment["next"] for moment in data["moments"]] == [
        ["__start__"],
        ["reason"],
        ["tools"],
        ["reason"],
        [],
    ]
    assert data["moments"][2]["model_calls"] == 1 and data["moments"][2]["sampled_tokens"] > 0


def test_siblings_of_one_moment_are_a_group(thread: str, answers: str, hrm: Command) -> None:
    words = (
        "fork",
        thread,
        "--at",
        "before:reason#2",
        "--count",
        "2",
        "--policy",
        answers,
        "--run",
    )
    group = hrm(*words, "--json").json
    assert group["group"] == "t1/fork-1"
    assert [row["thread"] for row in group["trajectories"]] == ["t1/fork-1/0", "t1/fork-1/1"]
    assert [row["calls"] for row in group["trajectories"]] == [1, 1]
    assert "Group t1/fork-2" in hrm(*words).out
    data = hrm("history", thread, "--json").json
    assert [(b["thread"], b["at"]) for b in data["branches"]][:1] == [
        ("t1/fork-1/0", data["moments"][3]["checkpoint"])
    ]
    assert [moment["index"] for moment in data["branches"][0]["moments"]] == ["4"], (
        "what it does not share"
    )
    drawn = hrm("history", thread).out
    assert (
        drawn.index("├─ t1/fork-1/0: completed (answer)")
        < drawn.index("├─ t1/fork-1/1")
        < drawn.rindex("\n  4")
    )
    assert hrm("lint", "runs").code == 0
    seeds = {read_config(f"t1/fork-1/{i}", "seed") for i in (0, 1)}
    assert len(seeds) == 2 and "1" not in seeds


def read_config(thread: str, key: str) -> str:
    with open_store("runs/store.db") as store:
        text = store.options.read(thread) or ""
    return next(
        line.partition(" = ")[2] for line in text.splitlines() if line.startswith(f"{key} = ")
    )


def test_forks_of_a_collected_run_are_verified_and_no_part_of_its_score(
    answers: str, hrm: Command, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"question": TASK, "answer": "41"}))
    words = (
        "--tasks",
        f"jsonl:{tmp_path / 'tasks.jsonl'}",
        "--count",
        "none",
        "--policy",
        answers,
        "--out",
        "runs/c",
    )
    assert hrm("collect", *words).code == 0
    score = hrm("eval", "runs/c", "--json").json
    fork = ("fork", "c/collect/0/0", "--at", "before:reason", "--store", "runs/c", "--count", "2")
    group = hrm(*fork, "--run", "--json").json
    assert [row["reward"] for row in group["trajectories"]] == [1.0, 1.0]
    assert hrm(*fork).code == 0
    assert hrm("resume", "c/collect/0/0/fork-2/1", "--store", "runs/c", "--json").lines[-1][
        "rewards"
    ] == {"correct": 1.0}
    assert hrm("eval", "runs/c", "--json").json == score


def test_an_edit_then_resume_then_the_difference(thread: str, answers: str, hrm: Command) -> None:
    call = hrm("show", thread, "--json").json["tool_calls"][0]["tool_call_id"]
    done = hrm(
        "fork",
        thread,
        "--at",
        "after:tools",
        "--tool",
        f"{call}=41",
        "--policy",
        answers,
        "--name",
        "other",
    )
    assert done.code == 0 and "hrm-agent resume other" in done.out
    assert "-> reason" in hrm("history", "other").out.splitlines()[-1]
    assert hrm("resume", "other").code == 0
    found = hrm("diff", thread, "other", "--json").json
    assert found["common"]["index"] == "3"
    assert found["changes"][0] == {
        "channel": "messages",
        "part": "[2] tool",
        "lines": [f" result of {call}:", "-42", "+41"],
    }
    assert (found["a"]["steps"], found["b"]["steps"], found["b"]["calls"]) == (1, 2, 1)
    shown = hrm("diff", f"{thread}@last", "other@last").out
    assert "They diverged at moment 3, after tools." in shown and "+41" in shown
    assert "Their states are the same." in hrm("diff", f"{thread}@3", "other@3").out


def test_resume_from_an_earlier_moment(hrm: Command, tmp_path: Path) -> None:
    script = (*SCRIPT, r"<answer>\boxed{40}</answer>")
    (tmp_path / "three.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in script))
    hrm("run", TASK, "--policy", "scripted:three.jsonl", "--thread", "t1")
    ended = hrm("resume", "t1", "--at", "before:reason#2", "--json").lines[-1]
    assert (ended["thread_id"], ended["answer"]) == ("t1/fork-1", r"<answer>\boxed{40}</answer>")
    assert ended["forked_from"]["trajectory_id"] == hrm("show", "t1", "--json").json["id"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fork", "t1", "--at", "before:tool"), "Did you mean 'before:tools'?"),
        (("fork", "t2"), "There is no checkpoint of thread 't2'"),
        (("fork", "t1", "--set", "stop_reason"), "Write --set stop_reason=VALUE"),
        (("fork", "t1", "--set", "stop_reason=answer"), "Quote a text"),
        (("fork", "t1", "--set", "stop_raeson=1"), "Did you mean 'stop_reason'?"),
        (
            ("fork", "t1", "--message", "17=x"),
            "There is no message '17' at moment 4. There are: 0 human",
        ),
        (("fork", "t1", "--count", "0"), "Ask for 1 or more"),
        (("resume", "t1", "--answer", "x"), "is not waiting for an answer: it is completed"),
        (("diff", "t1", "t1@9"), "It has 0 to 4, before:__start__"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_told(words: tuple[str, ...], message: str, thread: str, hrm: Command) -> None:
    done = hrm(*words)
    assert (done.code, message in done.err) == (2, True), done.err
    assert "Traceback" not in done.err
    assert len(hrm("history", "--json").json) == 1, "nothing was forked"


def test_a_question_is_answered(asking: tuple[str, ...], hrm: Command) -> None:
    done = hrm(*asking, "./asking.py:graph")
    assert "truncated (interrupt)" in done.out and "hrm-agent resume t1 --answer VALUE" in done.out
    assert (
        "asks: which fruit?  (id " in done.out and "asks: which fruit?" in hrm("history", "t1").out
    )
    assert hrm("fork", "t1", "--name", "u", "--run", "--json").lines[0]["value"] == "which fruit?"
    assert (
        hrm("history", "t1", "--json").json["moments"][-1]["interrupts"][0]["value"]
        == "which fruit?"
    )
    ended = hrm("resume", "t1", "--answer", "plum", "--json").lines[-1]
    assert (ended["status"], ended["answer"]) == ("completed", "plum!")
    other = hrm("resume", "t1", "--at", "before:ask", "--answer", "pear", "--json").lines[-1]
    assert (other["thread_id"], other["answer"]) == ("t1/fork-1", "pear!")
    assert hrm("diff", "t1", "t1/fork-1", "--json").json["changes"][0]["lines"] == [
        "-plum!",
        "+pear!",
    ]


def test_questions_are_answered_by_id(asking: tuple[str, ...], hrm: Command) -> None:
    hrm(*asking, "./asking.py:many")
    waiting = hrm("history", "t1", "--json").json["moments"][-1]["interrupts"]
    assert [question["node"] for question in waiting] == ["each", "each"]
    done = hrm("resume", "t1", "--answer", "x")
    assert done.code == 2 and "2 questions are pending" in done.err
    given = {question["id"]: question["value"].upper() for question in waiting}
    assert (
        hrm("resume", "t1", "--answer", json.dumps(given), "--json").lines[-1]["answer"] == "b: B"
    )


def test_a_breakpoint_is_passed(asking: tuple[str, ...], hrm: Command) -> None:
    assert hrm(*asking, "./asking.py:stops", "--json").lines[-1]["stop_reason"] == "interrupt"
    assert hrm("resume", "t1", "--answer", "--json").lines[-1]["answer"] == "done"


def test_a_fork_that_is_cut_short_has_its_options(
    thread: str, answers: str, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forks on record can be resumed, whenever the command that made them died."""
    written = StoreJournal.write_trajectory

    def dies(journal: StoreJournal, trajectory: Trajectory) -> None:
        written(journal, trajectory)
        if trajectory.forked_from is not None and trajectory.status is RunStatus.RUNNING:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(StoreJournal, "write_trajectory", dies)
        assert (
            hrm(
                "fork",
                thread,
                "--at",
                "before:tools",
                "--count",
                "3",
                "--name",
                "g",
                "--policy",
                answers,
            ).code
            == 130
        )
    assert hrm("resume", "g/0", "--json").lines[-1]["policy"] == answers


def test_a_fork_of_another_program(thread: str, hrm: Command) -> None:
    with open_store("runs/store.db") as store:
        fork(store, thread, "before:tools", name="mine")
    done = hrm("resume", "mine")
    assert done.code == 2 and "hrm-agent fork mine --run" in done.err
    assert hrm("fork", "mine", "--run", "--policy", "builtin:cold-start").code == 0


def test_a_thread_of_a_program_of_ones_own(
    asking: tuple[str, ...], hrm: Command, tmp_path: Path
) -> None:
    from hrm_agent.runtime.execution.loading import load_graph

    config: Any = {"configurable": {"thread_id": "mine"}}
    with open_store(tmp_path / "runs" / "store.db") as store:
        graph = load_graph("./asking.py:stops").copy(update={"checkpointer": store.checkpointer})
        graph.invoke({"messages": [("user", "hello")]}, config)
        graph.invoke(None, config)
    assert "Thread mine: checkpoints only" in hrm("history", "mine").out
    assert "1 threads with checkpoints only: mine" in hrm("history").out
    words = ("fork", "mine", "--at", "before:ask", "--message", "0=goodbye")
    assert "Name the graph" in hrm(*words).err
    assert "Name the graph: --graph" in hrm("fork", "mine").err
    assert "Name the graph: --graph" in hrm("fork", "mine", "--run").err
    policy = ("--policy", "scripted:none.jsonl", "--graph", "./asking.py:stops")
    (row,) = hrm(*words, *policy, "--run", "--json").lines[-1]["trajectories"]
    assert (row["status"], row["answer"]) == ("completed (answer)", "done")
    assert "hrm-agent history mine --store" in hrm(*words, *policy, "--run").out
    assert hrm("diff", "mine", "mine/fork-1", "--json").json["changes"][0]["lines"] == [
        "-hello",
        "+goodbye",
    ]
    assert [b["thread"] for b in hrm("history", "mine", "--json").json["branches"]] == [
        "mine/fork-1",
        "mine/fork-2",
    ]


GIVEN = """
import operator
from dataclasses import dataclass
from typing import Annotated, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from hrm_agent import record


@dataclass
class Who:
    name: str = "nobody"


class State(TypedDict, total=False):
    task: str
    said: Annotated[list, operator.add]


def tell(state, runtime: Runtime[Who], config):
    return {"said": [f"{runtime.context.name}, {config['configurable']['tone']}"]}


builder = StateGraph(State, context_schema=Who).add_node("tell", tell).add_edge(START, "tell")
graph = builder.compile(checkpointer=InMemorySaver())
if __name__ == "__main__":
    with record("runs/store.db"):
        for name, tone in (("ann", "dry"), ("bob", "wet")):
            options = {"configurable": {"thread_id": "t", "tone": tone}}
            graph.invoke({"task": "x"}, options, context=Who(name))
"""


def test_a_moment_is_gone_on_from_with_what_its_turn_was_given(
    hrm: Command, tmp_path: Path
) -> None:
    """A program may give each turn its own context and configuration. The newest belong to another
    turn.
    """
    (tmp_path / "given.py").write_text(GIVEN)
    subprocess.run([sys.executable, "given.py"], check=True, cwd=tmp_path)
    assert "1 run replayed, 1 equal" in hrm("replay", "--check", "runs/store.db").out
    for words, name in (
        (("fork", "t", "--at", "1", "--run"), "t/fork-1"),
        (("resume", "t", "--at", "1"), "t/fork-2"),
    ):
        assert hrm(*words).code == 0
        with open_store("runs/store.db") as store:
            newest = store.checkpointer.get_tuple({"configurable": {"thread_id": name}})
        assert newest is not None and newest.checkpoint["channel_values"]["said"] == ["ann, dry"]
        assert hrm("replay", name).code == 0
