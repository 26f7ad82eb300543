"""Citations against the stored text: what is there to the character is accepted,
and nothing else.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.retrieval.citations.quotes import (
    Citation,
    CitationVerdict,
    QuotableText,
    find_quote,
    resolve,
)
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
        assert (
            within.citation["quote"]
            == TEXT[start:end]
            == TEXT[within.citation["start"] : within.citation["end"]]
        )


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
    for quote, own in (
        ("It's well-known", text[:16]),
        ('- "so" he', text[17:26]),
        ("’s w", text[2:7]),
    ):
        span = find_quote(text, quote)
        assert span is not None and text[slice(*span)] == own
    assert find_quote(text, "well known") is find_quote(text, " \n") is None
    assert find_quote(text, "said", 0, len(text) - 2) is None


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("He was unable to go.", "able to go"), ("It is impossible.", "It is imp"), ("a non-toxic dye", "toxic dye"),
        ("the e‑mail came", "mail came"), ("a rate of 12.5 percent", "5 percent"), ("over 1,000 ships", "over 1"),
        ("at -5 degrees", "5 degrees"), ("at −5 degrees", "5 degrees"), ("They can't swim", "They can"),
        ("They can’t swim", "They can"), ("snake_case", "case"), ("cafe\u0301s are open", "cafe"), ("Straße", "Stra"),
        ("un\nable: unable\nto", "able to"), ("👩\u200d🔬 works", "👩"),
    ],
)  # fmt: skip
def test_a_quote_that_begins_or_ends_within_a_word_is_not_found(text: str, quote: str) -> None:
    assert QuotableText(text).find(quote) is None


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("unable, but able to go", "able to go"), ("unable  but able\nto go", "able to go"),
        ("東京は首都です。", "京は首"), ("the state—of art", "of art"), ("pages 3–5", "5"), ("(able)", "able"),
        ("l’eau froide", "eau froide"), ("the whale's song", "the whale"), ("a well-known fact", "well-known"),
        ("grew 5-fold.", "5-fold."), ("ปลาวาฬร้องเพลง", "ร้องเพลง"), ("See §12.", "12"), ("in 2019. 3 ships", "in 2019"),
        ("x = f(able)", "x = f("), ("costs $5", "5"), ("GPT4很好", "很好"), ("as 'twas said", "as"),
    ],
)  # fmt: skip
def test_one_at_words_is(text: str, quote: str) -> None:
    span = QuotableText(text).find(quote)
    assert span is not None and text[slice(*span)].split() == quote.split()


def test_a_quote_that_is_often_within_words_takes_no_time() -> None:
    text = "xab " * 200_000 + "ab  c"
    clock = time.process_time()
    assert QuotableText(text).find("ab") == (800_000, 800_002)
    assert QuotableText(text).find("ab c") == (800_000, 800_005)
    assert time.process_time() - clock < 20


def test_a_changed_document(index: DocumentIndex, tmp_path: Path) -> None:
    (hit,) = index.search("whale")
    old = ("The whale sings", hit.file, 7, 22, hit.revision)
    assert resolve(index, *old).accepted
    (tmp_path / "docs" / "whales.txt").write_text(TEXT.replace("sings", "hums"), encoding="utf-8")
    index_folder(index, tmp_path / "docs", files_in(tmp_path / "docs"))
    assert resolve(index, *old).verdict is CitationVerdict.CHANGED
    assert resolve(index, "Grüße!", hit.file, 0, 6, hit.revision).accepted
