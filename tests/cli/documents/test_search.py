"""`hrm-agent search`, and `hrm-agent index` with vectors and several folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support.retrieval.documents import pdf


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (docs := tmp_path / "docs").mkdir()
    (docs / "lamp.txt").write_text(
        "x " * 400 + "Press the switch twice for the night light. " + "y " * 400
    )
    (docs / "manual.pdf").write_bytes(pdf("The first page.", "The second page has a kettle."))
    return docs


def test_hits_have_their_places(hrm: Command, docs: Path) -> None:
    assert hrm("index", "docs").code == 0
    shown = hrm("search", "night", "light?")
    assert shown.code == 0
    assert (
        "1. lamp.txt 0-" in shown.out
        and "for the night light" in shown.out
        and "(words 1)" in shown.out
    )
    assert len(max(shown.out.splitlines(), key=len)) < 400
    found = hrm("search", "--json", "-k", "1", "a kettle")
    (hit,) = found.json["hits"]
    assert (
        found.json["mode"] == "words"
        and hit["file"] == "manual.pdf"
        and hit["page"] == 2 - (hit["start"] == 0)
    )
    assert hit["end"] - hit["start"] == len(hit["text"])
    nothing = hrm("search", "zebra")
    assert nothing.code == 1 and "Nothing was found" in nothing.out


def test_documents_are_printed_as_they_are(hrm: Command, docs: Path) -> None:
    """Markup in documents is not interpreted by the terminal."""
    text = "Press :x: or :smile: for [bold]help[/bold] [/nothing] \\[red]."
    (docs / "marks :x: [b].txt").write_text(text)
    (docs / "skipped :x: [i].txt").touch()
    indexed, shown = hrm("index", "docs"), hrm("search", "help", "nothing")
    assert (indexed.code, shown.code) == (0, 0)
    assert text in shown.out and "1. marks :x: [b].txt 0-" in shown.out
    assert "skipped :x: [i].txt" in indexed.out


def test_the_language_is_told_or_guessed(hrm: Command, docs: Path) -> None:
    (docs / "house.txt").write_text("Viele Häuser stehen an der Straße.", encoding="utf-8")
    indexed = hrm("index", "docs", "--json").json
    assert (indexed["language"], indexed["warnings"]) == ("auto", [])
    found = hrm("search", "--json", "STRASSEN").json["hits"]
    assert [(hit["file"], hit["language"]) for hit in found] == [("house.txt", "de")]
    assert "Viele Häuser" in hrm("search", "haus").out
    changed = hrm("index", "docs", "--language", "en", "--json").json
    assert (
        changed["language"] == "en" and "3 documents were indexed again" in changed["warnings"][0]
    )
    assert hrm("search", "haus").code == 1 and hrm("search", "HÄUSER").code == 0
    refused = hrm("index", "docs", "--language", "german")
    assert refused.code == 2 and "no language 'german'" in refused.err


def test_what_is_hidden_or_outside_is_asked_for(hrm: Command, docs: Path, tmp_path: Path) -> None:
    (docs / "page.html").write_text("<p>A walrus.<p hidden>An unseen zebra.")
    (tmp_path / "else.txt").write_text("An outside okapi.")
    (docs / "link.txt").symlink_to(tmp_path / "else.txt")
    indexed = hrm("index", "docs")
    assert indexed.code == 0 and "--follow-links reads it" in indexed.out
    assert hrm("search", "zebra").code == hrm("search", "okapi").code == 1
    assert hrm("index", "docs", "--hidden-text", "--follow-links").code == 0
    assert hrm("search", "zebra").code == hrm("search", "okapi").code == 0
    assert hrm("index", "docs").code == 0
    assert hrm("search", "zebra").code == hrm("search", "okapi").code == 1


def test_vectors(hrm: Command, docs: Path) -> None:
    assert hrm("index", "docs", "--store", "x.db").code == 0
    assert hrm("search", "--store", "x.db", "--mode", "vectors", "lamp").code == 2
    added = hrm(
        "index",
        "docs",
        "--store",
        "x.db",
        "--vectors",
        "static:64",
        "--json",
    ).json
    assert (added["unchanged"], added["vectors"], added["warnings"]) == (2, "static:64", [])
    found = hrm(
        "search", "--store", "x.db", "--mode", "hybrid", "--json", "boiling water in a kettle"
    ).json
    assert found["mode"] == "hybrid" and found["hits"][0]["file"] == "manual.pdf"
    assert found["hits"][0]["words_rank"] == found["hits"][0]["vectors_rank"] == 1
    refused = hrm("index", "docs", "--store", "x.db", "--vectors", "static", "--json")
    assert (
        refused.code == 2 and "--vectors none" in json.loads(refused.err.splitlines()[-1])["hint"]
    )
    back = hrm("index", "docs", "--store", "x.db", "--vectors", "none", "--json").json
    assert back["vectors"] is None
    assert hrm("search", "--store", "x.db", "kettle").code == 0


def test_several_folders(hrm: Command, docs: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "kettle.txt").write_text("Another kettle.")
    done = hrm("index", "docs", "more", "--json").json
    assert done["documents"] == 3 and done["folders"] == {
        "": str(docs),
        "more": str(tmp_path / "more"),
    }
    assert hrm("search", "another", "--json").json["hits"][0]["file"] == "more//kettle.txt"
    removed = hrm("index", "--remove", "docs")
    assert removed.code == 0 and "2 removed: 1 documents" in removed.out
    assert hrm("search", "night").code == 1


def test_mistakes_are_explained(hrm: Command, docs: Path) -> None:
    for words in (("search", "x"), ("search",), ("index",), ("index", "docs", "--vectors", "no.such:thing"),
                  ("index", "--remove", "docs")):  # fmt: skip
        done = hrm(*words, "--json")
        assert done.code == 2, words
        assert (
            set(json.loads(done.err.splitlines()[-1])) == {"error", "hint"}
            and "Traceback" not in done.err
        )
    assert not Path("runs").exists()
