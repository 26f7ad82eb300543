r"""Normal form of answers, and the most frequent answer of several runs.

The content of the last `\boxed{}` in `<answer>` is compared. If there is none, the whole text
outside of reasoning and tool calls is compared (`own_text`). Differences in case and white space do
not count, and numbers are compared by value: `42`, `42.0` and `+42.00` are the same answer, as are
`1,200 L` and `1200 l`, and `0.5` and `1/2`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from hrm_agent.answers.final_answer import final_answer, own_text

__all__ = ["most_frequent", "normalize_answer"]

MAX_DIGITS = 40
"""Maximum number of digits of a number that is compared by value. A longer number is compared as
text, since computing its value would take too much time.
"""
MAX_CHARACTERS = 2**14
"""Maximum length of a text whose numbers are compared by value. A megabyte of numbers would take
half a minute.
"""
_NUMBER = re.compile(
    rf"(?<![\w.])[+-]?(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,{MAX_DIGITS}}})?(?:\.\d{{1,{MAX_DIGITS}}}|(?<=\d))"
    rf"(?:e[+-]?\d{{1,2}}|/\d{{1,{MAX_DIGITS}}})?(?![\w/]|\.\d)"
)


def normalize_answer(text: str) -> str:
    """Normal form of an answer, for counting (empty if the answer is empty)."""
    said = final_answer(text)
    plain = " ".join(
        (own_text(text) if said is None else said).casefold().replace("$", " ").split()
    ).rstrip(".")
    return (
        _NUMBER.sub(lambda found: _by_value(found[0]), plain)
        if len(plain) <= MAX_CHARACTERS
        else plain
    )


def _by_value(number: str) -> str:
    above, slash, below = number.replace(",", "").partition("/")
    try:
        value = Fraction(Decimal(above)) / (Fraction(below) if slash else 1)
    except (InvalidOperation, ZeroDivisionError):
        return number
    return str(value)


def most_frequent(votes: Sequence[str]) -> int:
    """Index of the first run with the most frequent answer. Empty answers are counted only if all
    are empty.
    """
    counts = Counter(filter(None, votes)) or Counter(votes)
    return votes.index(max(counts, key=lambda said: (counts[said], -votes.index(said))))
