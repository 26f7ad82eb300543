"""Verifiers built on equality of answers (`hrm_agent.answers.exact`).

`hrm_agent.answers.final_answer.final_answer` decides *which* text is the answer, so that agents and
trainer read the same answer.
"""

from __future__ import annotations

import re

from hrm_agent.answers.exact import exact_equal
from hrm_agent.answers.final_answer import final_answer, own_text
from hrm_agent.training.tasks.base import Verifier

__all__ = [
    "answer_line",
    "contest_integer",
    "contest_verifier",
    "exact_verifier",
    "grid_verifier",
    "text_answer",
]


def answer_line(text: str, prefix: str = "Answer:") -> str | None:
    """Text after `prefix` on the last line that is not empty (None if that line does not start with
    it).
    """
    lines = own_text(text).strip().splitlines()
    last = lines[-1].strip() if lines else ""
    return last[len(prefix) :].strip() if last.startswith(prefix) else None


def text_answer(text: str) -> str | None:
    """Answer in a final text, read by `final_answer`. If the text has no `<answer>` (a graph may
    have another format), it is read by `answer_line`.
    """
    return final_answer(text) if "<answer>" in own_text(text) else answer_line(text)


def exact_verifier(answer: str) -> Verifier:
    """Verifier with reward 1 for a final answer that equals `answer`, else 0."""

    def verify(text: str) -> float:
        given = text_answer(text)
        return float(given is not None and exact_equal(given, answer))

    return verify


def contest_verifier(answer: str) -> Verifier:
    """Verifier with reward 1 for a final answer that is the integer `answer`, written with up to
    three digits (AIME), else 0.
    """
    expected = contest_integer(answer)

    def verify(text: str) -> float:
        given = contest_integer(text_answer(text) or "")
        return float(given is not None and given == expected)

    return verify


def contest_integer(text: str) -> int | None:
    """Integer of one to three digits, as in AIME (None for any other text)."""
    match = re.fullmatch(r"\$?([0-9]{1,3})\$?", text.strip())
    return int(match[1]) if match else None


def grid_verifier(answer: str) -> Verifier:
    """Verifier with reward 1 for a final answer that has the same cells as the grid `answer`, else
    0. A row of a grid is a line, and cells are separated by white space.
    """
    expected = _cells(answer)
    return lambda text: float(_cells(_whole_answer(text)) == expected)


def _cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def _whole_answer(text: str) -> str:
    """Answer in a final text that has an `<answer>`; without that tag, the whole text
    of the model.
    """
    visible = own_text(text)
    return final_answer(text) or "" if "<answer>" in visible else visible.strip()
