"""Citations against the stored text: what is there to the character is accepted, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.retrieval.index import Citation, CitationVerdict, DocumentIndex, files_in, index_folder, resolve

TEXT = "Grüße! The whale sings\nat night. Nobody 😀 knows why. The whale sleeps."
LENGTH = len(TEXT)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[DocumentIndex]:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "whales.txt").write_text(TEXT, encoding="utf-8")
    with DocumentIndex(tmp_path / "index.db", create=True) as index:
        index_folder(index, tmp_path / "docs", files_in(tmp_path / "docs"))
        yield index


def test_what_was_found_resolves(index: DocumentIndex) -> None:
    (hit,) = index.search("whale")
    chooser = random.Random(1)
    for _ in range(200):
        start, end = sorted(chooser.sample(range(len(TEXT) + 1), 2))
        if not TEXT[start:end].strip():
            continue
        exact = resolve(Citation(hit.file, start, end, TEXT[start:end], hit.revision), index)
        assert exact.accepted and (exact.start, exact.end, exact.text) == (start, end, TEXT[start:end])
        within = resolve(Citation(hit.file, hit.start, hit.end, TEXT[start:end], hit.revision), index)
        assert within.accepted and within.text == TEXT[start:end] == TEXT[within.start : within.end]


@pytest.mark.parametrize(
    ("file", "start", "end", "quote", "verdict"),
    [
        ("whales.txt", 0, LENGTH, "The whale dances", CitationVerdict.FABRICATED),
        ("whales.txt", 0, LENGTH, "the whale sings", CitationVerdict.FABRICATED),
        ("whales.txt", 0, LENGTH, "The whale ... why", CitationVerdict.FABRICATED),
        ("whales.txt", 0, LENGTH, "", CitationVerdict.FABRICATED),
        ("whales.txt", 0, LENGTH, " \n", CitationVerdict.FABRICATED),
        ("whales.txt", 0, LENGTH, ".*", CitationVerdict.FABRICATED),
        ("whales.txt", 0, LENGTH, "sings at night", CitationVerdict.RESPACED),
        ("whales.txt", 0, 6, "The whale sings", CitationVerdict.MISPLACED),
        ("whales.txt", 7, 21, "The whale sings", CitationVerdict.MISPLACED),
        ("whales.txt", 60, 7, "The whale sings", CitationVerdict.MISPLACED),
        ("whales.txt", -64, LENGTH, "The whale sings", CitationVerdict.MISPLACED),
        ("whales.txt", 0, 10_000, "The whale sings", CitationVerdict.MISPLACED),
        ("sharks.txt", 0, LENGTH, "The whale sings", CitationVerdict.UNKNOWN),
    ],
)
def test_what_is_not_there_is_rejected(
    index: DocumentIndex, file: str, start: int, end: int, quote: str, verdict: CitationVerdict
) -> None:
    resolution = resolve(Citation(file, start, end, quote), index)
    assert resolution.verdict is verdict and not resolution.accepted
    if resolution.text is not None:
        assert resolution.text == TEXT[resolution.start : resolution.end]
        assert resolution.text.split() == quote.split()


def test_a_changed_document(index: DocumentIndex, tmp_path: Path) -> None:
    (hit,) = index.search("whale")
    old = Citation(hit.file, 7, 22, "The whale sings", hit.revision)
    assert resolve(old, index).accepted
    (tmp_path / "docs" / "whales.txt").write_text(TEXT.replace("sings", "hums"), encoding="utf-8")
    index_folder(index, tmp_path / "docs", files_in(tmp_path / "docs"))
    assert resolve(old, index).verdict is CitationVerdict.CHANGED
    untouched = Citation(hit.file, 0, 6, "Grüße!", hit.revision)
    assert resolve(untouched, index).accepted
