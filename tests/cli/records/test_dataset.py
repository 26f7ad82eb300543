"""`hrm-agent dataset`: from runs and traces to a data set, and from it to evaluations side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
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
