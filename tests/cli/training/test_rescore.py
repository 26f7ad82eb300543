"""`hrm-agent rescore`: stored runs scored again beside their recorded scores, comparison of two
rubrics, and a killed command.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import RunStore, open_store
from hrm_agent.testing import wait_until
from hrm_agent.training.select.roc import outcome_of
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, Trajectory
from tests.cli.conftest import Command
from tests.support.postgres import PostgresServer
from tests.support.trajectory.samples import make_trajectory

RUBRICS = """
from pathlib import Path
from hrm_agent.rewards import Reward, Rubric, Scored, answer_is

def called():
    with open(Path(__file__).parent / "called", "a") as file:
        file.write("x")

def short(text):
    called()
    if "{6}" in text:
        raise ValueError("a six is of no use")
    return Scored(float(len(text) < 30), f"{len(text)} characters")

rubric = Rubric([answer_is("boxed"), Reward(short, weight=0.5)])

def best(group):
    called()
    top = max(t.answer for t in group)
    return {t.id: float(t.answer == top) for t in group}

def few_calls(calls):
    return 1 / len(calls)

def noted(state):
    return state["size"] / 4

def words(text):
    return "good"

def slow(text):
    import time
    called()
    if text.endswith("\\\\boxed{9}</answer>"):
        time.sleep(3600)
    return 1
"""


def sample(number: int, **changes: Any) -> Trajectory:
    """Sample of a group of two. Every second one is right."""
    facts: dict[str, Any] = {
        "id": f"t{number}",
        "thread_id": f"thread-{number}",
        "group_id": f"g{number // 2}",
        "sample_index": number % 2,
        "task": TaskRef(
            id=f"wp-{number // 2}",
            family="word_problems",
            prompt=f"What is {number // 2}?",
            answer="42",
        ),
        "answer": rf"<answer>\boxed{{{42 if number % 2 else number}}}</answer>",
        "rewards": {"correct": float(number % 2)},
        "calls": (),
        "tool_calls": (),
    }
    return make_trajectory(**facts | changes)


def fill(store: RunStore, count: int = 10) -> list[Trajectory]:
    found = [sample(number) for number in range(count)]
    for trajectory in found:
        store.journal.write_trajectory(trajectory)
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    database = server.create_database()
    yield database
    server.drop_database(database)


@pytest.fixture
def rubrics(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(RUBRICS)
    return tmp_path


def calls(folder: Path) -> int:
    file = folder / "called"
    return len(file.read_text()) if file.exists() else 0


def test_scores_stand_beside_the_old_ones_and_are_not_made_twice(
    url: str, hrm: Command, rubrics: Path
) -> None:
    with open_store(url) as store:
        before = fill(store)
        store.journal.write_trajectory(
            sample(10, status=RunStatus.RUNNING, stop_reason=None, ended_at=None)
        )
        store.journal.write_trajectory(
            sample(
                11,
                status=RunStatus.FAILED,
                stop_reason=StopReason.ERROR,
                answer=None,
                rewards={},
                error="x",
            )
        )
    done = hrm("rescore", url, "--rewards", "./mine.py:rubric", "--json")
    assert done.code == 0, done.err
    (found,) = done.json["scored"]
    assert (found["scored"], found["skipped"]) == (10, 0)
    assert found["left_out"] == {"still under way": 1, "failed, without an answer": 1}
    assert (
        found["means"]["correct"]["value"] == pytest.approx(0.6)
        and found["means"]["correct"]["low"] < 0.6
    )
    (fault,) = found["faults"]
    assert (fault["reward"], fault["fault"], fault["count"], fault["trajectory"]) == (
        "short",
        "raised",
        1,
        "t6",
    )
    with open_store(url) as store:
        assert list(store.journal.headers())[:10] == before, "the records are as they were"
        scoring = store.scorings.by_rubric("./mine.py:rubric")
    assert scoring["t1"].rewards == {"correct": 1.0, "short": 1.0, "reward": 1.5}
    assert scoring["t1"].code == found["code"] and found["code"]
    asked = calls(rubrics)
    again = hrm("rescore", url, "--rewards", "./mine.py:rubric", "--json").json["scored"][0]
    assert (again["scored"], again["skipped"], again["means"], calls(rubrics)) == (
        0,
        10,
        found["means"],
        asked,
    )
    faulty = hrm(
        "rescore", url, "--rewards", "./mine.py:rubric", "--again", "faults", "--json"
    ).json["scored"][0]
    assert (faulty["scored"], faulty["skipped"]) == (1, 9)
    hrm("rescore", url, "--rewards", "./mine.py:rubric", "--name", "second", "--thread", "thread-3")
    with open_store(url) as store:
        assert store.scorings.rubrics() == ["./mine.py:rubric", "second"]
        assert set(store.scorings.by_rubric("second")) == {"t3"}


def test_other_code_under_the_same_name_is_told(hrm: Command, rubrics: Path) -> None:
    with open_store("runs.db") as store:
        fill(store, 4)
    (rubrics / "first.py").write_text("def half(text): return 0.5\n")
    (rubrics / "other.py").write_text("def half(text): return 0.25\n")
    hrm("rescore", "runs.db", "--rewards", "./first.py:half", "--name", "halves")
    text = hrm("rescore", "runs.db", "--rewards", "./other.py:half", "--name", "halves").out
    assert "4 of them had been scored by other code" in text and "0.250" in text


def test_a_comparing_reward_is_given_the_whole_group(hrm: Command, rubrics: Path) -> None:
    with open_store("runs.db") as store:
        fill(store, 6)
        store.journal.write_trajectory(sample(6))
        store.journal.write_trajectory(
            sample(7, status=RunStatus.RUNNING, stop_reason=None, ended_at=None)
        )
    found = hrm(
        "rescore", "runs.db", "--rewards", "./mine.py:best", "--thread", "t1", "--json"
    ).json["scored"][0]
    assert (found["scored"], calls(rubrics)) == (2, 1), "its sibling with it"
    found = hrm("rescore", "runs.db", "--rewards", "./mine.py:best", "--json").json["scored"][0]
    assert (found["scored"], found["skipped"]) == (4, 2)
    assert found["left_out"] == {"of a group that is still under way": 2}
    with open_store("runs.db") as store:
        scores = store.scorings.by_rubric("./mine.py:best")
    assert [scores[f"t{i}"].outcome for i in range(6)] == [0, 1, 0, 1, 1, 0]


def test_of_a_rollout_that_was_run_once_more_the_second_attempt_is_compared(
    hrm: Command, rubrics: Path
) -> None:
    with open_store("runs.db") as store:
        fill(store, 2)
        first = store.journal.trajectory("t1")
        again = {
            "id": "again",
            "thread_id": f"{first.thread_id}/attempt-2",
            "answer": "a much longer answer than both",
        }
        store.journal.write_trajectory(first.model_copy(update=again))
    found = hrm("rescore", "runs.db", "--rewards", "./mine.py:best", "--json").json["scored"][0]
    assert (found["scored"], found["left_out"]) == (
        2,
        {"run once more: the second attempt is compared": 1},
    )
    with open_store("runs.db") as store:
        assert store.scorings.by_rubric("./mine.py:best").keys() == {"t0", "again"}


def test_calls_are_read_where_a_reward_wants_them(hrm: Command, store: str, rubrics: Path) -> None:
    hrm("rescore", store, "--rewards", "./mine.py:few_calls")
    with open_store(store) as opened:
        (found,) = opened.scorings.by_rubric("./mine.py:few_calls").values()
    assert found.outcome == pytest.approx(1 / 3)


OWN_GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    question: str
    size: int
    answer: str

def solve(state):
    return {"answer": "12", "size": 2}

graph = StateGraph(State).add_node("solve", solve).add_edge(START, "solve").compile()
"""


def test_a_state_is_read_and_where_it_is_gone_that_is_told(
    hrm: Command, rubrics: Path, scripted: str
) -> None:
    (rubrics / "own.py").write_text(OWN_GRAPH)
    collected = hrm(
        "collect", "--graph", "./own.py:graph", "--policy", scripted, "--count", "2", "--out", "run"
    )
    assert collected.code == 0, collected.err
    with open_store("run") as store:
        first, second = store.journal.headers()
        store.checkpointer.delete_thread(second.thread_id)
    done = hrm("rescore", "run", "--rewards", "./mine.py:noted", "--json")
    assert done.code == 0, done.err
    (fault,) = done.json["scored"][0]["faults"]
    assert (fault["fault"], fault["trajectory"]) == ("not_on_record", second.id)
    with open_store("run") as store:
        assert store.scorings.by_rubric("./mine.py:noted")[first.id].outcome == 0.5
        store.checkpointer.delete_thread(first.thread_id)
    done = hrm("rescore", "run", "--rewards", "./mine.py:noted", "--name", "late")
    assert (
        done.code == 2 and "none of the 2 trajectories has a state on record any more" in done.err
    )
    with open_store("run") as store:
        assert store.scorings.rubrics() == ["./mine.py:noted"]


def test_two_rubrics_are_compared_on_the_same_runs(hrm: Command, rubrics: Path) -> None:
    with open_store("runs.db") as store:
        fill(store)
    words = ("rescore", "runs.db", "--rewards", "verifier", "--compare")
    found = hrm(*words, "recorded", "--json").json["comparison"]
    assert found["right"] == {"both": 5, "a": 0, "b": 0, "neither": 5} and found["differing"] == []
    (rubrics / "other.py").write_text(
        "from hrm_agent.rewards import Scored\n"
        "def other(text):\n    return Scored('42' in text or '{4}' in text, 'it says 42 or 4')\n"
    )
    found = hrm(*words, "./other.py:other", "--json").json["comparison"]
    assert found["right"] == {"both": 5, "a": 0, "b": 1, "neither": 4} and found["problems"] == 5
    assert (
        found["outcome"]["value"] == pytest.approx(0.1)
        and found["outcome"]["low"] < 0.1 < found["outcome"]["high"]
    )
    (differs,) = found["differing"]
    assert (differs["trajectory"], differs["a"], differs["b"]) == ("t4", 0, 1)
    assert differs["b_reason"] == "it says 42 or 4"
    text = hrm(*words, "./other.py:other").out
    assert "t4 (wp-2): A 0; B 1 (it says 42 or 4)" in text and "within" not in text


def test_a_run_is_evaluated_by_another_scoring(hrm: Command, rubrics: Path) -> None:
    with open_store("runs.db") as store:
        fill(store)
    hrm("rescore", "runs.db", "--rewards", "./mine.py:rubric", "--name", "mine")
    recorded, by_mine = (
        hrm("eval", "runs.db", "--json").json,
        hrm("eval", "runs.db", "--by", "mine", "--json").json,
    )
    assert (recorded["pass_at_1"], recorded["trajectories"]) == (0.5, 10)
    assert (by_mine["pass_at_1"], by_mine["trajectories"], by_mine["without_score"]) == (
        pytest.approx(0.6),
        9,
        1,
    )
    assert set(by_mine["rewards"]) == {"reward", "short"}
    text = hrm("eval", "runs.db", "--by", "mine").out
    assert (
        "reward short" in text and "1 trajectories were left out: mine gave them no reward." in text
    )
    done = hrm("eval", "runs.db", "--by", "mein")
    assert done.code == 2 and "Did you mean" in done.err


def test_an_encrypted_store_is_scored(
    hrm: Command, rubrics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_AGENT_STORE_KEY", "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=")
    with open_store("runs.db") as store:
        fill(store, 2)
    assert hrm("rescore", "runs.db", "--rewards", "./mine.py:rubric").code == 0
    assert b"characters" not in Path("runs.db").read_bytes()


async def test_what_was_scored_before_a_kill_is_on_record(hrm: Command, rubrics: Path) -> None:
    with open_store("runs.db") as store:
        fill(store, 10)
        store.journal.write_trajectory(sample(10, answer=r"<answer>\boxed{9}</answer>"))
    words = [sys.executable, "-m", "hrm_agent", "rescore", "runs.db", "--rewards", "./mine.py:slow"]
    process = subprocess.Popen(
        words, cwd=rubrics, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

    def scored() -> int:
        with open_store("runs.db") as store:
            return len(store.scorings.by_rubric("./mine.py:slow"))

    try:
        await wait_until(lambda: scored() == 10, 60)
    finally:
        process.kill()
        process.wait()
    assert scored() == 10 and calls(rubrics) == 11
    words = ["rescore", "runs.db", "--rewards", "./mine.py:slow", "--thread", "t1", "t2", "--json"]
    (done,) = (await asyncio.to_thread(hrm, *words)).json["scored"]
    assert (done["scored"], done["skipped"]) == (0, 2), "the next call goes on"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rewards", "./none.py:rubric"), "There is no file none.py in "),
        (("--rewards", "./mine.py:words"), "'words' returned 'good', a str"),
        (("--rewards", "nothing"), "There are no scores 'nothing'"),
        (("--rewards", "feedback"), "There is no feedback on any run"),
        (("--rewards", "answer:nonsense"), "no answer reader"),
        (("--rewards", "verifier", "--name", "recorded"), "cannot be called 'recorded'"),
        (("--rewards", "verifier", "--thread", "thread-99"), "no thread 'thread-99'"),
        (("--rewards", "verifier", "--run", "nine"), "no trajectory of run 'nine'"),
        (("--rewards", "verifier", "--workers", "0"), "is not a number of processes"),
        ((), "required: --rewards"),
    ],
)
def test_wrong_words_are_named(
    words: tuple[str, ...], message: str, hrm: Command, rubrics: Path
) -> None:
    with open_store("runs.db") as store:
        fill(store, 2)
    done = hrm("rescore", "runs.db", *words)
    assert done.code == 2 and message in done.err and "Traceback" not in done.err, done.err
    with open_store("runs.db") as store:
        assert store.scorings.rubrics() == []


def test_there_has_to_be_a_store(hrm: Command) -> None:
    done = hrm("rescore", "nowhere", "--rewards", "verifier")
    assert done.code == 2 and "no store" in done.err and not Path("nowhere").exists()


def test_tasks_of_a_users_own_module_are_verified_by_its_code(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "own_tasks.py").write_text(
        "from hrm_agent.training.tasks import Task\ndef verify(text, least): return float(len(text)"
        " > least)\ntasks = [Task(prompt=f'{i}?', id=str(i), verify=lambda text, i=i: verify(text,"
        " i)) for i in (0, 10_000)]\n"
    )
    (tmp_path / "two.jsonl").write_text('"It is 1."\n"It is 2."\n')
    collected = hrm(
        "collect",
        "--tasks",
        "./own_tasks.py:tasks",
        "--policy",
        "scripted:two.jsonl",
        "--out",
        "run",
    )
    assert collected.code == 0, collected.err
    done = hrm("rescore", "run", "--rewards", "verifier", "--compare", "recorded", "--json")
    assert done.code == 0, done.err
    found = done.json["comparison"]
    assert (found["trajectories"], found["differing"], found["right"]["both"]) == (2, [], 1)
    alone = hrm("rescore", "run/store.db", "--rewards", "verifier", "--again")
    assert alone.code != 0, "a store alone does not say what may be run"


def test_the_tasks_own_verifier_gives_what_a_run_was_recorded_with(hrm: Command) -> None:
    """Rollouts are from the shipped policy: right, wrong and truncated ones."""
    row = {"question": "Which word rhymes with night?", "answer": "light"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    words = ("--tasks", "mix:3*word_problems,1*jsonl:rows.jsonl", "--count", "4", "--samples", "2")
    collected = hrm("collect", *words, "--context", "max_turns=4", "max_tokens=160", "--out", "run")
    assert collected.code == 0, collected.err
    done = hrm("rescore", "run", "--rewards", "verifier", "--compare", "recorded", "--json")
    assert done.code == 0, done.err
    found = done.json["comparison"]
    assert (found["trajectories"], found["differing"]) == (8, [])
    assert found["right"]["both"] > 0 < found["right"]["neither"]
    with open_store("run") as store:
        headers, scorings = store.journal.headers(), store.scorings.by_rubric("verifier")
    assert {t.id: outcome_of(t) for t in headers} == {
        id_: scoring.outcome for id_, scoring in scorings.items()
    }
    by_verifier, recorded = (
        hrm("eval", "run", *by, "--json").json for by in (("--by", "verifier"), ())
    )
    assert by_verifier["pass_at"] == recorded["pass_at"]
