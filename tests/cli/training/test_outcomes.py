"""Trainings and evaluations in which every rollout fails: their messages and exit codes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from hrm_agent.training.metrics import read_metrics
from hrm_agent.trajectory import RunStatus, StopReason, Verdict
from tests.cli.conftest import Command
from tests.support.tools.openenv_server import GuessServer, serving

pytestmark = pytest.mark.whole

GRAPHS = Path(__file__).parents[2] / "support" / "graphs"
SMALL = (
    "--steps",
    "2",
    "--prompts-per-step",
    "1",
    "--group-size",
    "4",
    "--algorithm",
    "grpo",
    "--out",
    "run",
)
REWARDS = """
def raises(text):
    raise KeyError("no box")


def is_nan(text):
    return float("nan")
"""

GUESS = '<tool_call>{"name": "step", "arguments": {"number": 101}}</tool_call>'


@pytest.fixture(autouse=True)
def _files(hrm: Command) -> None:
    del hrm  # which goes to a folder of its own first
    Path("tasks.jsonl").write_text(json.dumps({"question": "What is 6 * 7?", "answer": "42"}))
    Path("rewards.py").write_text(REWARDS)


def test_a_graph_that_always_raises_ends_the_training_with_its_error(hrm: Command) -> None:
    graph = f"{GRAPHS / 'hostile_answers.py'}:always_raising"
    done = hrm("train", "rl", "--graph", graph, "--tasks", "tasks.jsonl", *SMALL)
    assert done.code == 2
    assert (
        "No rollout of 1 step got through. In 4 of 4 rollouts the graph raised the same error"
        in done.err
    )
    assert (
        "4 x KeyError: 'missing' (hostile_answers.py:" in done.err
        and "hrm-agent resume run" in done.err
    )
    (row,) = read_metrics(Path("run/metrics.jsonl"))
    assert (row["select/groups_failed"], row["rollout/failed_by_policy"], row["stepped"]) == (
        1,
        4,
        0,
    )
    assert hrm("resume", "run").code == 2
    assert len(read_metrics(Path("run/metrics.jsonl"))) == 2, "it goes on with the next step"


@pytest.mark.parametrize(
    ("reward", "said", "metric"),
    [
        (
            "raises",
            "raises: raised (KeyError: 'no box', at rewards.py:3 in raises)",
            "rollout/reward_raised",
        ),
        ("is_nan", "is_nan: not_a_number (it returned nan)", "rollout/reward_not_finite"),
    ],
)
def test_a_reward_that_fails_is_counted_and_named(
    reward: str, said: str, metric: str, hrm: Command
) -> None:
    words = ("--tasks", "tasks.jsonl", "--rewards", f"./rewards.py:{reward}")
    done = hrm("train", "rl", *words, *SMALL)
    assert done.code == 2
    assert (
        "4 of 4 rollouts have no reward: their rewards or verifiers raised, or gave no finite"
        " number: 4 x" in done.err
    )
    assert said in done.err
    (row,) = read_metrics(Path("run/metrics.jsonl"))
    assert (row["rollout/not_scored"], row[metric], row["rollout/lost"]) == (
        4,
        4,
        0,
    ) and said in row["errors"]
    if reward == "raises":
        done = hrm("eval", *words, "--out", "evaluated", "--samples", "2")
        assert (
            done.code == 1
            and f"Every rollout got no reward, most often by: the rubric failed: {said}" in done.err
        )


def test_a_prompt_beyond_the_window_is_told_as_one(hrm: Command) -> None:
    Path("long.jsonl").write_text(json.dumps({"question": "word " * 3000, "answer": "42"}))
    done = hrm("train", "rl", "--tasks", "long.jsonl", *SMALL)
    assert (
        done.code == 0
        and "In 8 of 8 rollouts the prompt is longer than the policy's context window" in done.err
    )
    assert "temperature" not in done.err
    shown = hrm("show", "run/step-0/0/0", "--store", "run").out
    assert (
        "truncated (max_tokens)" in shown
        and "tokens" in shown.partition("error")[2].partition("answer")[0]
    )


def test_rollouts_that_are_all_truncated_are_told_as_that(hrm: Command) -> None:
    done = hrm("train", "rl", *SMALL, "--context", "max_tokens=5", "--truncated", "keep_reward")
    assert (
        done.code == 0
        and "8 of 8 rollouts ended at a limit before they were done. Raise max_tokens" in done.err
    )
    assert "easier tasks" not in done.err
    assert 'truncated = "keep_reward"' in Path("run/config.toml").read_text()


REFUSING = """{%- for call in message.tool_calls or [] -%}
{{- raise_exception('no code of an odd length') if call.function.arguments.code | length is odd -}}
{%- endfor -%}"""


def test_a_template_that_refuses_what_the_policy_wrote_does_not_end_the_training(
    hrm: Command,
) -> None:
    from hrm_agent.models.loading.policy_loader import model_folder

    policy = Path("policy")
    policy.mkdir()
    for file in Path(model_folder("builtin:cold-start")).iterdir():
        text = file.read_bytes()
        here = b"message.role == 'assistant' -%}"
        (policy / file.name).write_bytes(
            text.replace(here, here + REFUSING.encode()) if b"jinja" in file.name.encode() else text
        )
    words = (
        "train",
        "rl",
        "--policy",
        "policy",
        *SMALL,
        "--group-size",
        "8",
        "--context",
        "max_turns=3",
    )
    done = hrm(*words)
    assert done.code == 0, done.err
    with open_store("run/store.db") as store:
        found = [store.journal.trajectory(t.thread_id) for t in store.threads(run_id="run")]
        verdicts = store.journal.overlays("run")
    refused = [each for each in found if each.stop_reason is StopReason.UNUSABLE_ANSWER]
    assert 0 < len(refused) < len(found)
    assert all(
        each.status is RunStatus.FAILED and each.rewards == {"correct": 0.0} for each in refused
    )
    assert all("no code of an odd length" in str(each.error) for each in refused)
    of_refused = [v.verdict for v in verdicts if v.trajectory_id in {each.id for each in refused}]
    assert of_refused and Verdict.DROPPED not in of_refused, "they are judged with their group"
    for checkpoint in Path("run/checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    shutil.rmtree("run/model")
    assert hrm("resume", "run").code == 0, "the same answers are on record, and are met again"


def test_rollouts_that_an_environment_lost_are_told_and_run_again(hrm: Command) -> None:
    """Each lost rollout is run once more, and again by the same command."""
    Path("p.jsonl").write_text(f"{json.dumps(GUESS)}\n" * 4)
    with serving(GuessServer(fault=lambda act: "die")) as server:
        words = ("--tasks", f"openenv:{server.url}?steps=1&low=-1&high=3", "--count", "1")
        words = ("eval", *words, "--policy", "scripted:p.jsonl", "--out", "run")
        lost = hrm(*words)
        assert (lost.code, server.acts) == (1, [])
        assert (
            "1 of 1 rollouts lost a tool call to the infrastructure, 1 of them are without a score,"
            " most often by: The environment closed the connection." in lost.err
        )
        server.fault = lambda act: None
        done = hrm(*words)
        few = hrm(*words[:-1], "other")
    assert "0 correct" in few.err  # 0.25, which pass@1 does not count either
    assert (done.code, server.acts) == (0, [101, 101]), done.err
    assert "pass@1" in done.out and "infrastructure" not in done.err
    assert re.search(r"run once more, failed by a machine +1\b", done.out)
