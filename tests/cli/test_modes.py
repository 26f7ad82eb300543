"""`run` and `collect` by a mode: what is printed, resumed, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from tests.cli.conftest import Command

MAJORITY = ("--mode", "majority", "--n", "3", "--thread", "task")


@pytest.fixture
def says(tmp_path: Path) -> str:
    """Policy that answers 41 once, and then 42 in two ways."""
    answers = [rf"<answer>\boxed{{{value}}}</answer>" for value in ("41", "42", "42.0")]
    (tmp_path / "says.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"scripted:{tmp_path / 'says.jsonl'}"


def test_a_majority(says: str, hrm: Command) -> None:
    done = hrm("run", "6 * 7?", "--policy", says, *MAJORITY, "--json")
    *candidates, end = done.lines
    assert done.code == 0 and [event["event"] for event in candidates] == ["candidate"] * 3
    assert end["event"] == "end" and end["candidates"] == ["task/0", "task/1", "task/2"]
    (chosen,) = (event for event in candidates if event["thread_id"] == end["chosen"])
    assert (
        end["reason"] == "2 of 3 gave this answer"
        and chosen["answer"] == end["answer"]
        and "42" in end["answer"]
    )
    assert "3 runs, chosen: task/" in hrm("resume", "task").out
    assert hrm("lint", "runs").code == hrm("replay", "task").code == 0
    kept = hrm("show", end["chosen"], "--json").json["overlays"]
    assert [(o["verdict"], o["reason"]) for o in kept] == [
        ("kept", "chosen: 2 of 3 gave this answer")
    ]


def test_a_run_that_waits_is_resumed_by_its_thread(says: str, hrm: Command) -> None:
    done = hrm(
        "run",
        "Which?",
        "--policy",
        says,
        *MAJORITY,
        "--graph",
        "tests.runtime.selection.test_strategies:asking",
    )
    assert done.code == 0 and "3 runs, none is chosen" in done.out
    assert (
        "hrm-agent resume task/1 --answer VALUE" in done.out
        and "hrm-agent resume task --store" in done.out
    )
    assert "Answer: this one" in hrm("resume", "task/1", "--answer", "this one").out
    end = hrm("resume", "task", "--json").lines[-1]
    assert (end["chosen"], end["answer"], end["status"]) == (
        "task/1",
        "Answer: this one",
        "completed",
    )


def test_what_a_choice_is_no_place_for(says: str, hrm: Command) -> None:
    hrm("run", "6 * 7?", "--policy", says, *MAJORITY)
    assert "and does not wait for an answer" in hrm("resume", "task", "--answer", "1").err
    assert "Fork one of the runs, such as task/0" in hrm("fork", "task").err
    assert "cannot be used for a fork" in hrm("fork", "task/0", "--mode", "majority").err
    assert hrm("resume", "task/0").code == 0, "a candidate is a run by itself"


def test_a_search_of_a_graph_without_a_verdict(says: str, hrm: Command) -> None:
    done = hrm("run", "6 * 7?", "--policy", says, "--mode", "search")
    assert (
        done.code == 2
        and "needs the verdict of a critic" in done.err
        and "Traceback" not in done.err
    )


def test_rollouts_by_a_mode(says: str, hrm: Command, tmp_path: Path) -> None:
    """Each is one trajectory, with its candidates beside it."""
    words = ("--policy", says, "--count", "1", "--mode", "majority", "--n", "3", "--out", "out")
    done = hrm("collect", *words, "--json")
    assert done.code == 0 and done.json["trajectories"] == 1
    with open_store(tmp_path / "out") as store:
        found = {t.thread_id: t for t in store.journal.trajectories()}
    assert set(found) == {"out/collect/0/0", *(f"out/collect/0/0/{i}" for i in range(3))}
    assert found["out/collect/0/0"].group_id == "out/collect/0"
    assert {t.run_id for t in found.values()} == {"out"}
    assert hrm("resume", "out", "--json").json["trajectories"] == 1
