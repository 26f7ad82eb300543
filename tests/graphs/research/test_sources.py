"""Sources as shown to the searcher and to the writer."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.retrieval_quality.questions import read_questions
from benchmarks.retrieval_shown import measured, shown
from hrm_agent.graphs.research.sources import (
    GAP,
    Source,
    display_hits,
    evidence,
    new_source,
    renamed,
)
from hrm_agent.graphs.research.state import ResearchContext
from hrm_agent.retrieval.index import Chunking
from hrm_agent.retrieval.index.fusion import Hit

PLAIN = "Nothing of any interest happens in this sentence, which is here to take room. " * 20
ANSWER = "The narwhal has a tusk that may be three metres long. "


def hits(*texts: str) -> tuple[list[Source], list[Hit]]:
    found = [
        Hit(f"{n}.txt", 100 * n, 100 * n + len(text), text, 1.0, "r", language="en")
        for n, text in enumerate(texts)
    ]
    named = [
        renamed(new_source(one.file, one.text, file=one.file, offset=one.start), f"S{n}")
        for n, one in enumerate(found)
    ]
    return named, found


def test_hits_are_shown_by_what_matches_the_question() -> None:
    sources, found = hits(PLAIN + ANSWER, PLAIN, PLAIN)
    text = display_hits(sources, found, "narwhal tusk", 2000)
    assert ANSWER.strip() in text and text.count(GAP) >= 3 and text.count("<source ") == 3
    assert (
        sum(piece.end - piece.start for source in sources for piece in shown(text, source)) <= 2000
    )
    whole = display_hits(sources, found, "narwhal tusk", 10_000)
    assert GAP not in whole and whole.count(PLAIN.strip()) == 3


def test_the_writer_sees_hits_whole() -> None:
    """A quoted one first; a long page is shown by its passages as before."""
    sources, _ = hits(ANSWER + PLAIN, PLAIN + ANSWER, PLAIN, PLAIN * 20 + ANSWER)
    by_name = {source["id"]: source for source in sources}
    text = evidence(by_name, "narwhal tusk", {"S0": (), "S1": (), "S2": (0,), "S3": ()}, 12_000)
    for source in sources[:3]:
        assert [(piece.start, piece.end) for piece in shown(text, source)] == [
            (source["offset"], source["offset"] + len(source["text"].rstrip()))
        ]
    assert (
        len(list(shown(text, sources[3]))) > 1 and ANSWER.strip() in text.partition("<source S3")[2]
    )
    narrow = evidence(by_name, "narwhal tusk", {"S0": (), "S2": (0,)}, 1000)
    assert "<source S2" in narrow and ANSWER.strip() in narrow


@pytest.mark.shared_data
def test_the_searcher_sees_what_the_index_found(shared_data: Path, tmp_path: Path) -> None:
    context = ResearchContext(index=str(tmp_path / "index.db"))
    rows = measured(read_questions(shared_data / "retrieval"), context, Chunking(), every=4)
    assert len(rows) == 69 and fmean(row.hits for row in rows) > 0.95
    assert fmean(row.searcher for row in rows) >= 0.95 * fmean(row.hits for row in rows)
    assert fmean(row.writer for row in rows) >= 0.99 * fmean(row.hits for row in rows)
    assert max(row.characters for row in rows) < context.max_source_chars + 1500, (
        "the frames are not counted"
    )
