"""`hrm-agent index`."""

from __future__ import annotations

import json
from pathlib import Path

from hrm_agent.retrieval.index import DocumentIndex
from tests.cli.conftest import Command
from tests.support.retrieval.documents import pdf


def test_a_folder_of_an_agent_gives_its_documents_and_no_code_no_runs_and_no_models(
    hrm: Command, tmp_path: Path
) -> None:
    (project := tmp_path / "project").mkdir()
    for name in ("README.md", "notes.rst", "LICENSE", "docs/page.html", "docs/build.md"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("Whales eat krill.\n")
    for name in (
        "agent.py",
        "tasks.json",
        "runs/a/results.md",
        "build/site/index.html",
        "model/model.safetensors",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("Whales eat krill.\n")
    told = hrm("index", project, "--store", "i.db", "--json").json
    assert (told["added"], sum(told["left_out"].values())) == (5, 5)
    assert told["left_out"] == {
        "in runs, made by programs": 1,
        "in build, made by programs": 1,
        ".py, code or data": 1,
        ".json, code or data": 1,
        ".safetensors, made by programs": 1,
    }
    assert "1 in runs, made by programs" in hrm("index", project, "--store", "i.db").out
    assert hrm("index", project, "--store", "i.db", "--all-files", "--json").json["added"] == 5


def test_a_folder_is_indexed_and_indexed_again(hrm: Command, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("The whale sings.")
    (docs / "b.md").write_text("# Otters\n\nThey sleep.")
    first = hrm("index", "docs", "--json")
    assert first.code == 0
    assert {key: first.json[key] for key in ("store", "added", "documents", "chunks", "files_skipped")} == {
        "store": "runs/index.db", "added": 2, "documents": 2, "chunks": 2, "files_skipped": [],
    }  # fmt: skip
    assert "indexing 2/2" in first.err
    (docs / "a.txt").unlink()
    again = hrm("index", "docs")
    assert again.code == 0
    assert "1 unchanged, 1 removed: 1 documents" in again.out
    with DocumentIndex("runs/index.db") as index:
        assert [hit.file for hit in index.search("Who sleeps? The whale?")] == ["b.md"]


def test_what_cannot_be_read_is_said(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "broken.pdf").write_bytes(pdf("x")[:60])
    (tmp_path / "docs" / "program").write_bytes(b"\0\1")
    (tmp_path / "docs" / "a.txt").write_text("The whale sings.")
    done = hrm("index", "docs", "--store", "x.db")
    assert done.code == 1
    assert "broken.pdf" in done.out and "NUL" in done.out and "1 documents" in done.out
    (tmp_path / "docs" / "broken.pdf").unlink()
    assert hrm("index", "docs", "--store", "x.db").code == 0
    (tmp_path / "docs" / "a.txt").unlink()
    assert hrm("index", "docs", "--store", "x.db").code == 1


def test_mistakes_are_explained(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("text")
    (tmp_path / "not.db").write_text("hello " * 100)
    for words in (
        ("missing",), ("empty",), ("docs", "--store", "not.db"), ("docs", "--strategy", "recursiv"),
        ("docs", "--size", "0"), ("docs", "--overlap", "2"), ("docs", "--tokenizer", "no-such"),
    ):  # fmt: skip
        done = hrm("index", *words, "--json")
        assert done.code == 2, words
        assert set(json.loads(done.err.splitlines()[-1])) == {"error", "hint"}
        assert "Traceback" not in done.err
