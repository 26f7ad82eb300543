"""`hrm-agent chunk`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.retrieval import load_tokenizer
from tests.cli.conftest import Command

SECTION = (
    "Whales sing at night. They are mammals, and they breathe. A calf drinks milk for a year or"
    " so.\n\n"
)
TEXT = "".join(f"# Part {number}\n\n{SECTION * 4}" for number in range(6))


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "whales.md").write_text(TEXT)
    return "whales.md"


def test_chunks_are_listed(hrm: Command, text: str) -> None:
    done = hrm("chunk", text, "--size", "60", "--json")
    assert done.code == 0
    assert (done.json["strategy"], done.json["characters"]) == ("markdown", len(TEXT))
    chunks, pieces = done.json["chunks"], load_tokenizer("pieces")
    assert len(chunks) > 6
    for before, chunk in zip([None, *chunks], chunks, strict=False):
        assert TEXT[chunk["start"] : chunk["end"]] == chunk["text"]
        assert chunk["tokens"] == pieces.count(chunk["text"]) <= 60
        shared = TEXT[chunk["start"] : before["end"]] if before else ""
        assert chunk["overlap"] == pieces.count(shared)
    assert sum(chunk["overlap"] for chunk in chunks) > 0
    people = hrm(
        "chunk",
        text,
        "--strategy",
        "fixed",
        "--tokenizer",
        "character",
        "--size",
        "90",
        "--overlap",
        "0",
    )
    assert people.out.splitlines()[1].split()[:5] == ["0", "0:90", "90", "0", "#"]
    assert people.out.splitlines()[-1].endswith(
        "chunks by fixed, of at most 90 tokens of character"
    )


def test_mistakes_are_explained(hrm: Command, text: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary").write_bytes(b"\0\1")
    for words, said in (
        (("missing.txt",), "There is no file missing.txt"),
        ((".",), "is a folder"),
        (("empty.txt",), "No text can be read from empty.txt"),
        (("binary",), "NUL bytes"),
        ((text, "--max-mb", "0.0001"), "only files of up to 104 bytes"),
        ((text, "--tokenizer", "peices"), "Did you mean 'pieces'?"),
        ((text, "--size", "0"), "at least 1"),
        ((text, "--size", "many"), "invalid int value"),
        ((text, "--overlap", "1.0"), "Write 0.15 for 15 %"),
        ((text, "--overlap", "nan"), "Write 0.15 for 15 %"),
        ((text, "--strategy", "recursiv"), "Did you mean 'recursive'?"),
    ):
        done = hrm("chunk", *words, "--json")
        assert done.code == 2, words
        assert said in " ".join(json.loads(done.err.splitlines()[-1]).values()), (words, done.err)
