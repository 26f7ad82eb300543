"""Tokenizers: offsets that fit the text, and numbers that mean something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_agent.errors import ConfigError
from hrm_agent.retrieval import Tokenizer, chunk_text, load_tokenizer
from hrm_agent.retrieval.chunking.check import faults
from hrm_agent.retrieval.tokenizers.base import mended
from hrm_agent.retrieval.tokenizers.statistics import measure
from hrm_agent.retrieval.tokenizers.training import KINDS, train_tokenizer

CORPUS = [
    "The models learn words from words, and the words are counted by models.\n" * 30,
    "naïve cafés in Zürich\n" * 9,
]
SIZES = {"bpe": 320, "unigram": 320, "wordpiece": 120}
STRANGE = "The models, naïve 👨‍👩‍👧‍👦 🇩🇪 日本語 e\u0301 <|endoftext|> [UNK] <s>\r\n\0 " + "x" * 200 + "  words\n\n"


@pytest.fixture(scope="module", params=sorted(KINDS))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("vocabulary") / ("v.model" if request.param == "unigram" else "v.json")
    return train_tokenizer(request.param, CORPUS, file, size=SIZES[request.param])


def assert_covers(tokenizer: Tokenizer, text: str) -> None:
    rows = tokenizer.offsets(text)
    assert len(rows) == tokenizer.count(text)
    if len(rows):
        assert (rows[0, 0], rows[-1, 1]) == (0, len(text))
        assert np.all(rows[:, 0] < rows[:, 1])
        assert np.all(rows[1:, 0] <= rows[:-1, 1])
        assert np.all(np.diff(rows, axis=0) >= 0)


@pytest.mark.parametrize("name", ["character", "pieces", "word"])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
@settings(max_examples=60, deadline=None)
def test_offsets_cover_any_text(name: str, text: str) -> None:
    assert_covers(load_tokenizer(name), text)


def test_trained_vocabularies_count_and_cut(trained: Tokenizer) -> None:
    for text in (STRANGE, "", " ", CORPUS[0], STRANGE * 20):
        assert_covers(trained, text)
        assert faults(text, chunk_text(text, tokenizer=trained, size=40), trained, 40) == []


def test_counting_by_parts_agrees_with_counting_the_whole(trained: Tokenizer) -> None:
    text = (CORPUS[0] + STRANGE) * 3
    for chunk in chunk_text(text, "sliding", trained, size=64):
        assert chunk.tokens == trained.count(chunk.text)


def test_what_the_vocabularies_lack(trained: Tokenizer) -> None:
    known, strange = measure(trained, CORPUS), measure(trained, ["日本語 " * 5])
    assert known.tally.unknown_rate == 0
    assert known.round_trip in {"exact", "spacing"}
    assert strange.tally.unknown_rate or strange.tally.byte_rate > 0.5


def test_pieces_count_words_as_large_vocabularies_do() -> None:
    numbers = measure(load_tokenizer("pieces"), CORPUS[:1])
    assert numbers.tally.tokens == 16 * 30
    assert (numbers.tally.unknown_rate, numbers.round_trip) == (None, None)


def test_a_truncating_file_does_not_cap_counts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library

    file = tmp_path / "tokenizer.json"
    train_tokenizer("bpe", CORPUS, file, size=300)
    library = Library.from_file(str(file))
    library.enable_truncation(4)
    library.save(str(tmp_path / "capped.json"))
    assert load_tokenizer(f"hf:{tmp_path / 'capped.json'}").count(CORPUS[0]) > 100
    assert load_tokenizer(f"hf:{tmp_path}").count(CORPUS[0]) > 100


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiktoken:cl100k_base", "not on disk"),
        ("tiktoken:cl100k", "Did you mean 'cl100k_base'"),
        ("hf:no/such-model", "no model of this name in the local cache"),
        ("hf:./missing.json", "no tokenizer file"),
        ("sentencepiece:missing.model", "no sentencepiece model"),
        ("wrod", "Did you mean 'word'"),
    ],
)
def test_what_cannot_be_loaded_says_why(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        load_tokenizer(name)


def test_mending_keeps_every_position() -> None:
    assert mended("a\ud800b") == "a\ufffdb"
    assert load_tokenizer("pieces").count(mended("a\ud800b")) == 3
