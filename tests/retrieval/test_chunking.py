"""What citations rest on, for every strategy and for text that nobody would write."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.retrieval import STRATEGIES, Chunk, chunk_text, load_tokenizer
from hrm_agent.retrieval.chunking.check import faults
from hrm_agent.retrieval.chunking.graphemes import grapheme_ends
from hrm_agent.retrieval.chunking.semantic import boundaries

WRITTEN = ["The policy learns. ", "Dr. Who? ", "word", " ", "\n", "\n\n", "x" * 90, "1234567 ", "<|endoftext|>"]
MARKED = ["# Title\n", "## Part\n", "```\n", "- item\n", "def f():\n    return 1\n\n"]
FOREIGN = ["日本語。", "नमस्ते ", "क्षि", "👨‍👩‍👧‍👦", "🇩🇪", "🇫", "e\u0301", "ﷺ", "한국"]
JOINING = ["\r\n", "\u0301", "\0", "\u200d", "\u2028", "\ufeff"]
PIECES = WRITTEN + MARKED + FOREIGN + JOINING
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=120).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
)
FOREST = "The forest has tall trees. Birds nest in the trees of the forest. Leaves fall from trees in autumn. " * 4
MONEY = "Banks lend money at interest. The interest on loans goes to banks. Money buys bonds from banks. " * 4


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=TEXTS,
    tokenizer=st.sampled_from(["character", "pieces", "word"]),
    size=st.integers(2, 60),
    overlap=st.floats(0, 0.5),
)
def test_any_text_is_cut_without_a_fault(strategy: str, text: str, tokenizer: str, size: int, overlap: float) -> None:
    chunks = chunk_text(text, strategy, tokenizer, size=size, overlap=overlap)
    assert faults(text, chunks, load_tokenizer(tokenizer), size) == []


def test_a_fault_would_be_seen() -> None:
    text, tokenizer = "ae\u0301b", load_tokenizer("character")
    whole = Chunk(0, 4, 4, text)
    assert faults(text, [whole], tokenizer, 4) == []
    assert "over 3" in faults(text, [whole], tokenizer, 3)[0]
    assert "has 4" in faults(text, [Chunk(0, 4, 3, text)], tokenizer, 4)[0]
    assert "is not text" in faults(text, [Chunk(0, 4, 4, "aeib")], tokenizer, 4)[0]
    cut = [Chunk(0, 2, 2, "ae"), Chunk(2, 4, 2, "\u0301b")]
    assert faults(text, cut, tokenizer, 4) == ["the grapheme from 1 to 3 is cut at 2"]
    assert "starts at 3" in faults(text, [Chunk(0, 1, 1, "a"), Chunk(3, 4, 1, "b")], tokenizer, 4)[0]
    assert "ends at 1 of 4" in faults(text, [Chunk(0, 1, 1, "a")], tokenizer, 4)[0]


@given(TEXTS)
@settings(max_examples=150, deadline=None)
def test_graphemes_are_those_of_unicode(text: str) -> None:
    import regex

    ends = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    assert set(grapheme_ends(text).nonzero()[0].tolist()) == ends


@pytest.mark.parametrize("strategy", ["sliding", "recursive", "sentence", "semantic", "markdown"])
def test_neighbours_overlap_by_ten_to_twenty_percent(strategy: str) -> None:
    text, tokenizer = (FOREST + MONEY) * 20, load_tokenizer("pieces")
    chunks = chunk_text(text, strategy, size=100)
    shared = [tokenizer.count(text[b.start : a.end]) for a, b in pairwise(chunks)]
    assert len(shared) > 40
    assert sum(10 <= tokens <= 20 for tokens in shared) >= 0.95 * len(shared)


@pytest.mark.parametrize("unit", ["x", "\n", " ", "\0", "🇩", "\u0301", "日本語。", "# a\n", ". "])
def test_time_is_linear(unit: str) -> None:
    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        begun = time.process_time()
        chunk_text(text, "markdown")
        return time.process_time() - begun

    seconds(1_000)
    assert seconds(80_000) < 16 * max(seconds(20_000), 0.01)


def test_nothing_is_made_of_an_empty_text() -> None:
    assert {strategy: chunk_text("", strategy) for strategy in STRATEGIES} == {strategy: [] for strategy in STRATEGIES}


def test_chunks_end_where_the_topic_changes() -> None:
    text = FOREST + MONEY
    assert len(FOREST) in boundaries(text)
    ends = [chunk.end for chunk in chunk_text(text, "semantic", size=110, overlap=0)]
    assert len(FOREST) in ends


def test_markdown_starts_chunks_at_headings_and_keeps_fences() -> None:
    fence = "```\n# no heading. Nor a sentence\n\nx = 1\n```\n"
    text = "# One\n\nText of one. More of it.\n\n" + fence + "\n# Two\n\nText of two. More of it.\n"
    starts = [chunk.text for chunk in chunk_text(text, "markdown", size=40, overlap=0)]
    assert any(part.startswith("# Two") for part in starts)
    assert any(fence in part for part in starts)


def test_code_is_cut_between_functions() -> None:
    text = "".join(f"def f{i}(x):\n    y = x + {i}\n\n    return y\n\n\n" for i in range(12))
    assert all(chunk.text.startswith("def ") for chunk in chunk_text(text, "code", size=60, overlap=0))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"strategy": "recursiv"}, "Did you mean 'recursive'?"),
        ({"size": 0}, "at least 1"),
        ({"overlap": 0.6}, "15 % is 0.15"),
        ({"tokenizer": "peices"}, "Did you mean 'pieces'?"),
    ],
)
def test_what_is_asked_wrongly_is_named(asked: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chunk_text("text", **asked)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(HrmError, match=r"U\+D800, at character 2"):
        chunk_text("ab\ud800c")
