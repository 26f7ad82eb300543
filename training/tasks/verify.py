"""Verifiers built on equality of answers (`hrm_agent.answers.exact`).

`hrm_agent.answers.final_answer.final_answer` decides *which* text is the answer, so that agents and
trainer read the same answer.
"""

from __future__ import annotations

import re
from collections import deque

from hrm_agent.answers.exact import exact_equal
from hrm_agent.answers.final_answer import final_answer, own_text, stated_value
from hrm_agent.rewards.comparison import comparison_of
from hrm_agent.training.tasks.base import Verifier

__all__ = [
    "answer_line",
    "contest_integer",
    "contest_verifier",
    "exact_verifier",
    "grid_verifier",
    "letter_verifier",
    "math_verifier",
    "number_verifier",
    "text_answer",
]

_LETTER = re.compile(r"answer\s{0,4}:\s{0,4}[*$(\[{]{0,4}([a-d])(?![a-z])", re.IGNORECASE)
_MARKED_NUMBER = re.compile(r"####\s{0,4}\$?([-+]?[0-9][0-9,.]*)")


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
    """Integer of one to three digits, as in AIME, with or without a degree sign (None for any other
    text).
    """
    match = re.fullmatch(r"\$?([0-9]{1,3})(?:°|\^\{?\\circ\}?)?\$?", text.strip())
    return int(match[1]) if match else None


def number_verifier(answer: str) -> Verifier:
    """Verifier with reward 1 for a final answer that is the number `answer`, else 0. In a text
    without a stated answer, the number after the last `####` is the answer (GSM8K).
    """

    def verify(text: str) -> float:
        given = _stated(text) or _last(_MARKED_NUMBER, text)
        return float(given is not None and exact_equal(given.rstrip("."), answer))

    return verify


def math_verifier(answer: str) -> Verifier:
    """Verifier with reward 1 for a final answer that math-verify finds equal to `answer`, else 0.
    The comparison runs in a process with limits.

    Raises `ConfigError` if math-verify is not installed.
    """
    equal = comparison_of("symbolic")

    def verify(text: str) -> float:
        given = _stated(text)
        return float(given is not None and equal(given, answer))

    return verify


def letter_verifier(answer: str) -> Verifier:
    """Verifier with reward 1 for a final answer that is the letter `answer`, in any case, else 0.
    In a text without a stated answer, the letter after the last `Answer:` is the answer.
    """

    def verify(text: str) -> float:
        given = re.sub(r"\\(?:text|mathrm|mathbf)|[\s*$().\[\]{}]", "", _stated(text) or "")
        if len(given) != 1:
            given = _last(_LETTER, text) or ""
        return float(given.upper() == answer)

    return verify


def _stated(text: str) -> str | None:
    r"""Answer in a final text: that of `text_answer`, else the last `\boxed{}`."""
    given = text_answer(text)
    return (stated_value(given) or given) if given else stated_value(text)


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    """First group of the last match in the model's own text (None if there is none)."""
    found = deque(pattern.finditer(own_text(text)), maxlen=1)
    return found[0][1] if found else None


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
