r"""Which answers are the same answer, and which of them most runs gave.

What is compared is the content of the last `\boxed{}` of `<answer>`, or the whole own text where
there is none. Case and space do not count, and a number is its value: `42`, `42.0` and `+42.00` are
one answer, as are `1,200 L` and `1200 l`, and `0.5` and `1/2`.
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
"""A longer number is compared as text: its value would take too much time."""
MAX_CHARACTERS = 2**14
"""The numbers of a longer text are not looked at: a megabyte of them takes half a minute."""
_NUMBER = re.compile(
    rf"(?<![\w.])[+-]?(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,{MAX_DIGITS}}})?(?:\.\d{{1,{MAX_DIGITS}}}|(?<=\d))"
    rf"(?:e[+-]?\d{{1,2}}|/\d{{1,{MAX_DIGITS}}})?(?![\w/]|\.\d)"
)


def normalize_answer(text: str) -> str:
    """What an answer is counted as; empty for one that says nothing."""
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
    """Index of the first run that gave what most of them gave; an empty answer has no vote where
    another has one.
    """
    counts = Counter(filter(None, votes)) or Counter(votes)
    return votes.index(max(counts, key=lambda said: (counts[said], -votes.index(said))))
