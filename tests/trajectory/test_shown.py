"""Thoughts of an answer, wherever a provider keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.trajectory.words import answer_thoughts, parts_of, thoughts_of
from tests.support.trajectory.samples import make_call, make_trajectory

SUMMARY = {
    "id": "rs",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "a"}, {"text": "b"}],
}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"content": "x"}, None),
        ({"content": "<think>a</think>x"}, None),
        ({"content": "x", "additional_kwargs": {"reasoning_content": "a"}}, "a"),
        ({"content": "x", "additional_kwargs": {"reasoning": "a"}}, "a"),
        ({"content": "x", "additional_kwargs": {"reasoning": SUMMARY}}, "a\n\nb"),
        ({"content": "x", "additional_kwargs": {"reasoning_content": ""}}, None),
        ({"content": "x", "additional_kwargs": {"reasoning_content": "", "reasoning": "a"}}, "a"),
        (
            {
                "content": [{"type": "thinking", "thinking": "a"}],
                "additional_kwargs": {"reasoning_content": ""},
            },
            "a",
        ),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": "a", "signature": "s"},
                    {"type": "text", "text": "x"},
                ]
            },
            "a",
        ),
        (
            {
                "content": [
                    {"type": "reasoning", "reasoning": "a"},
                    {"type": "reasoning", "reasoning": "b"},
                ]
            },
            "a\n\nb",
        ),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}, "a"),
        (
            {
                "content": [
                    {
                        "type": "reasoning_content",
                        "reasoning_content": {"text": "a", "signature": "s"},
                    }
                ]
            },
            "a",
        ),
        ({"content": [SUMMARY, "x"]}, "a\n\nb"),
        (
            {
                "content": [
                    {"type": "redacted_thinking", "data": "e"},
                    {"type": "text", "reasoning": "a"},
                ]
            },
            None,
        ),
        ({"content": 3, "additional_kwargs": []}, None),
    ],
)
def test_thoughts_are_found_and_nothing_else(fields: dict[str, Any], found: str | None) -> None:
    assert thoughts_of(fields) == found


def test_forged_nesting_has_an_end() -> None:
    nested: Any = "a"
    for _ in range(100_000):
        nested = [nested]
    assert thoughts_of({"content": [{"type": "thinking", "thinking": nested}]}) is None


def test_thoughts_in_the_text_are_taken_apart_for_people() -> None:
    assert parts_of({"content": "<think>a</think>x"}) == ("a", "x")
    assert parts_of({"content": "x", "additional_kwargs": {"reasoning_content": "a"}}) == ("a", "x")


def test_the_answer_has_the_thoughts_of_the_call_that_gave_it() -> None:
    def said(task: str, text: str, thought: str) -> Any:
        response = {
            "type": "ai",
            "content": text,
            "additional_kwargs": {"reasoning_content": thought},
        }
        return make_call(task, response=response)

    calls = said("a", "4", "first"), said("b", " 4\n", "second"), said("c", "5", "third")
    assert answer_thoughts(make_trajectory(calls=calls, answer="4")) == "second"
    assert answer_thoughts(make_trajectory(calls=calls, answer="6")) is None
    assert answer_thoughts(make_trajectory(calls=calls, answer=None)) is None
