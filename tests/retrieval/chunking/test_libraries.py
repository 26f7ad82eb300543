"""Splitters of other libraries by name, and the errors found in their chunks."""

from __future__ import annotations

import sys

import pytest

from benchmarks.chunking.check import ChunkTally, shared_tokens, tally
from benchmarks.chunking.libraries import LIBRARIES, library_chunks, placed
from hrm_agent.errors import ConfigError
from hrm_agent.retrieval import Chunk, load_tokenizer

TEXT = "".join(f"Line {i} says what line {i} says, and no more. It ends.\n\n" for i in range(60))
PIECES = load_tokenizer("pieces")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_cuts_with_our_tokenizer(name: str) -> None:
    chunks = library_chunks(TEXT, name, PIECES, size=64, overlap=0.25)
    assert len(chunks) > 10
    assert all(chunk.tokens == PIECES.count(chunk.text) for chunk in chunks)
    found = tally(TEXT, placed(TEXT, chunks), PIECES, 64)
    assert (found.wrong_spans, found.cut_graphemes, found.lost) == (0, 0, 0)


def test_wrong_spans_are_handed_on_and_can_be_mended() -> None:
    chunks = library_chunks(TEXT, "chonkie", PIECES, size=64, overlap=0.25)
    assert tally(TEXT, chunks, PIECES, 64).wrong_spans == len(chunks) - 1
    assert sum(shared_tokens(TEXT, chunks, PIECES)) == 0
    assert set(shared_tokens(TEXT, placed(TEXT, chunks), PIECES)) == {16}
    absent = Chunk(-1, 5, 2, "absent")
    assert placed(TEXT, [absent]) == [absent]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_meets_nothing_makes_nothing(name: str) -> None:
    assert library_chunks("\n ", name, PIECES, size=64, overlap=0.25) == []


def test_faults_are_counted() -> None:
    chunks = [Chunk(0, 2, 2, "ae"), Chunk(-1, 1, 2, "\u0301b"), Chunk(4, 9, 5, "c d")]
    found = tally("ae\u0301b c d", chunks, load_tokenizer("character"), 2)
    assert found == ChunkTally(wrong_spans=2, over_limit=1, cut_graphemes=1, lost=2)
    assert found.total == 6


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "semchunk", None)
    with pytest.raises(ConfigError, match="pip install semchunk"):
        library_chunks(TEXT, "semchunk", PIECES, size=64, overlap=0)
    with pytest.raises(ConfigError, match="Did you mean 'langchain'"):
        library_chunks(TEXT, "langchian", PIECES, size=64, overlap=0)
