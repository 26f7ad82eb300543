"""`hrm-agent eval` from tasks to files, on a scripted policy; slow, on the policy that is shipped,
whose context is too short for most of ARC-AGI.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command

PNG = b"\x89PNG\r\n"


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    rows = [{"question": f"What is {i} * 7?", "answer": f"#### {i * 7}"} for i in (6, 8)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"mix:1*jsonl:{tmp_path / 'tasks.jsonl'},1*word_problems"


def policy(folder: Path, name: str, *answers: str) -> str:
    (folder / name).write_text(
        "".join(json.dumps(f"<answer>\\boxed{{{a}}}</answer>") + "\n" for a in answers)
    )
    return f"scripted:{folder / name}"


def test_answers_without_the_box_that_the_verifier_reads_are_told(
    hrm: Command, tmp_path: Path
) -> None:
    """A score of 0 for the form of an answer is not counted as one for its content."""
    graph = "from langgraph.graph import START, MessagesState, StateGraph\n"
    graph += "def say(state):\n    return {'messages': [('ai', 'They have 226 legs.')]}\n"
    graph += (
        "graph = StateGraph(MessagesState).add_node('say', say).add_edge(START, 'say').compile()\n"
    )
    (tmp_path / "says.py").write_text(graph)
    (tmp_path / "q.csv").write_text("question,answer\nHow many legs?,226\n")
    words = ("eval", "--graph", "./says.py:graph", "--tasks", "./q.csv")
    told = hrm(*words, "--out", "a")
    assert (
        "None has what the verifier of the tasks reads, <answer>\\boxed{...}</answer>" in told.err
    )
    assert "--rewards answer:last_number" in told.err
    assert "boxed" not in hrm(*words, "--out", "b", "--rewards", "answer:last_number").err


def test_rollouts_that_were_cut_off_are_told(scripted: str, hrm: Command) -> None:
    told = hrm(
        "eval", "--policy", scripted, "--count", "1", "--context", "max_turns=1", "--out", "a"
    )
    cut = (
        "1 of 1 rollouts ended at a limit before they were done, most often max_turns: raise"
        " --max-tokens"
    )
    assert f"No answer was right. {cut}" in told.err
    assert "boxed" not in told.err, "none was done"


def test_from_tasks_to_results_and_a_comparison(tasks: str, hrm: Command, tmp_path: Path) -> None:
    words = ("--tasks", tasks, "--count", "4", "--samples", "3", "--price", "1,2")
    right = policy(tmp_path, "right.jsonl", *["42"] * 12)
    done = hrm("eval", *words, "--policy", right, "--out", "runs/a", "--json")
    found, folder = done.json, tmp_path / "runs/a"
    assert re.search(r"eval 12/12 \[.*\] 3 correct", done.err)
    assert (
        found["pass_at"]["3"]["value"],
        found["majority_at"]["3"]["value"],
        found["samples"],
    ) == (0.25, 0.25, 3)
    assert (
        len(found["families"]) == 2
        and found["families"]["word_problems"]["pass_at_1"]["value"] == 0
    )
    assert found["cost"] == pytest.approx(
        (found["read_tokens"] + 2 * found["sampled_tokens"]) / 1e6
    )
    kept = json.loads((folder / "results.json").read_text())
    assert {key: kept[key] for key in found} == found and kept["config"]["samples"] == 3
    page = (folder / "results.md").read_text()
    assert (
        "| pass@2 | 0.250 (95 % interval" in page
        and "| `samples` |" not in page
        and "| samples | `3` |" in page
    )
    assert (folder / "results.png").read_bytes().startswith(PNG)
    assert hrm("eval", "runs/a", "--price", "1,2", "--json").json == found, "from the record alone"
    assert hrm("lint", "runs/a").code == 0

    wrong = policy(tmp_path, "wrong.jsonl", *["41"] * 12)
    hrm("eval", "--tasks", tasks, "--count", "3", "--policy", wrong, "--out", "runs/b")
    done = hrm("eval", "--compare", "runs/a", "runs/b", "--out", "runs/ab", "--json")
    assert done.json == json.loads((tmp_path / "runs/ab/comparison.json").read_text()) | {
        "certain": False
    }
    assert done.json["problems"] + len(done.json["only_a"]) == 4
    text = hrm("eval", "--compare", "runs/a", "runs/b").out
    assert "within chance" in text and "Only in A, left out: " in text


def test_a_mode_is_scored_by_its_choice_and_costs_all_its_runs(
    tasks: str, hrm: Command, tmp_path: Path
) -> None:
    words = (
        "--tasks",
        tasks,
        "--count",
        "2",
        "--mode",
        "majority",
        "--n",
        "3",
        "--out",
        "runs/m",
        "--json",
    )
    found = hrm("eval", *words, "--policy", policy(tmp_path, "p.jsonl", *["42"] * 6)).json
    assert (found["trajectories"], found["samples"]) == (2, 1)
    assert found["roles"]["reason"]["calls"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--compare", "a", "b"), "There is no store at a"),
        (("--compare", "a", "b", "./a"), "--compare names ./a twice"),
        (("--compare", "a"), "takes two records or more, but one was given"),
        (("runs/x", "--compare", "a", "b"), "but runs/x was named before it"),
        (("--price", "cheap", "runs/x"), "'cheap' is not a price"),
        (("--tasks", "jsonl:none.jsonl", "--policy", "scripted:p.jsonl"), "Cannot read none.jsonl"),
    ],
)
def test_wrong_words_are_named(
    words: tuple[str, ...], message: str, hrm: Command, tmp_path: Path
) -> None:
    policy(tmp_path, "p.jsonl", "1")
    done = hrm("eval", *words)
    assert done.code == 2 and message in done.err


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("graph", ["tool_loop", "reasoning"])
def test_the_harness_on_tasks_far_beyond_the_policy(
    graph: str, hrm: Command, shared_data: Path, tmp_path: Path
) -> None:
    """Every run is stored, ends with a typed outcome and can be trained on, however poor it is."""
    tasks = f"mix:1*arc_agi,1*jsonl:{shared_data}/gsm8k/test.jsonl"
    words = (
        "--tasks",
        tasks,
        "--count",
        "40",
        "--graph",
        graph,
        "--context",
        "max_turns=4",
        "max_tokens=160",
    )
    done = hrm("eval", *words, "--out", "runs/far", "--json")
    assert done.code == 0, done.err
    assert done.json["trajectories"] == done.json["problems"] == 40
    assert (
        done.json["statuses"].keys() <= {"completed", "truncated"} and done.json["pass_at_1"] < 0.2
    )
    assert done.json["statuses"]["truncated"] > 5, (
        "a prompt that does not fit is a limit, not a failure"
    )
    checked = hrm("lint", "runs/far", "--json").json
    assert (checked["trajectories"], checked["findings"]) == (40, [])


def test_a_policy_that_the_graph_did_not_ask_is_told(
    tasks: str, hrm: Command, tmp_path: Path
) -> None:
    words = ("--graph", "tests.support.graphs.own_agent:graph", "--tasks", tasks, "--count", "1")
    named = ("--policy", policy(tmp_path, "named.jsonl", *["42"] * 3))
    unasked = (
        "was asked for nothing: HostedModel, a model that the graph names, answered. --stand-in"
        " puts the policy"
    )
    assert unasked in hrm("eval", *words, *named, "--out", "runs/a").err
    for others in ((*named, "--stand-in"), ()):
        done = hrm("eval", *words, *others, "--out", f"runs/{len(others)}")
        assert done.code == 0 and "was asked for nothing" not in done.err
