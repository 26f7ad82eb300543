"""`hrm-agent chunk`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.errors import RetrievalError
from hrm_agent.retrieval import STRATEGIES, load_tokenizer
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.chunking.comparison import compare, sentence_ends, splitters_at_hand
from hrm_agent.retrieval.chunking.libraries import LIBRARIES
from hrm_agent.retrieval.chunking.plot import headings, lane, paragraph_starts, window
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


def test_strategies_side_by_side(hrm: Command, text: str, tmp_path: Path) -> None:
    libraries = ["semantic-text-splitter", "semchunk"]
    words = ("chunk", text, "--compare", "--size", "60")
    named = [word for name in [*STRATEGIES, *libraries] for word in ("--strategy", name)]
    done = hrm(*words, *named, "--picture", "p.png", "--json")
    assert done.code == 0
    rows = {row["strategy"]: row for row in done.json["strategies"]}
    assert [*rows] == [*STRATEGIES, *libraries]
    for name in STRATEGIES:
        row = rows[name]
        assert (
            row["over_limit"]
            == row["wrong_spans"]
            == row["cut_graphemes"]
            == row["lost_characters"]
            == 0
        )
        assert row["most_tokens"] <= 60
    assert rows["fixed"]["mean_overlap"] == 0 < rows["recursive"]["mean_overlap"]
    assert rows["markdown"]["cut_sentences"] == 0 < rows["fixed"]["cut_sentences"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    people = hrm(
        *words,
        "--strategy",
        "fixed",
        "--strategy",
        "semchunk",
        "--span",
        "0:400",
        "--picture",
        "p.svg",
    )
    assert [line.split()[0] for line in people.out.splitlines()[2:4]] == ["fixed", "semchunk"]
    assert "characters 0 to 400: █ a chunk, ░ the next one, ▒ in both" in people.out
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_the_picture_shows_spans_and_overlaps() -> None:
    (cutting,) = compare(TEXT, ["sliding"], load_tokenizer("character"), size=100, overlap=0.2)
    assert window(TEXT, [cutting]) == (0, round(24 * len(TEXT) / len(cutting.chunks)))
    drawn = lane(cutting, (0, 200), 200)
    first, second, third = cutting.chunks[:3]
    assert drawn.count("x", 0, first.end) == first.end - second.start == cutting.overlaps[0]
    assert drawn == "".join(
        "x" if second.start <= i < first.end or third.start <= i < second.end
        else "b" if second.start <= i < second.end else "a"
        for i in range(200)
    )  # fmt: skip
    assert headings(TEXT, (0, 500)) == [(0, "Part 0"), (len(TEXT) // 6, "Part 1")]
    assert paragraph_starts(TEXT, (0, 200)) == [10, 10 + len(SECTION)]


@pytest.mark.filterwarnings("error")
def test_headings_are_no_formulas(hrm: Command, tmp_path: Path) -> None:
    (tmp_path / "$a.md").write_text("# From $5 to $x^{\n\ntext\n\n# 日本語 \U0001f433\n\ntext\n")
    assert hrm("chunk", "$a.md", "--picture", "p.png", "--size", "9").code == 0


def test_where_sentences_and_words_are_cut() -> None:
    text = 'One ends. "Two ends!" Three\n\n- a\n- b\n日本。語'
    assert sorted(sentence_ends(text)) == [
        text.index(part) for part in ('"Two', "Three", "- a", "- b", "語")
    ]
    (cutting,) = compare("ab cd. ef gh.", ["fixed"], load_tokenizer("character"), size=4, overlap=0)
    assert [chunk.text for chunk in cutting.chunks] == ["ab c", "d. e", "f gh", "."]
    assert (cutting.cut_sentences, cutting.cut_words) == (3, 2)


def test_a_library_that_fails_is_one_row(
    hrm: Command, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> list[Chunk]:
        raise RetrievalError("semchunk fails on this text: boom.")

    monkeypatch.setattr("hrm_agent.retrieval.chunking.comparison.library_spans", fail)
    words = ("chunk", text, "--strategy", "semchunk")
    done = hrm(*words, "--strategy", "fixed", "--compare", "--picture", "p.png")
    assert (done.code, "semchunk: semchunk fails on this text: boom." in done.out) == (0, True)
    assert hrm(*words).code == 2
    assert splitters_at_hand() == [*STRATEGIES, *LIBRARIES]
    monkeypatch.setattr("hrm_agent.retrieval.chunking.comparison.find_spec", lambda name: None)
    assert splitters_at_hand() == [*STRATEGIES]


def test_wrong_spans_are_counted_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [Chunk(0, 3, 3, "abc"), Chunk(-1, 2, 3, "cde"), Chunk(9, 12, 3, "xyz")]
    monkeypatch.setattr(
        "hrm_agent.retrieval.chunking.comparison.library_spans", lambda *_, **__: said
    )
    (cutting,) = compare("abcdefgh", ["semchunk"], load_tokenizer("character"), size=3, overlap=0)
    assert cutting.faults.wrong_spans == 2
    assert [(chunk.start, chunk.end) for chunk in cutting.chunks] == [(0, 3), (2, 5), (9, 12)]
    assert cutting.overlaps[0] == 1
    assert cutting.faults.lost == 3


def test_mistakes_are_explained(hrm: Command, text: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary").write_bytes(b"\0\1")
    for words, said in (
        (("missing.txt",), "There is no file missing.txt"),
        ((".",), "is a folder"),
        (("empty.txt",), "No text can be read from empty.txt"),
        (("binary",), "NUL bytes"),
        ((text, "--max-mb", "0.0001"), "files up to 104"),
        ((text, "--tokenizer", "peices"), "Did you mean 'pieces'?"),
        ((text, "--size", "0"), "at least 1"),
        ((text, "--size", "many"), "invalid int value"),
        ((text, "--overlap", "1.0"), "For 15 % give 0.15"),
        ((text, "--overlap", "nan"), "For 15 % give 0.15"),
        ((text, "--strategy", "recursiv"), "Did you mean 'recursive'?"),
        ((text, "--strategy", "semchunck", "--compare"), "Did you mean 'semchunk'?"),
        ((text, "--strategy", "fixed", "--strategy", "code"), "Add --compare"),
        ((text, "--picture", "p.docx"), "cannot be written"),
        ((text, "--picture", "no/folder/p.png"), "cannot be written"),
        ((text, "--picture", "p.png", "--span", "9:1"), "is not a part of a text"),
    ):
        done = hrm("chunk", *words, "--json")
        assert done.code == 2, words
        assert said in " ".join(json.loads(done.err.splitlines()[-1]).values()), (words, done.err)
