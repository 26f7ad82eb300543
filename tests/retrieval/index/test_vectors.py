"""Vectors beside the chunks: their model, their search results, and their updates with the
documents.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from hrm_agent.errors import ConfigError, RetrievalError
from hrm_agent.retrieval.embeddings import StaticEmbeddings, load_embeddings, name_of, vectors_of
from hrm_agent.retrieval.index import (
    Chunking,
    DocumentIndex,
    IndexRetriever,
    files_in,
    index_folder,
)
from hrm_agent.retrieval.index.fusion import fused

TEXTS = {
    "sea.txt": "The blue whale is the largest mammal that ever lived.",
    "road.txt": "An automobile has an engine and four wheels.",
    "sky.txt": "Swallows fly south before the winter.",
}


class Letters(Embeddings):
    """Embeddings that count letters, loadable by `package.module:attribute`."""

    size = 26

    def embed_query(self, text: str) -> list[float]:
        return [float(text.lower().count(chr(97 + n))) for n in range(self.size)]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture(scope="module")
def static() -> StaticEmbeddings:
    return StaticEmbeddings()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "docs").mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def index(tmp_path: Path, folder: Path, static: StaticEmbeddings) -> Iterator[DocumentIndex]:
    with DocumentIndex(tmp_path / "index.db", create=True, embeddings=static) as index:
        update(index, folder)
        yield index


def update(index: DocumentIndex, folder: Path) -> None:
    index_folder(index, folder, files_in(folder), chunking=Chunking(size=64))


def test_other_words_are_found_by_vectors(index: DocumentIndex) -> None:
    question = "a car with a motor"
    best, *_ = index.search(question, 3, "vectors")
    assert best.file == "road.txt" and best.text == TEXTS["road.txt"]
    assert (best.words_rank, best.vectors_rank) == (None, 1) and 0 < best.score <= 1
    assert len(index.search(question, 2, "vectors")) == 2
    assert index.search("", 2, "vectors") == index.search("", 2, "hybrid") == []
    assert len(index.search(".", 10, "vectors")) == 3


def test_both_rankings_are_fused(index: DocumentIndex) -> None:
    words, vectors, both = (
        index.search("largest wheels", 3, mode) for mode in ("words", "vectors", "hybrid")
    )
    ranks = [
        {hit.file: rank for rank, hit in enumerate(hits, start=1)} for hits in (words, vectors)
    ]
    assert len(both) == 3 and len(words) == 2
    for hit in both:
        assert (hit.words_rank, hit.vectors_rank) == (
            ranks[0].get(hit.file),
            ranks[1].get(hit.file),
        )
        assert hit.score == pytest.approx(
            sum(1 / (60 + of[hit.file]) for of in ranks if hit.file in of)
        )
    assert [hit.score for hit in both] == sorted((hit.score for hit in both), reverse=True)
    retriever = IndexRetriever(index=index, k=1, mode="hybrid")
    assert retriever.invoke("largest wheels")[0].metadata["file"] == both[0].file


def test_fusion_prefers_what_both_have() -> None:
    placed = fused([(1, 9.0), (2, 8.0), (3, 1.0)], [(4, 0.9), (2, 0.8), (5, 0.1)])
    assert [one.chunk for one in placed] == [2, 1, 4, 3, 5]
    assert [one.chunk for one in fused([(7, 2.0), (6, 1.0)], None)] == [7, 6]


def test_vectors_come_and_go_with_their_documents(index: DocumentIndex, folder: Path) -> None:
    with DocumentIndex(index.path) as reader:
        assert reader.embeddings == "static:256"
        assert reader.search("a car", 1, "vectors")[0].file == "road.txt"
        (folder / "road.txt").write_text("Bread is baked from flour.")
        (folder / "sky.txt").rename(folder / "birds.txt")
        (folder / "sea.txt").unlink()
        for number in range(40):
            (folder / f"{number}.txt").write_text(f"Bicycle number {number} has pedals.")
        update(index, folder)
        for one in (index, reader):
            assert one.problems() == []
            assert one.search("loaf", 1, "vectors")[0].text == "Bread is baked from flour."
            assert one.search("migration of birds", 1, "vectors")[0].file == "birds.txt"
            assert len(one.search("anything", 100, "vectors")) == one.size()[1] == 42


def test_vectors_may_be_added_later_and_taken_out(
    folder: Path, tmp_path: Path, static: StaticEmbeddings
) -> None:
    path = tmp_path / "late.db"
    with DocumentIndex(path, create=True) as index:
        update(index, folder)
        with pytest.raises(RetrievalError, match="has no vectors"):
            index.search("car", 1, "hybrid")
    with DocumentIndex(path, create=True, embeddings=static) as index:
        (folder / "new.txt").write_text("A new text.")
        update(index, folder)
        assert index.without_vectors() == sorted(TEXTS)
        assert index.search("car", 5, "vectors")[0].file == "new.txt"
        for file in index.without_vectors():
            index.add_vectors(file)
        assert index.search("car", 1, "vectors")[0].file == "road.txt"
        assert index.problems() == []
        index.drop_vectors()
        assert index.embeddings is None and index.search("wheels", 1)[0].file == "road.txt"
        update(index, folder)


def test_other_embeddings_are_refused(index: DocumentIndex, tmp_path: Path, folder: Path) -> None:
    for other in ("static:64", Letters()):
        with pytest.raises(RetrievalError, match="static:256"):
            DocumentIndex(index.path, embeddings=other)
    with DocumentIndex(tmp_path / "own.db", create=True, embeddings=Letters()) as own:
        update(own, folder)
        own.search("whale", 1, "vectors")
    with (
        DocumentIndex(tmp_path / "own.db") as own,
        pytest.raises(RetrievalError, match=r"Letters.*embeddings="),
    ):
        own.search("whale", 1, "vectors")
    with sqlite3.connect(tmp_path / "own.db") as forged:
        forged.execute("UPDATE about SET value = 'os:abort' WHERE name = 'embeddings'")
    with DocumentIndex(tmp_path / "own.db") as own, pytest.raises(RetrievalError, match="os:abort"):
        own.search("whale", 1, "vectors")
    with sqlite3.connect(tmp_path / "own.db") as mended:
        mended.execute(
            "UPDATE about SET value = ? WHERE name = 'embeddings'", (name_of(Letters()),)
        )
    longer = Letters()
    longer.size = 30
    with (
        DocumentIndex(tmp_path / "own.db", embeddings=longer) as own,
        pytest.raises(RetrievalError, match="30 numbers"),
    ):
        own.search("whale", 1, "vectors")


def test_embeddings_by_their_string() -> None:
    assert isinstance(load_embeddings(f"{__name__}:Letters"), Letters)
    assert load_embeddings("static:64").embed_query("whale") != load_embeddings(
        "static:128"
    ).embed_query("whale")
    for wrong in (
        "static:65",
        "static:x",
        "nothing",
        f"{__name__}:TEXTS",
        "no.such:thing",
        f"{__name__}:none",
    ):
        with pytest.raises(ConfigError):
            load_embeddings(wrong)
    broken = Letters()
    broken.embed_documents = lambda texts: [[float("nan")] for _ in texts]  # type: ignore[method-assign]
    with pytest.raises(RetrievalError, match="for 1 texts"):
        vectors_of(broken, ["a"])
    broken.embed_documents = lambda texts: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(RetrievalError, match="ZeroDivisionError"):
        vectors_of(broken, ["a"])


def test_static_vectors_of_any_text(static: StaticEmbeddings) -> None:
    texts = ["", "whale", "\ud800", "</s> <unk> whale", "\0", "日本", "a" * 10_000]
    rows = static.vectors(texts)
    lengths = np.linalg.norm(rows, axis=1)
    assert lengths[0] == 0 and np.allclose(lengths[1:], 1)
    assert np.allclose(rows[1], static.embed_query("whale"))
    assert static.vectors([]).shape == (0, 256)


@pytest.mark.slow
def test_static_vectors_are_the_librarys() -> None:
    """Runs in another process, since the library configures logging when it is imported."""
    program = (
        "import pathlib, wordllama; from hrm_agent.retrieval.embeddings import"
        " StaticEmbeddings\ntexts = [pathlib.Path(name).read_text()[:3000] for name in"
        " ('README.md', 'docs/guide.md', 'docs/tools.md')]\nhome ="
        " pathlib.Path(wordllama.__file__).parent\ntheirs ="
        " wordllama.WordLlama.load(cache_dir=home, disable_download=True).embed(texts,"
        " norm=True)\nprint(abs(theirs - StaticEmbeddings().vectors(texts)).max())"
    )
    project = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=project
    )
    assert float(done.stdout) < 1e-5
