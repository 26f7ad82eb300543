"""`hrm-agent blame`: the step whose answer was made wrong, read back on a second call, and what it
refuses.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.runtime.time_travel.fork import history
from hrm_agent.store import open_store
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections.trajectory.moments import moments
from tests.cli.conftest import Command

COLLECT = [
    "collect",
    "--graph",
    "reasoning",
    "--policy",
    "builtin:trained",
    "--count",
    "1",
    "--seed",
    "1",
    "--out",
    "run",
]
ORIGIN = "run/collect/0/0"


@pytest.fixture
def wrong(hrm: Command) -> str:
    """A right run whose final text was replaced by a wrong one, in a thread of its own."""
    assert hrm(*COLLECT).code == 0
    changes = (r"--message=-1=<answer>\boxed{1}</answer>", "--as-node", "synthesize")
    done = hrm(
        *("fork", ORIGIN, "--store", "run", "--at", "after:synthesize", *changes),
        *("--name", "wrong", "--run"),
    )
    assert done.code == 0, done.err
    return "wrong"


RUBRICS = """
from hrm_agent.rewards import Reward, Rubric

def right(text):
    return 1.0

def best(group):
    return {each.id: 1.0 for each in group}

always = Rubric([Reward(right, name="correct")])
by_group = Rubric([Reward(best, name="correct")])
"""


def calls_in(folder: str) -> int:
    with open_store(folder, create=False) as store:
        return sum(len(each.own_calls) for each in store.journal.trajectories())


def test_the_step_that_was_made_wrong_is_named_and_its_forks_are_read_back(
    hrm: Command, wrong: str
) -> None:
    told = hrm("eval", "run", "--json").json
    found = hrm("blame", "run", wrong, "--forks", "2", "--json").json["runs"]
    (run,) = found
    assert run["outcome"] == 0.0
    last = run["moments"][-1]
    assert (last["nodes"], last["value"], last["difference"]) == ("synthesize", 1.0, -1.0)
    assert run["lost_at"] == last["index"]
    assert [each["forks"] for each in run["moments"]] == [2] * len(run["moments"])
    with open_store("run", create=False) as store:
        named = history(store, wrong, branches=False).select("before:synthesize")
        (shown_at,) = [
            each
            for each in moments(Place("p", "run", Path("run")), wrong)["moments"]
            if each["index"] == named.index
        ]
    assert named.index == last["index"]
    assert (shown_at["value"]["mean"], shown_at["value"]["forks"]) == (1.0, 2)
    before = calls_in("run")
    shown = hrm("blame", "run", wrong, "--forks", "2")
    assert "lost here" in shown.out and "--at" in shown.out
    assert calls_in("run") == before
    assert hrm("eval", "run", "--json").json["trajectories"] == told["trajectories"]
    more = hrm("blame", "run", wrong, "--forks", "3", "--json").json["runs"][0]["moments"]
    assert [each["forks"] for each in more] == [3] * len(more)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "wrong-name"], "Thread 'wrong-name' is missing"),
        (["run"], "No run in run was judged and is wrong."),
        (
            ["run", "wrong", "--temperature", "0"],
            "At temperature 0 all forks of a moment are equal",
        ),
        (["run", "wrong", "--forks", "0"], "--forks 0 is below 1."),
        (["run", "alone"], "Thread 'alone' cannot be judged: it has no reward"),
        (["run", "wrong", "--graph", "tool_loop"], "blame does not take --graph"),
        (["run", "wrong", "--context", "max_rounds=1"], "blame does not take --context"),
        (
            ["run", "wrong", "--rewards", "./r.py:by_group"],
            "The outcome of ./r.py:by_group reads group",
        ),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_blamed_is_refused_in_one_sentence(
    hrm: Command, wrong: str, words: list[str], said: str
) -> None:
    del wrong
    Path("r.py").write_text(RUBRICS)
    assert hrm("run", "What is 2 + 2?", "--thread", "alone", "--store", "run").code == 0
    done = hrm("blame", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err and "Traceback" not in done.err


def test_a_run_of_a_training_needs_the_policy_that_goes_on(hrm: Command, tmp_path: Path) -> None:
    few = [
        "--steps",
        "2",
        "--prompts-per-step",
        "1",
        "--group-size",
        "2",
        "--algorithm",
        "grpo",
        "--max-tokens",
        "64",
    ]
    assert hrm("train", "rl", *few, "--out", "run").code == 0
    done = hrm("blame", "run", "run/step-1/0/0")
    assert done.code == 2 and "sampled by weights of a training (version 1)" in done.err
    assert hrm("blame", "run", "run/step-1/0/0", "--policy", "run/model", "--forks", "1").code in (
        0,
        1,
    )


def test_another_rubric_scores_the_run_and_its_forks_and_stores_nothing_on_the_run(
    hrm: Command, wrong: str
) -> None:
    Path("r.py").write_text(RUBRICS)
    done = hrm("blame", "run", wrong, "--forks", "1", "--rewards", "./r.py:always", "--json")
    (run,) = done.json["runs"]
    assert (done.code, run["outcome"], run["lost_at"]) == (1, 1.0, None)
    with open_store("run", create=False) as store:
        assert store.journal.trajectory(wrong).rewards == {"correct": 0.0}


def test_other_weights_under_the_same_name_sample_their_own_forks(hrm: Command, wrong: str) -> None:
    folder = shutil.copytree(model_folder("builtin:trained"), "policy")
    words = ("blame", "run", wrong, "--forks", "1", "--policy", "./policy", "--json")
    assert hrm(*words).code in (0, 1)
    before = calls_in("run")
    assert hrm(*words).code in (0, 1) and calls_in("run") == before
    weights = Path(folder) / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    assert hrm(*words).code in (0, 1) and calls_in("run") > before


def test_a_run_whose_checkpoints_are_gone_is_refused(hrm: Command) -> None:
    assert hrm(*COLLECT).code == 0
    with open_store("run", create=False) as store:
        store.checkpointer.prune([ORIGIN])
    done = hrm("blame", "run", ORIGIN)
    assert done.code == 2 and "were deleted" in done.err


def test_the_rubric_of_a_run_in_a_shared_store_is_its_own(hrm: Command) -> None:
    Path("r.py").write_text(RUBRICS.replace("return 1.0", "return 0.0"))
    words = (*COLLECT[:-1], "own", "--rewards", "./r.py:always", "--store", "shared.db")
    assert hrm(*words).code == 0
    (run,) = hrm("blame", "own", "--forks", "1", "--json").json["runs"]
    assert {each["value"] for each in run["moments"]} == {0.0} and run["lost_at"] is None


def test_a_training_on_the_store_leaves_out_forks_of_blame_and_not_a_run_of_that_name(
    hrm: Command, wrong: str
) -> None:
    assert hrm("blame", "run", wrong, "--forks", "2").code == 0
    done = hrm("train", "rl", "--from", "run/store.db", "--out", "learnt")
    assert "value a moment (`hrm-agent blame`)" in done.err
    words = ("collect", "--count", "2", "--samples", "4", "--seed", "1", "--out", "blame")
    assert hrm(*words).code == 0
    told = hrm("train", "rl", "--from", "blame", "--out", "learnt-too").err
    assert "value a moment" not in told
