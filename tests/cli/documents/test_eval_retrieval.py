"""`hrm-agent eval-retrieval` from a folder to tables, files and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    folder = tmp_path / "set"
    folder.mkdir()
    text = "".join(
        f"# Part {i}\n\nThe key of door {i} is number {i * i + 100}. Nobody knows more.\n\n"
        for i in range(40)
    )
    (folder / "doors.md").write_text(text)
    (folder / "other.txt").write_text("Nothing of all this is about the key of a door. " * 20)
    rows = []
    for i in range(0, 40, 4):
        start = text.index(f"The key of door {i} ")
        reference = {"start": start, "end": text.index(".", start) + 1}
        rows.append(
            {
                "corpus": "doors.md",
                "question": f"Which key has door {i}?",
                "references": [reference],
            }
        )
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "set"


def test_from_questions_to_tables_files_and_a_picture(
    corpus: str, hrm: Command, tmp_path: Path
) -> None:
    words = (
        "--strategy",
        "default",
        "sentence",
        "langchain",
        "--size",
        "32",
        "64",
        "--resamples",
        "500",
    )
    done = hrm("eval-retrieval", corpus, *words, "--k", "2", "--out", "out", "--json")
    assert done.code == 0 and "measuring 7/7" in done.err
    found = done.json
    assert found["base"] == found["results"][0]["configuration"] == "langchain-located:512/64:words"
    assert [result["configuration"] for result in found["results"][1:4]] == [
        "default:32/5:words", "sentence:32/5:words", "langchain:32/5:words",
    ]  # fmt: skip
    assert found["questions"] == {"doors": 10} and found["settings"]["k"] == 2
    score = found["results"][1]["scores"]["all"]["recall"]
    assert score["value"]["low"] <= score["value"]["value"] <= score["value"]["high"]
    assert json.loads((tmp_path / "out/results.json").read_text()) == found
    assert (tmp_path / "out/results.png").read_bytes().startswith(b"\x89PNG\r\n")
    page = (tmp_path / "out/results.md").read_text()
    assert (
        "| default:32/5:words | " in page
        and "Questions: doors 10." in page
        and "* apart: `False`" in page
    )

    text = hrm("eval-retrieval", corpus, *words, "--base", "sentence:32/5:words", "--apart")
    assert "The best 5 chunks (10 questions, an index for each corpus)" in text.out
    assert text.out.count("sentence:32/5:words") == 3, (
        "the baseline is measured once, and is a line of each table"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none",), "There is no folder none"),
        (("set", "--strategy", "semantik"), "Did you mean 'semantic'"),
        (("set", "--base", "sentence"), "Write STRATEGY:SIZE/OVERLAP:MODE"),
        (("set", "--mode", "letters"), "no mode 'letters'"),
        (("set", "--k", "0"), "k is 0"),
        (("set", "--size", "0"), "a chunk cannot have 0 tokens"),
        (("set", "--tokenizer", "none"), "There is no tokenizer 'none'"),
    ],
)
def test_mistakes_are_explained(
    words: tuple[str, ...], said: str, corpus: str, hrm: Command
) -> None:
    done = hrm("eval-retrieval", *words)
    assert (done.code, done.out) == (2, "") and said in done.err
    assert "Traceback" not in done.err
