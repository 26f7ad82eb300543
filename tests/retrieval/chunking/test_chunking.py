"""Properties of chunks that citations rely on, for every strategy and for extreme texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.chunking.check import faults, shared_tokens
from benchmarks.chunking.fuzz import fuzz_text
from benchmarks.chunking.segments import boundaries, documents, pk, segmented
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.retrieval import STRATEGIES, Chunk, Tokenizer, chunk_text, load_tokenizer
from hrm_agent.retrieval.chunking.graphemes import grapheme_ends
from hrm_agent.retrieval.chunking.sentences import Prose
from hrm_agent.retrieval.embeddings import StaticEmbeddings
from hrm_agent.retrieval.tokenizers.base import Offsets
from hrm_agent.retrieval.tokenizers.training import train_tokenizer

WRITTEN = [
    "The policy learns. ",
    "Dr. Who? ",
    "word",
    " ",
    "\n",
    "\n\n",
    "x" * 90,
    "1234567 ",
    "<|endoftext|>",
]
MARKED = ["# Title\n", "## Part\n", "```\n", "- item\n", "def f():\n    return 1\n\n"]
FOREIGN = ["日本語。", "नमस्ते ", "क्षि", "👨‍👩‍👧‍👦", "🇩🇪", "🇫", "e\u0301", "ﷺ", "한국"]
JOINING = ["\r\n", "\u0301", "\0", "\u200d", "\u2028", "\ufeff"]
PIECES = WRITTEN + MARKED + FOREIGN + JOINING
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=120).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
)
FOREST = (
    "The forest has tall trees. Birds nest in the trees of the forest. Leaves fall from trees in"
    " autumn. " * 4
)
PROJECT = Path(__file__).parents[3]
MONEY = (
    "Banks lend money at interest. The interest on loans goes to banks. Money buys bonds from"
    " banks. " * 4
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    text=TEXTS,
    tokenizer=st.sampled_from(["character", "pieces", "word"]),
    size=st.integers(2, 60),
    overlap=st.floats(0, 0.5),
)
def test_any_text_is_cut_without_a_fault(
    strategy: str, text: str, tokenizer: str, size: int, overlap: float
) -> None:
    chunks = chunk_text(text, strategy, tokenizer, size=size, overlap=overlap)
    assert faults(text, chunks, load_tokenizer(tokenizer), size) == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=TEXTS,
    tokenizer=st.sampled_from(["character", "pieces", "word"]),
    size=st.integers(2, 60),
    overlap=st.floats(0, 0.5),
)
def test_many_more_texts_are(
    strategy: str, text: str, tokenizer: str, size: int, overlap: float
) -> None:
    test_any_text_is_cut_without_a_fault.hypothesis.inner_test(
        strategy, text, tokenizer, size, overlap
    )
    test_graphemes_are_those_of_unicode.hypothesis.inner_test(text)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    folder, text = tmp_path_factory.mktemp("vocabularies"), [(FOREST + MONEY) * 3]
    trained = [
        train_tokenizer(kind, text, folder / kind, size=400)
        for kind in ("bpe", "unigram", "wordpiece")
    ]
    return [*trained, *map(load_tokenizer, ("pieces", "character", "word"))]


def assert_right(seed: int, known: list[Tokenizer]) -> None:
    """Strategies and tokenizers take turns; every other text with overlap."""
    text, rng = fuzz_text(seed), random.Random(seed)
    strategy, tokenizer = (
        [*STRATEGIES][seed % len(STRATEGIES)],
        known[seed // len(STRATEGIES) % len(known)],
    )
    size, overlap = rng.choice((24, 48, 128)), rng.choice((0.0, 0.0, 0.15, 0.5))
    assert (
        faults(
            text, chunk_text(text, strategy, tokenizer, size=size, overlap=overlap), tokenizer, size
        )
        == []
    ), seed


def test_texts_of_everything_unicode_has(vocabularies: list[Tokenizer]) -> None:
    for seed in range(60):
        assert_right(seed, vocabularies)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 2_500))
def test_ten_thousand_texts_of_everything_unicode_has(
    vocabularies: list[Tokenizer], first: int
) -> None:
    for seed in range(first, first + 2_500):
        assert_right(seed, vocabularies)


def test_a_fault_would_be_seen() -> None:
    text, tokenizer = "ae\u0301b", load_tokenizer("character")
    whole = Chunk(0, 4, 4, text)
    assert faults(text, [whole], tokenizer, 4) == []
    assert "over 3" in faults(text, [whole], tokenizer, 3)[0]
    assert "has 4" in faults(text, [Chunk(0, 4, 3, text)], tokenizer, 4)[0]
    assert "is not text" in faults(text, [Chunk(0, 4, 4, "aeib")], tokenizer, 4)[0]
    cut = [Chunk(0, 2, 2, "ae"), Chunk(2, 4, 2, "\u0301b")]
    assert faults(text, cut, tokenizer, 4) == ["the grapheme from 1 to 3 is cut at 2"]
    assert (
        "starts at 3" in faults(text, [Chunk(0, 1, 1, "a"), Chunk(3, 4, 1, "b")], tokenizer, 4)[0]
    )
    assert "ends at 1 of 4" in faults(text, [Chunk(0, 1, 1, "a")], tokenizer, 4)[0]


@given(TEXTS)
@settings(max_examples=40, derandomize=True, database=None, deadline=None)
def test_graphemes_are_those_of_unicode(text: str) -> None:
    import regex

    ends = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    assert set(grapheme_ends(text).nonzero()[0].tolist()) == ends


@pytest.mark.parametrize("strategy", ["sliding", "recursive", "sentence", "semantic", "markdown"])
def test_neighbours_overlap_by_ten_to_twenty_percent(strategy: str) -> None:
    text, tokenizer = (FOREST + MONEY) * 20, load_tokenizer("pieces")
    chunks = chunk_text(text, strategy, size=100)
    shared = shared_tokens(text, chunks, tokenizer)
    assert len(shared) > 40
    assert sum(10 <= tokens <= 20 for tokens in shared) >= 0.95 * len(shared)


class Counting:
    """Tokenizer `pieces` that also counts the characters it has processed."""

    name, local = "counting", True

    def __init__(self) -> None:
        self.seen = 0
        self._pieces = load_tokenizer("pieces")

    def count(self, text: str) -> int:
        self.seen += len(text)
        return self._pieces.count(text)

    def offsets(self, text: str) -> Offsets:
        self.seen += len(text)
        return self._pieces.offsets(text)


@pytest.mark.parametrize("strategy", ["semantic", "markdown"])
@pytest.mark.parametrize(
    "unit", ["x", "\n", " ", "\0", "🇩", "\u0301", "日本語。", "# a\n", ". ", "\r\n", "a "]
)
def test_no_text_is_tokenized_again_and_again(strategy: str, unit: str) -> None:
    text, tokenizer = unit * (20_000 // len(unit)), Counting()
    chunks = chunk_text(text, strategy, tokenizer)
    assert chunks[-1].end == len(text)
    assert tokenizer.seen < 5 * len(text)


def test_prose_is_tokenized_little_more_than_once() -> None:
    text, tokenizer = (FOREST + MONEY) * 40, Counting()
    chunk_text(text, tokenizer=tokenizer)
    assert tokenizer.seen < 1.1 * len(text)


def test_nothing_is_made_of_an_empty_text() -> None:
    assert {strategy: chunk_text("", strategy) for strategy in STRATEGIES} == {
        strategy: [] for strategy in STRATEGIES
    }


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("It ends. It begins. 3.5 is none.", [9, 20]),
        ("Dr. Who, e.g. A. Smith et al. said so. Yes", [39]),
        ('He said "no." Then he left.) So?! Well\u2026 it goes on', [14, 29, 34, 40]),
        ("日本語。次の文！「終わり。」はい", [4, 8, 14]),
        ("no mark\n \nnext. small letters follow", [10]),
        ("trailing. ", []),
    ],
)
def test_sentences_end_where_readers_see_it(text: str, starts: list[int]) -> None:
    assert Prose(text).sentences.tolist() == starts


def test_chunks_end_where_the_topic_changes() -> None:
    text = FOREST + MONEY
    assert len(FOREST) in boundaries(text)
    ends = [chunk.end for chunk in chunk_text(text, "semantic", size=110, overlap=0)]
    assert len(FOREST) in ends


def test_vectors_tell_topics_too() -> None:
    embeddings = StaticEmbeddings()
    assert len(FOREST) in boundaries(FOREST + MONEY, embeddings)
    chunks = chunk_text(FOREST + MONEY, "semantic", size=110, overlap=0, embeddings=embeddings)
    assert len(FOREST) in [chunk.end for chunk in chunks]
    with pytest.raises(ConfigError, match="Choose `semantic`"):
        chunk_text(FOREST, "recursive", embeddings=embeddings)


@pytest.mark.shared_data
def test_changes_of_topic_are_found_among_other_documents(shared_data: Path) -> None:
    found = documents(shared_data / "retrieval", PROJECT / "docs")[1::2]
    texts, embeddings = [segmented(found, seed) for seed in range(30)], StaticEmbeddings()
    assert sum(pk(given, boundaries(given.text)) for given in texts) / len(texts) < 0.27
    assert sum(pk(given, boundaries(given.text, embeddings)) for given in texts) / len(texts) < 0.20
    assert sum(pk(given, given.changes) for given in texts) == 0
    assert sum(pk(given, []) for given in texts) / len(texts) > 0.4


def test_markdown_starts_chunks_at_headings_and_keeps_fences() -> None:
    fence = "```\n# no heading. Nor a sentence\n\nx = 1\n```\n"
    text = "# One\n\nText of one. More of it.\n\n" + fence + "\n# Two\n\nText of two. More of it.\n"
    starts = [chunk.text for chunk in chunk_text(text, "markdown", size=40, overlap=0)]
    assert any(part.startswith("# Two") for part in starts)
    assert any(fence in part for part in starts)


def test_code_is_cut_between_functions() -> None:
    text = "".join(f"def f{i}(x):\n    y = x + {i}\n\n    return y\n\n\n" for i in range(12))
    assert all(
        chunk.text.startswith("def ") for chunk in chunk_text(text, "code", size=60, overlap=0)
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"strategy": "recursiv"}, "Did you mean 'recursive'?"),
        ({"size": 0}, "at least 1"),
        ({"overlap": 0.6}, "Write 0.15 for 15 %"),
        ({"tokenizer": "peices"}, "Did you mean 'pieces'?"),
    ],
)
def test_what_is_asked_wrongly_is_named(asked: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chunk_text("text", **asked)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(HrmError, match=r"U\+D800, at character 2"):
        chunk_text("ab\ud800c")
