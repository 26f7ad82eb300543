"""`hrm-agent eval` on published evaluations, from a file to numbers, with a scripted policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.store import open_store
from tests.cli.conftest import Command

SINGLE_CALL = ("--graph", "hrm_agent.graphs.single_call:graph")


def lines(path: str, *rows: object) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_gsm8k_is_evaluated_and_scored_again(hrm: Command) -> None:
    rows = [{"question": f"{i}?", "answer": f"<<{i}={i}>>\n#### {i}"} for i in (7, 1200)]
    lines("test.jsonl", *rows)
    lines("p.jsonl", "#### 7", "So: #### 7")
    words = ("--policy", "scripted:p.jsonl", *SINGLE_CALL, "--out", "run", "--json")
    done = hrm("eval", "--tasks", "gsm8k:test.jsonl?max_steps=2", *words)
    assert done.code == 0 and (done.json["problems"], done.json["pass_at_1"]) == (2, 0.5), done.err
    again = hrm("rescore", "run", "--rewards", "verifier", "--compare", "recorded", "--json")
    assert again.json["comparison"]["differing"] == []


def test_calls_of_bfcl_are_evaluated_and_scored_again(hrm: Command) -> None:
    schema = {"type": "dict", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    functions = [{"name": "math.root", "description": "Root.", "parameters": schema}]
    said = [[{"role": "user", "content": "Root?"}]]
    rows = [{"id": f"simple_{i}", "question": said, "function": functions} for i in (0, 1)]
    lines("BFCL.json", *rows)
    truth = [{"id": row["id"], "ground_truth": [{"math.root": {"n": [4]}}]} for row in rows]
    lines("possible_answer/BFCL.json", *truth)
    call = '<tool_call>{"name": "math_root", "arguments": {"n": %d}}</tool_call>'
    lines("p.jsonl", call % 4, call % 5)
    words = ("--policy", "scripted:p.jsonl", *SINGLE_CALL, "--out", "run", "--json")
    done = hrm("eval", "--tasks", "bfcl:BFCL.json", *words)
    assert done.code == 0 and done.json["pass_at_1"] == 0.5 and "boxed" not in done.err, done.err
    again = hrm("rescore", "run", "--rewards", "verifier", "--compare", "recorded", "--json")
    assert again.code == 0 and again.json["comparison"]["differing"] == [], again.err
    with open_store("run/store.db") as store:
        assert {t.outcome for t in store.journal.headers()} == {0.0, 1.0}
    lines("p.jsonl", "2")
    words = ("--policy", "scripted:p.jsonl", "--out", "other")
    other = hrm("eval", "--tasks", "bfcl:BFCL.json", *words)
    assert other.code == 2 and "input has no field 'tools'" in other.err


@pytest.mark.whole
def test_ifeval_reports_its_four_accuracies(hrm: Command) -> None:
    names = ["punctuation:no_comma", "change_case:english_lowercase"]
    both = {"key": 1, "prompt": "a", "instruction_id_list": names, "kwargs": [{}, {}]}
    one = {"key": 2, "prompt": "b", "instruction_id_list": names[:1], "kwargs": [{}]}
    lines("input_data.jsonl", both, one)
    text = "this is a plain sentence in english, with a comma"
    lines("p.jsonl", text, text)
    words = ("--policy", "scripted:p.jsonl", *SINGLE_CALL, "--out", "run")
    done = hrm("eval", "--tasks", "ifeval:input_data.jsonl", *words, "--json")
    assert done.code == 0 and done.json["pass_at_1"] == 0, done.err
    rewards = {name: one["value"] for name, one in done.json["rewards"].items()}
    assert rewards == {
        "prompt_loose": 0,
        "instruction": 1.5,
        "followed per instruction": 1 / 3,
        "loosely followed per instruction": 1 / 3,
    }
    assert "reward followed per instruction" in hrm("eval", "run").out
