"""Citations against the stored text: what is there to the character is accepted, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.retrieval.citations import Citation, CitationVerdict, find_quote, resolve
from hrm_agent.retrieval.index import DocumentIndex, files_in, index_folder

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
        exact = resolve(index, TEXT[start:end], hit.file, start, end, hit.revision)
        cited = Citation(source=hit.file, start=start, end=end, quote=TEXT[start:end], url="")
        assert exact.accepted and exact.citation == cited
        within = resolve(index, TEXT[start:end], hit.file, hit.start, hit.end, hit.revision)
        assert within.accepted and within.citation is not None
        assert within.citation["quote"] == TEXT[start:end] == TEXT[within.citation["start"] : within.citation["end"]]


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
        ("whales.txt", 17, 30, "sings at n", CitationVerdict.RESPACED),
        ("whales.txt", 18, 30, "sings at n", CitationVerdict.MISPLACED),
        ("whales.txt", 17, 26, "sings at n", CitationVerdict.MISPLACED),
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
    resolution = resolve(index, quote, file, start, end)
    assert resolution.verdict is verdict and not resolution.accepted
    if (cited := resolution.citation) is not None:
        assert cited["quote"] == TEXT[cited["start"] : cited["end"]]
        assert cited["quote"].split() == quote.split()


def test_a_quote_has_the_texts_own_characters() -> None:
    text = "It’s  well‑known – “so”\nhe said."
    for quote, own in (("It's well-known", text[:16]), ('- "so" he', text[17:26]), ("’s w", text[2:7])):
        span = find_quote(text, quote)
        assert span is not None and text[slice(*span)] == own
    assert find_quote(text, "well known") is find_quote(text, " \n") is None
    assert find_quote(text, "said", 0, len(text) - 2) is None


def test_a_changed_document(index: DocumentIndex, tmp_path: Path) -> None:
    (hit,) = index.search("whale")
    old = ("The whale sings", hit.file, 7, 22, hit.revision)
    assert resolve(index, *old).accepted
    (tmp_path / "docs" / "whales.txt").write_text(TEXT.replace("sings", "hums"), encoding="utf-8")
    index_folder(index, tmp_path / "docs", files_in(tmp_path / "docs"))
    assert resolve(index, *old).verdict is CitationVerdict.CHANGED
    assert resolve(index, "Grüße!", hit.file, 0, 6, hit.revision).accepted
