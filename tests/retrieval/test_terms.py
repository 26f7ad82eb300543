"""What a question asks the index for."""

from __future__ import annotations

import pytest

from hrm_agent.retrieval.terms import phrases_of


@pytest.mark.parametrize(
    ("question", "phrases"),
    [
        ("What is the president's end-to-end plan?", ["is", "the", "president", "s", "end", "to", "plan"]),
        ("Which U.S. value is 3.14’s?", ["u.s.", "value", "is", "3.14", "s"]),
        ("Who? What, and WHEN?", ["and"]),
        ("How", ["how"]),
        ("鯨は眠る", ["鯨 は", "は 眠", "眠 る"]),
        ("' - ?", []),
    ],
)
def test_words_are_taken_apart_and_those_that_only_ask_are_left_out(question: str, phrases: list[str]) -> None:
    assert phrases_of(question) == phrases
