"""When an answer is the reference, by a name; and the reward made of a reader and a comparison.

| comparison | equal are |
|---|---|
| `exact` | the same number exactly, else the same text (`hrm_agent.answers.exact`) |
| `text` | the same words, in any case and spacing |
| `numeric:TOLERANCE` | numbers that differ by at most TOLERANCE * max(1, size of the reference) |
| `symbolic` | expressions that math-verify finds equal: `x(x+1)` and `x^2+x` |
| `set` | the same elements in any order, separated by commas, each compared exactly |
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib.util import find_spec

from hrm_agent.answers.exact import exact_equal, number
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.rewards.readers import Reader, reader_of
from hrm_agent.rewards.rubric import Reward, Scored

__all__ = ["Comparison", "answer_is", "comparison_of"]

Comparison = Callable[[str, str], bool]
"""(an answer, the reference) -> whether they are equal."""

MAX_EXPRESSION_CHARACTERS = 512
"""Longer texts are not read as mathematics."""


def answer_is(
    reader: str | Reader = "boxed", compare: str | Comparison = "exact", *, name: str = "correct", weight: float = 1.0
) -> Reward:
    """A reward: 1 where what `reader` finds in the final text is the task's reference answer, else 0.

    No opinion (None) where the task has no reference answer.
    """
    read, equal = reader_of(reader), comparison_of(compare)

    def correct(text: str, reference: str | None) -> Scored:
        if reference is None:
            return Scored(None, "the task has no reference answer")
        found = read(text)
        if found is None:
            return Scored(0.0, "no answer was found in the final text")
        return Scored(float(equal(found, reference)), f"read {found[:200]!r}")

    return Reward(correct, name=name, weight=weight)


def comparison_of(spec: str | Comparison) -> Comparison:
    """The comparison that a name stands for, or the function itself. Raises `ConfigError`."""
    if callable(spec):
        return spec
    name, _, rest = spec.partition(":")
    if name == "numeric":
        return partial(_numeric, _tolerance(rest or "1e-6"))
    if name == "symbolic" and find_spec("math_verify") is None:
        raise ConfigError("The comparison `symbolic` needs math-verify.", "Run: pip install 'hrm-agent[math]'")
    if name in _BY_NAME and not rest:
        return _BY_NAME[name]
    known = [*_BY_NAME, "numeric:TOLERANCE"]
    raise ConfigError(
        f"There is no comparison {spec!r}.",
        f"{nearest(name, [*_BY_NAME, 'numeric'])} Comparisons: {', '.join(known)}.".strip(),
    )


def _tolerance(text: str) -> Fraction:
    tolerance = number(text)
    if tolerance is None or tolerance < 0:
        raise ConfigError(f"{text!r} is no tolerance.", "Write numeric:1e-6.")
    return tolerance


def _numeric(tolerance: Fraction, answer: str, reference: str) -> bool:
    given, wanted = number(answer), number(reference)
    if given is None or wanted is None:
        return exact_equal(answer, reference)
    return abs(given - wanted) <= tolerance * max(Fraction(1), abs(wanted))


def _text(answer: str, reference: str) -> bool:
    return answer.casefold().split() == reference.casefold().split()


def _set(answer: str, reference: str) -> bool:
    given, wanted = _elements(answer), _elements(reference)
    return len(given) == len(wanted) and all(any(exact_equal(one, other) for other in wanted) for one in given)


def _elements(text: str) -> list[str]:
    """Without doubles, which a set does not have. A comma between groups of three digits separates nothing."""
    inside = text.strip().strip("{}[]()")
    found: list[str] = []
    for part in re.split(r";|,(?!\d{3}(?!\d))|,\s+", inside):
        if part.strip() and not any(exact_equal(part, other) for other in found):
            found.append(part)
    return found


def _symbolic(answer: str, reference: str) -> bool:
    if exact_equal(answer, reference):
        return True
    if max(len(answer), len(reference)) > MAX_EXPRESSION_CHARACTERS:
        return False
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that the caller has to bound its time
    gold, given = (parse(f"${text.strip().strip('$')}$", parsing_timeout=None) for text in (reference, answer))  # pyright: ignore[reportArgumentType]
    return bool(verify(gold, given, timeout_seconds=None))


_BY_NAME: dict[str, Comparison] = {"exact": exact_equal, "set": _set, "symbolic": _symbolic, "text": _text}
