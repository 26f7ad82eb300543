"""`hrm-agent dataset`: from runs and traces to a data set, and from it to evaluations side by side."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.trajectory import ForkRef, RunStatus, TaskRef, Trajectory, Turn, TurnEnd
from hrm_agent.trajectory.formats import write_jsonl
from tests.cli.conftest import Command
from tests.support.trajectory.samples import make_trajectory
from tests.trajectory.formats.traces.test_exporters import files


def tasks(folder: Path, *numbers: int) -> str:
    rows = [{"question": f"What is {n} * 7?", "answer": str(7 * n)} for n in numbers]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"jsonl:{folder / 'q.jsonl'}"


def says(folder: Path, answer: int) -> str:
    line = json.dumps(f"<answer>\\boxed{{{answer}}}</answer>") + "\n"
    (folder / f"{answer}.jsonl").write_text(64 * line)
    return f"scripted:{folder / f'{answer}.jsonl'}"


def test_from_runs_to_evaluations_side_by_side(hrm: Command, tmp_path: Path) -> None:
    given = tasks(tmp_path, *range(1, 9))
    hrm("collect", "--policy", says(tmp_path, 42), "--tasks", given, "--out", "runs/a")
    failed = hrm("dataset", "add", "wrong", "runs/a", "--where", "reward<0.5", "--json").json
    assert (failed["version"], failed["examples"], failed["runs"]) == (1, 7, 8)
    words = ("--tasks", "dataset:wrong?split=all", "--json")
    for name, answer in (("b", 7), ("c", 14), ("d", 21)):
        done = hrm("eval", *words, "--policy", says(tmp_path, answer), "--out", f"runs/{name}")
        assert (done.code, done.json["problems"]) == (0, 7), done.err
    assert 'tasks = "dataset:wrong@1?split=all"' in (tmp_path / "runs/b/config.toml").read_text()

    more = hrm("dataset", "add", "wrong", "runs/a", "runs/b").out
    assert "wrong@2: 8 examples, 1 of them new" in more
    assert "No version was made." in hrm("dataset", "add", "wrong", "runs/c").out
    diff = hrm("dataset", "diff", "wrong@1", "wrong@2", "--json").json
    assert (diff["both"], diff["removed"], diff["other_split"]) == (7, [], [])
    assert [each["answer"] for each in diff["added"]] == ["42"]
    listed = hrm("dataset", "list", "--json").json
    assert [(each["name"], each["version"]) for each in listed] == [("wrong", 1), ("wrong", 2)]
    shown = hrm("dataset", "show", "wrong", "--split", "train", "--json").json
    assert len(shown["rows"]) == shown["splits"]["train"]
    assert {each["source"]["run"] for each in shown["rows"]} == {"a"}
    # the run continues with the version that it began with
    again = hrm("eval", *words, "--policy", says(tmp_path, 7), "--out", "runs/b")
    assert (again.code, again.json["problems"]) == (0, 7)

    records = ("runs/b", "runs/c", "runs/d")
    found = hrm("eval", "--compare", *records, "--price", "1,2", "--out", "cmp", "--json").json
    assert found == json.loads((tmp_path / "cmp/comparison.json").read_text())
    assert [each["name"] for each in found["evaluations"]] == list(records)
    assert [each["right"] for each in found["differing"]] == [
        each for _, each in sorted((d["id"], d["right"]) for d in found["differing"])
    ]
    assert sorted(each["right"] for each in found["differing"]) == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert all(each["cost"] > 0 for each in found["evaluations"])
    text = hrm("eval", "--compare", *records).out
    assert "No difference to A is significant." in text and "What is 1 * 7?" in text


def test_from_traces_to_an_evaluation(hrm: Command, tmp_path: Path) -> None:
    names = [str(path) for path in files("otel-openai")]
    assert hrm("import", *names, "--store", "prod.db").code == 0
    added = hrm(
        "dataset", "add", "prod", "prod.db", "--answers", "--where", "family=otel", "--json"
    )
    (row,) = hrm("dataset", "show", "prod", "--json").json["rows"]
    assert added.json["examples"] == 1 and row["source"]["trace"] and row["metadata"] == {}
    assert row["answer"]
    words = ("eval", "--tasks", "dataset:prod?split=all", "--policy", says(tmp_path, 1))
    unscored = hrm(*words, "--out", "a")
    assert unscored.code == 2 and "--rewards" in unscored.err and not (tmp_path / "a").exists()
    assert (
        hrm(*words, "--rewards", "answer:last_number", "--out", "a", "--json").json["problems"] == 1
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("add d runs --where reward>2", "No run in runs fulfils reward>2 (runs: 1)."),
        ("add d runs --where scores.mine>2", "runs has no scores 'mine'."),
        ("add d runs --where reward~2", "is a number, which ~ does not compare"),
        ("add d runs --run other", "runs has no runs of the run 'other'."),
        ("add d missing", "There is no store at missing"),
        ("add d@1 runs", "d@1 is a version, which never changes."),
        ("add a/b runs", "'a/b' cannot be the name of a data set."),
        ("add d runs --eval-share 2", "--eval-share 2.0 is not from 0 to 1."),
        ("show none", "There is no data set 'none' in datasets."),
        ("show d --limit -1", "--limit -1 is not a number of examples."),
        ("diff none@1 none@2", "There is no data set 'none' in datasets."),
        ("remove d", "has no action 'remove'"),
    ],
)
def test_wrong_words_leave_nothing_behind(
    words: str, message: str, scripted: str, hrm: Command, tmp_path: Path
) -> None:
    assert hrm("run", "What is 6 * 7?", "--policy", scripted).code == 0
    done = hrm("dataset", *words.split())
    assert (done.code, message in done.err, "Traceback" in done.err) == (2, True, False), done.err
    assert not (tmp_path / "datasets").exists()


def test_a_damaged_data_set_hides_no_other(scripted: str, hrm: Command, tmp_path: Path) -> None:
    assert hrm("run", "What is 6 * 7?", "--policy", scripted).code == 0
    for name in ("a", "b"):
        assert hrm("dataset", "add", name, "runs").code == 0
    (file,) = (tmp_path / "datasets/a").iterdir()
    file.write_text(file.read_text().replace("6 * 7", "6 + 7"))
    done = hrm("dataset", "list", "--json")
    assert done.code == 1 and "but its content has" in done.json[0]["problem"]
    assert done.json[1]["examples"] == 1
    refused = hrm("eval", "--tasks", "dataset:a", "--out", "x")
    assert refused.code == 2 and "but its content has" in refused.err
    assert not (tmp_path / "x").exists()


def recorded(thread: str, prompt: str = "open?", answer: str = "1", **changes: Any) -> Trajectory:
    """Run of a task without a reference answer."""
    facts = {"id": thread.replace("/", "-"), "thread_id": thread, "answer": answer}
    task = TaskRef(id=prompt, family="chat", prompt=prompt)
    return make_trajectory().model_copy(
        update={"calls": (), "tool_calls": (), "task": task, **facts, **changes}
    )


@pytest.mark.parametrize("kind", ["store", "file"])
def test_runs_are_what_evaluations_count(kind: str, hrm: Command, tmp_path: Path) -> None:
    fork = ForkRef(trajectory_id="a", checkpoint_id="c")
    runs = [
        recorded("a", group_id="g"),
        *(recorded(f"a/{n}", f"candidate {n}", group_id="a") for n in range(3)),
        recorded("a/fork", "fork", forked_from=fork),
        recorded("b", "first attempt", group_id="g2"),
        recorded("b/attempt-2", "second attempt", group_id="g2"),
    ]
    if kind == "file":
        where = tmp_path / "x.jsonl"
        write_jsonl(runs, where)
    else:
        where = tmp_path / "x.db"
        with open_store(where) as store:
            for run in runs:
                store.journal.write_trajectory(run)
    done = hrm("dataset", "add", "d", str(where), "--json").json
    assert (done["runs"], done["not_own"]) == (2, 5)
    shown = hrm("dataset", "show", "d", "--json").json["rows"]
    assert {each["prompt"] for each in shown} == {"open?", "second attempt"}


def test_answers_are_of_the_first_turn_and_one_for_each_task(hrm: Command, tmp_path: Path) -> None:
    end = TurnEnd(status=RunStatus.COMPLETED, answer="Paris")
    turn = Turn(id="m", prompt="And legs of a hen?", before=end, started_at=2.0)
    runs = [
        recorded("t", "Capital of France?", "two", turns=(turn,)),
        *(recorded(f"s{n}", answer=answer) for n, answer in enumerate("1221")),
    ]
    write_jsonl(runs, tmp_path / "x.jsonl")
    done = hrm("dataset", "add", "d", "x.jsonl", "--answers")
    assert "5 of 5 runs were chosen, with 2 different tasks." in done.out
    assert "The runs of 1 task gave different answers." in done.out
    rows = hrm("dataset", "show", "d", "--json").json["rows"]
    assert {each["prompt"]: each["answer"] for each in rows} == {
        "Capital of France?": "Paris",
        "open?": "1",
    }
    assert "No version was made." in hrm("dataset", "add", "d", "x.jsonl").out


def test_the_next_command_can_be_run(hrm: Command, tmp_path: Path) -> None:
    code = "from hrm_agent.training.tasks import Task\n"
    code += "tasks = [Task(prompt='6*7?', verify=lambda text: float('42' in text))]\n"
    (tmp_path / "own.py").write_text(code)
    words = ("--policy", says(tmp_path, 42))
    hrm("collect", *words, "--tasks", "./own.py:tasks", "--out", "runs/own")
    hrm("collect", *words, "--tasks", tasks(tmp_path, 6), "--out", "runs/file")
    store = recorded("t")
    write_jsonl([store], tmp_path / "x.jsonl")

    def next_after(*given: str) -> list[str]:
        done = hrm("dataset", "add", *given, "--eval-share", "0", "--folder", "my sets")
        assert done.code == 0, done.err
        *_, line = done.out.strip().splitlines()
        return shlex.split(line)[2:]

    for name in ("own", "file"):
        found = next_after(name, f"runs/{name}")
        assert "split=all" in found[1] and ("run=runs/own" in found[1]) == (name == "own")
        evaluated = hrm("eval", *found, *words, "--out", f"runs/{name}2", "--json")
        assert evaluated.json["pass_at_1"] == 1, evaluated.err
    assert next_after("x", "x.jsonl")[-2:] == ["--rewards", "module:attribute"]
    for spec, message in (
        ("dataset:own?folder=my sets&split=all", "dataset:own@1?run=FOLDER"),
        ("dataset:own?folder=my sets&split=all&run=none", "none is not the folder of a run"),
        ("dataset:own?folder=my sets&split=all&run=runs/file", "no example of own@1 is"),
        ("dataset:file?folder=my sets&split=all&run=none", "none is not the folder of a run"),
    ):
        refused = hrm("eval", "--tasks", spec, *words, "--out", "no")
        assert refused.code == 2 and message in refused.err, refused.err
