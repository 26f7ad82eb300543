"""`train sft --from`: learning from what is on record, role by role."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import open_store
from hrm_agent.testing import tiny_model
from hrm_agent.training.metrics import read_metrics
from hrm_agent.trajectory import RewardScore, RunStatus, Scoring, Trajectory
from tests.cli.conftest import Command
from tests.support.graphs.scripts import Roles
from tests.support.postgres import free_port
from tests.support.training.english import without_defaults

QUICK = (
    "--steps",
    "2",
    "--batch-size",
    "2",
    "--learning-rate",
    "3e-4",
    "--cooldown",
    "0",
    "--warmup-steps",
    "0",
)


@pytest.fixture
def solved(hrm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trajectory:
    """One run of the hierarchical graph, every role of which was asked."""
    engine = ScriptedEngine(Roles(), name="scripted:roles")
    monkeypatch.setattr("hrm_agent.cli.runs.run.policy_for", lambda *_, **__: engine)
    assert (
        hrm(
            "run", "3 * 4 apples and 5 * 6 pears", "--graph", "reasoning", "--policy", "scripted:x"
        ).code
        == 0
    )
    engine.close()
    with open_store(tmp_path / "runs" / "store.db") as store:
        (found,) = store.journal.trajectories()
    return found


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def taught(rows: list[Any]) -> Counter[tuple[str, str]]:
    """Answers by role, without those that are only context."""
    return Counter(
        (row["role"], message["content"])
        for row in rows
        for message in row["messages"]
        if message["role"] == "assistant" and "weight" not in message
    )


def test_chat_holds_every_call_of_every_role(
    solved: Trajectory, hrm: Command, tmp_path: Path
) -> None:
    done = hrm("export", "runs", "--out", "x.chat", "--json").json
    rows = rows_of(tmp_path / "x.chat")
    assert done["left_out"] == {} and {row["role"] for row in rows} == {
        "plan",
        "solve",
        "critique",
        "synthesize",
    }
    assert sum(taught(rows).values()) == len(solved.calls) == 9, "each answer once"
    assert all(("tools" in row) == (row["role"] == "solve") for row in rows)
    assert {(row["answer"], row["reward"], row["model"]) for row in rows} == {
        (solved.answer, None, "scripted:roles")
    }
    assert all(call.token_ids and call.request and call.tools is not None for call in solved.calls)


def test_what_people_liked_is_learned(solved: Trajectory, hrm: Command, tmp_path: Path) -> None:
    words = ("--from", "runs", "--by", "feedback", "--reward", "1", "--out", "liked", *QUICK)
    refused = hrm("train", "sft", *words)
    assert refused.code == 2 and "There is no feedback on any run" in refused.err
    for score, code, said in ((0.0, 2, "1 left out: the reward is below 1"), (1.0, 0, "")):
        with open_store(tmp_path / "runs" / "store.db") as store:
            given = RewardScore(name="feedback", value=score)
            store.scorings.write(
                [
                    Scoring(
                        trajectory_id=solved.id,
                        rubric="feedback",
                        scores=(given,),
                        outcome=score,
                        total=score,
                        scored_at=1.0,
                    )
                ]
            )
        done = hrm("train", "sft", *words, "--json")
        assert done.code == code and said in done.err, done.err
    assert sum(taught(rows_of(tmp_path / "liked" / "conversations.jsonl")).values()) == 9


def test_the_answers_of_a_role_are_learned(
    solved: Trajectory, hrm: Command, tmp_path: Path
) -> None:
    words = ("--from", "runs", "--role", "critique", "--role", "plan", "--out", "tuned", *QUICK)
    done = hrm("train", "sft", *words, "--json")
    assert done.code == 0, done.err
    taken = done.lines[-1]["taken"]
    assert taken["by_role"] == {"plan": 1, "critique": 1} and taken["conversations"] == 2
    assert set(taken["left_out"]) == {
        "the role 'solve' was not asked for",
        "the role 'synthesize' was not asked for",
    }
    assert len(read_metrics(tmp_path / "tuned" / "metrics.jsonl")) == 2
    assert {row["role"] for row in rows_of(tmp_path / "tuned" / "conversations.jsonl")} == {
        "plan",
        "critique",
    }
    for refused in (
        ("analyze", "tuned"),
        ("show", "--step", "1", "--html", "x.html", "--store", "tuned"),
    ):
        told = hrm(*refused)
        assert (
            told.code == 2
            and "is the folder of a `train sft`" in told.err
            and "hrm-agent plot tuned" in told.err
        )


def test_a_resumed_run_learns_from_the_same(
    solved: Trajectory, hrm: Command, tmp_path: Path
) -> None:
    whole = hrm("train", "sft", "--from", "runs", "--out", "whole", *QUICK[2:], "--steps", "3")
    assert (
        whole.code == 0 and "6 conversations of 1 runs on record: solve 3, plan 1" in whole.out
    ), whole.out
    words = ("train", "sft", "--from", "runs", "--out", "tuned", *QUICK[2:])
    assert hrm(*words, "--steps", "2").code == 0
    with open_store(tmp_path / "runs" / "store.db") as store:  # another run is recorded meanwhile
        store.journal.write_trajectory(
            solved.model_copy(update={"id": "b", "thread_id": "b", "calls": ()})
        )
        where = solved.calls[0].identity.model_copy(update={"thread_id": "b"})
        store.journal.write_call(
            solved.calls[0].model_copy(update={"id": "other", "identity": where})
        )
    assert hrm(*words, "--steps", "3").code == 0
    model = "model/model.safetensors"
    assert (tmp_path / "tuned" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()
    refused = hrm(*words, "--steps", "4", "--role", "plan")
    assert refused.code == 2 and "roles" in refused.err
    (tmp_path / "runs" / "store.db").unlink()
    assert hrm("resume", "tuned").code == 0


@pytest.mark.slow
def test_processes_side_by_side_are_fitted_by_what_the_first_one_wrote(
    solved: Trajectory, hrm: Command, tmp_path: Path
) -> None:
    """Conversations, on which batches and steps depend, are known to the first process only."""
    words = [
        "train",
        "sft",
        "--from",
        "runs",
        "--policy",
        str(without_defaults(tiny_model(tmp_path / "model"))),
    ]
    assert hrm(*words, "--out", "alone").code == 0
    command = [sys.executable, "-m", "hrm_agent.cli.main", *words, "--out", "tuned"]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    shared |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("1", "0")
    ]
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=240)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
    kept = tomllib.loads((tmp_path / "tuned" / "config.toml").read_text())
    assert (kept["batch_size"], kept["steps"], kept["warmup_steps"]) == (6, 3, 1)
    both, alone = (read_metrics(tmp_path / run / "metrics.jsonl") for run in ("tuned", "alone"))
    assert [row["loss"] for row in both] == pytest.approx([row["loss"] for row in alone], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "runs", "--role", "nobody"), "1 left out: the role 'plan' was not asked for."),
        (("--from", "runs", "--reward", "1"), "1 left out: the reward is below 1."),
        (("--from", "nowhere"), "nowhere"),
        (("x.jsonl", "--from", "runs"), "Both a file and --from were named"),
        (("x.jsonl", "--role", "plan"), "Name the record: --from STORE"),
        ((), "recorded runs: --from STORE"),
    ],
)
def test_with_nothing_to_learn_nothing_is_begun(
    words: tuple[str, ...], said: str, solved: Trajectory, hrm: Command, tmp_path: Path
) -> None:
    done = hrm("train", "sft", *words, "--out", "tuned", *QUICK)
    assert done.code == 2 and said in " ".join(done.err.split()), done.err
    assert not (tmp_path / "tuned").exists()


def test_a_run_that_is_not_over_teaches_nothing(
    solved: Trajectory, hrm: Command, tmp_path: Path
) -> None:
    with open_store(tmp_path / "other.db") as store:
        for call in solved.calls:
            store.journal.write_call(call)
        store.journal.write_trajectory(
            solved.model_copy(update={"status": RunStatus.RUNNING, "ended_at": None})
        )
    done = hrm("train", "sft", "--from", "other.db", "--out", "tuned", *QUICK)
    assert done.code == 2 and "1 left out: the run is running, not completed" in " ".join(
        done.err.split()
    )
