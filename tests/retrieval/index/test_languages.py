"""Words of several languages are found in any of their forms."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.errors import ConfigError, RetrievalError
from hrm_agent.retrieval import languages
from hrm_agent.retrieval.index import Chunking, DocumentIndex, database, files_in, index_folder
from hrm_agent.runtime.replay.effects import Effects, watching

TEXTS = {
    "de.txt": (
        "Die Größe der Straße wird in Metern gemessen. Viele Häuser stehen in der Nähe der alten"
        " Brücke."
    ),
    "el.txt": (
        "Ο Οδυσσεύς γύρισε στην Ιθάκη μετά από είκοσι χρόνια. Ο λόγος των ανθρώπων ήταν αληθινός."
    ),
    "tr.txt": "İstanbul, Türkiye'nin en kalabalık şehridir. ISPANAK ve kitaplar pazarda satılır.",
    "ru.txt": "Мы читали книги в городской библиотеке. Новогодняя ёлка стояла на площади.",
    "en.txt": (
        "The blue whale is the largest animal that has ever lived. It eats krill all day long."
    ),
}
QUESTIONS = {
    "de.txt": [
        "Größe",
        "GRÖSSE",
        "Straße",
        "STRASSE",
        "strasse",
        "Straßen",
        "ein Haus",
        "Brücken",
        "brucke",
    ],
    "el.txt": [
        "Οδυσσεύς",
        "οδυσσευς",
        "ΟΔΥΣΣΕΥΣ",
        "Οδυσσέα",
        "λόγος",
        "λόγου",
        "ΛΌΓΟΣ",
        "άνθρωπος",
    ],
    "tr.txt": ["İstanbul", "istanbul", "ISTANBUL", "İSTANBUL", "ıspanak", "ISPANAK", "kitap"],
    "ru.txt": ["книга", "КНИГАМИ", "библиотека", "елки"],
    "en.txt": ["whales", "eating", "ANIMALS"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "docs").mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def filled(path: Path, folder: Path | None = None, language: str | None = None) -> DocumentIndex:
    index = DocumentIndex(path, create=True, language=language)
    index_folder(index, folder, files_in(folder), chunking=Chunking(size=64))
    return index


def not_found(index: DocumentIndex) -> list[str]:
    asked = [(file, question) for file, questions in QUESTIONS.items() for question in questions]
    return [
        question
        for file, question in asked
        if [hit.file for hit in index.search(question)] != [file]
    ]


def test_each_document_is_found_in_its_own_language(tmp_path: Path, folder: Path) -> None:
    with filled(tmp_path / "index.db", folder) as index:
        assert not_found(index) == []
        assert {file: index.document(file).language for file in TEXTS} == {
            file: file[:2] for file in TEXTS
        }  # type: ignore[union-attr]
        assert index.search("Größe")[0].language == "de"
        assert index.problems() == []


def test_a_language_that_is_told_is_on_record(tmp_path: Path, folder: Path) -> None:
    """The language may be changed. Indexed documents are then analysed again in the new language,
    and so are later ones.
    """
    (folder / "short.txt").write_text("Häuser", encoding="utf-8")
    with filled(tmp_path / "index.db", folder, "de") as index:
        assert (index.language, index.renewed) == ("de", 0)
        assert index.search("Haus", k=9)[0].language == "de" and len(index.search("Haus", k=9)) == 2
    with filled(tmp_path / "index.db", folder) as index:
        assert (index.language, index.renewed) == ("de", 0)
    with filled(tmp_path / "index.db", folder, language="none") as index:
        assert (index.language, index.renewed) == ("", 6)
        assert index.search("Haus") == [] and {hit.file for hit in index.search("HÄUSER")} == {
            "short.txt",
            "de.txt",
        }
        assert index.problems() == []
    with filled(tmp_path / "index.db", folder, language="auto") as index:
        assert index.renewed == 6 and not_found(index) == []
        (folder / "short.txt").unlink()
        index_folder(index, folder, files_in(folder), chunking=Chunking(size=64))
        assert index.problems() == []
    with pytest.raises(ConfigError, match="deutsch"):
        DocumentIndex(tmp_path / "index.db", language="deutsch")


def test_words_in_another_engine_are_indexed_anew(tmp_path: Path, folder: Path) -> None:
    with filled(tmp_path / "index.db", folder):
        pass
    with sqlite3.connect(tmp_path / "index.db") as connection:
        connection.executescript(
            "INSERT INTO words (words) VALUES ('delete-all');"
            "INSERT INTO about VALUES ('engine', 'tantivy')"
        )
    with DocumentIndex(tmp_path / "index.db") as index:
        assert index.renewed == len(TEXTS) and not_found(index) == [] and index.problems() == []
    with DocumentIndex(tmp_path / "index.db") as index:
        assert index.renewed == 0


def test_words_of_other_stemmers_are_indexed_anew(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that was opened before raises an error, since its lookups and deletions would not
    match the new terms.
    """
    monkeypatch.setattr(database, "analysis_version", lambda: "older")
    with filled(tmp_path / "index.db", folder) as older:
        monkeypatch.undo()
        with DocumentIndex(tmp_path / "index.db") as index:
            assert index.renewed == len(TEXTS) and not_found(index) == [] and index.problems() == []
        monkeypatch.setattr(database, "analysis_version", lambda: "older")
        with pytest.raises(RetrievalError, match="Open the index again"):
            older.search("whale")
        with pytest.raises(RetrievalError, match="Open the index again"):
            older.remove("en.txt")


def test_an_index_of_the_version_before_is_brought_forward(tmp_path: Path, folder: Path) -> None:
    with filled(tmp_path / "index.db", folder) as index:
        before = index.sources()
    with sqlite3.connect(tmp_path / "index.db") as connection:
        connection.executescript(
            "DROP INDEX documents_by_language; ALTER TABLE documents DROP COLUMN language; DROP"
            " TABLE words;CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='porter"
            " unicode61 remove_diacritics 2');DELETE FROM about WHERE name IN ('analysis',"
            " 'language'); PRAGMA user_version=2"
        )
    with DocumentIndex(tmp_path / "index.db") as index:
        assert index.renewed == len(TEXTS) and index.sources() == before
        assert not_found(index) == [] and index.problems() == []
        report = index_folder(index, folder, files_in(folder), chunking=Chunking(size=64))
        assert report.counts["unchanged"] == len(TEXTS)
    with DocumentIndex(tmp_path / "index.db") as index:
        assert index.renewed == 0


def test_the_model_that_guesses_is_no_effect_of_the_node_that_asks() -> None:
    """The model is unpacked into a temporary file, which a replay without effects would refuse."""
    languages._model.cache_clear()
    guessed: list[str] = []

    def node(_: MessagesState) -> dict[str, Any]:
        guessed.append(
            languages.guess_language(
                "The quick brown fox jumps over the lazy dog and then it goes home."
            )
        )
        return {"messages": []}

    graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile()
    with watching(effects := Effects(refuse=True)):
        graph.invoke({"messages": []})
    assert (guessed, effects.found) == (["en"], [])
