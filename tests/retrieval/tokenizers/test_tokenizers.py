"""Tokenizers: offsets that match the text, and meaningful counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chunking.check import faults
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import ConfigError, RetrievalError
from hrm_agent.retrieval import Tokenizer, chunk_text, load_tokenizer
from hrm_agent.retrieval.index import Chunking, DocumentIndex, files_in, index_folder
from hrm_agent.retrieval.index.folder import Done
from hrm_agent.retrieval.tokenizers.load import tokenizers_at_hand
from hrm_agent.retrieval.tokenizers.statistics import measure
from hrm_agent.retrieval.tokenizers.training import train_tokenizer

CORPUS = [
    "The models learn words from words, and the words are counted by models.\n" * 30,
    "naïve cafés in Zürich\n" * 9,
]
SIZES = {
    "bpe": 320,
    "bpe.tiktoken": 320,
    "sentencepiece-bpe": 320,
    "unigram": 320,
    "word": 30,
    "wordpiece": 120,
}
PROJECT = Path(__file__).parents[3]
STRANGE = (
    "The models, naïve 👨‍👩‍👧‍👦 🇩🇪 日本語 e\u0301 <|endoftext|> [UNK] <s>\r\n\0 "
    + "x" * 200
    + "  words\n\n"
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
EXAMPLES = settings(max_examples=30, derandomize=True, database=None, deadline=None)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("vocabularies")
    return {
        name: train_tokenizer(name.removesuffix(".tiktoken"), CORPUS, folder / name, size=size)
        for name, size in SIZES.items()
    }


@pytest.fixture(params=SIZES)
def trained(request: pytest.FixtureRequest, vocabularies: dict[str, Tokenizer]) -> Tokenizer:
    return vocabularies[request.param]


def assert_covers(tokenizer: Tokenizer, text: str) -> None:
    rows = tokenizer.offsets(text)
    assert len(rows) == tokenizer.count(text)
    if len(rows):
        assert (rows[0, 0], rows[-1, 1]) == (0, len(text))
        assert np.all(rows[:, 0] < rows[:, 1])
        assert np.all(rows[1:, 0] <= rows[:-1, 1])
        assert np.all(np.diff(rows, axis=0) >= 0)


@given(text=TEXTS)
@EXAMPLES
def test_offsets_cover_any_text(text: str, vocabularies: dict[str, Tokenizer]) -> None:
    for tokenizer in (
        *map(load_tokenizer, ("character", "pieces", "word")),
        *vocabularies.values(),
    ):
        assert_covers(tokenizer, text)


@given(left=TEXTS, right=TEXTS)
@EXAMPLES
def test_local_tokenizers_count_a_text_by_its_parts(
    left: str, right: str, vocabularies: dict[str, Tokenizer]
) -> None:
    """Property of all tokenizers that declare themselves `local`."""
    asked = [*map(load_tokenizer, ("character", "pieces", "word")), *vocabularies.values()]
    local = [tokenizer for tokenizer in asked if tokenizer.local]
    assert len(local) == 7
    for tokenizer in local:
        left, right = f"{left}a", f" b{right}"
        assert tokenizer.count(left + right) == tokenizer.count(left) + tokenizer.count(right)


@given(
    text=st.lists(
        st.one_of(TEXTS, st.sampled_from(["the models ", "words", " ", "\n", "\r\n", "  "]))
    ).map("".join)
)
@EXAMPLES
def test_byte_pairs_lose_nothing_and_are_the_same_in_two_libraries(
    text: str, vocabularies: dict[str, Tokenizer]
) -> None:
    ours, fast = vocabularies["bpe"], vocabularies["bpe.tiktoken"]
    assert measure(ours, [text]).round_trip == measure(fast, [text]).round_trip == "exact"
    assert ours.offsets(text).tolist() == fast.offsets(text).tolist()


def test_a_text_that_tiktoken_cannot_split_is_skipped(tmp_path: Path) -> None:
    train_tokenizer("bpe", CORPUS, tmp_path / "bpe.tiktoken", size=300)
    name = f"tiktoken:{tmp_path / 'bpe.tiktoken'}"
    tokenizer = load_tokenizer(name)
    spaces = " " * 1_000_000 + "a"
    with pytest.raises(RetrievalError, match="cannot split a text of 1,000,001 characters"):
        tokenizer.count(spaces)
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "spaces.txt").write_text(spaces)
    (texts / "whale.txt").write_text("Our whale was 27 metres long.")
    with DocumentIndex(tmp_path / "index.db", create=True) as index:
        report = index_folder(index, texts, files_in(texts), chunking=Chunking(tokenizer=name))
        assert [outcome.done for outcome in report.outcomes] == [Done.SKIPPED, Done.ADDED]


@pytest.mark.slow
@given(left=TEXTS, right=TEXTS)
@settings(EXAMPLES, max_examples=500, derandomize=False)
def test_all_of_that_holds_of_many_more_texts(
    left: str, right: str, vocabularies: dict[str, Tokenizer]
) -> None:
    test_offsets_cover_any_text.hypothesis.inner_test(left, vocabularies)
    test_local_tokenizers_count_a_text_by_its_parts.hypothesis.inner_test(left, right, vocabularies)
    test_byte_pairs_lose_nothing_and_are_the_same_in_two_libraries.hypothesis.inner_test(
        left + right, vocabularies
    )


LEARN = """
import sys, pathlib
from hrm_agent.retrieval.tokenizers.training import train_tokenizer
texts = [" ".join(str(i * i % 7919) for i in range(4000))]
for kind in ("bpe", "unigram", "wordpiece"):
    train_tokenizer(kind, texts, pathlib.Path(sys.argv[1], kind), size=400)
"""


def test_the_same_texts_give_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, whose hash order differs, writes the same file."""
    subprocess.run([sys.executable, "-c", LEARN, str(tmp_path / "there")], check=True, cwd=PROJECT)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "here")])
    exec(LEARN, {})
    here, there = (
        {f.parent.name: f.read_bytes() for f in tmp_path.glob(f"{n}/*/*")}
        for n in ("here", "there")
    )
    assert here.keys() == {"bpe", "unigram", "wordpiece"}
    assert here == there


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
    assert strange.tally.words == 15


def test_what_comes_back_is_compared(vocabularies: dict[str, Tokenizer]) -> None:
    numbers = measure(vocabularies["wordpiece"], ["The  models.\n", "The £ models.\n"])
    assert (numbers.round_trip, numbers.tally.unknown) == ("lost", 1)
    assert measure(vocabularies["wordpiece"], ["The  models.\n"]).round_trip == "spacing"
    assert measure(vocabularies["bpe"], [STRANGE]).round_trip == "exact"


def test_pieces_count_words_as_large_vocabularies_do() -> None:
    numbers = measure(load_tokenizer("pieces"), CORPUS[:1])
    assert numbers.tally.tokens == 16 * 30
    assert (numbers.tally.unknown_rate, numbers.round_trip) == (None, None)


def test_what_a_file_does_by_itself_is_undone(tmp_path: Path) -> None:
    """Truncation, padding, and control tokens recognised in a text."""
    from tokenizers import Tokenizer as Library

    train_tokenizer("bpe", CORPUS, tmp_path, size=300)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    plain = load_tokenizer(f"hf:{tmp_path}").count(CORPUS[0] + "<|endoftext|>")
    library.enable_truncation(4)
    library.enable_padding(length=10_000)
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(tmp_path / "capped.json"))
    assert plain > 100
    assert (
        load_tokenizer(f"hf:{tmp_path / 'capped.json'}").count(CORPUS[0] + "<|endoftext|>") == plain
    )


def test_vocabularies_at_hand_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert tokenizers_at_hand() == ["character", "pieces", "word"]
    (tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4").write_bytes(b"IQ== 0\n")
    assert tokenizers_at_hand()[3:] == ["tiktoken:cl100k_base"]
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    with pytest.raises(ConfigError, match="TIKTOKEN_CACHE_DIR is empty"):
        load_tokenizer("tiktoken:cl100k_base")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not base64\n", "is not a tiktoken file"),
        (b"IQ== 0\n", "is not a complete vocabulary"),
        (b"\xff\xfe\0", "is not a tiktoken file"),
    ],
)
def test_rank_files_that_are_none(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.tiktoken").write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_tokenizer(f"tiktoken:{tmp_path / 'x.tiktoken'}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiktoken:cl100k_base", "not on disk"),
        ("tiktoken:cl100k", "Did you mean 'cl100k_base'"),
        ("tiktoken:no.tiktoken", "no.tiktoken cannot be read"),
        ("tiktoken:cl100k_base.tiktoken", "name `tiktoken:cl100k_base`"),
        ("hf:no/such-model", "no model of this name in the local cache"),
        ("hf:./missing.json", "no tokenizer file"),
        ("sentencepiece:missing.model", "is not a sentencepiece model"),
        ("wrod", "Did you mean 'word'"),
    ],
)
def test_what_cannot_be_loaded_says_why(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        load_tokenizer(name)


def test_mending_keeps_every_position() -> None:
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert load_tokenizer("pieces").count(replace_surrogates("a\ud800b")) == 3
