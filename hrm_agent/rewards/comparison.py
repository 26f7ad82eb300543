"""Comparisons of an answer with the reference, by name, and the reward made of a reader and a
comparison.

| comparison | equal values |
|---|---|
| `exact` | the same number exactly, else the same text (`hrm_agent.answers.exact`) |
| `text` | the same words, in any case and spacing |
| `numeric:TOLERANCE` | numbers that differ by at most TOLERANCE * max(1, size of the reference) |
| `symbolic` | expressions that math-verify finds equal: `x(x+1)` and `x^2+x` |
| `set` | the same elements in any order, separated by commas, each compared exactly |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib.util import find_spec

from hrm_agent.answers.exact import exact_equal, number, quantity
from hrm_agent.errors import ConfigError, nearest, to_install
from hrm_agent.rewards.bounded_call import CallRaisedError, ExceededError, bounded_call
from hrm_agent.rewards.readers import Reader, reader_of
from hrm_agent.rewards.rubric import Reward, Scored

__all__ = ["Comparison", "answer_is", "comparison_of"]

Comparison = Callable[[str, str], bool]
"""Function of (answer, reference) that returns True if they are equal."""

MAX_EXPRESSION_CHARACTERS = 512
"""Maximum length of texts that are parsed as mathematics."""
LEAST_SET_CHARACTERS, SET_FACTOR = 4096, 16
"""Limits of a set's text: a number of characters, and a multiple of the length of the reference's
text. A set whose text exceeds both is unequal.
"""
BOUNDED_SECONDS = 600.0
"""Timeout of a reward in seconds. It is long, since bounded calls wait for each other."""


def answer_is(
    reader: str | Reader = "boxed",
    compare: str | Comparison = "exact",
    *,
    name: str = "correct",
    weight: float = 1.0,
) -> Reward:
    """Reward that is 1 if the answer that `reader` finds in the final text is the task's reference
    answer, else 0.

    The value is None (no opinion) if the task has no reference answer.
    """
    read = reader_of(reader)
    equal = comparison_of(compare)

    def correct(text: str, reference: str | None) -> Scored:
        if reference is None:
            return Scored(None, "the task has no reference answer")
        found = read(text)
        if found is None:
            return Scored(0.0, "no answer was found in the final text")
        why = _why_not_symbolic(found, reference) if equal is _symbolic else ""
        right = not why if equal is _symbolic else equal(found, reference)
        return Scored(float(right), f"read {found[:200]!r}" + (f"; {why}" if why else ""))

    return Reward(correct, name=name, weight=weight, timeout_seconds=BOUNDED_SECONDS)


def comparison_of(spec: str | Comparison) -> Comparison:
    """Comparison for a name, or the function itself. Raises `ConfigError`."""
    if callable(spec):
        return spec
    name, _, rest = spec.partition(":")
    if name == "numeric":
        text = rest or "1e-6"
        tolerance = number(text)
        if tolerance is None or tolerance < 0:
            raise ConfigError(f"{text!r} is not a tolerance.", "Write numeric:1e-6.")
        return partial(_numeric, tolerance)
    if name == "symbolic" and find_spec("math_verify") is None:
        raise ConfigError(
            "math-verify is not installed, and the comparison `symbolic` needs it.",
            f"Run `{to_install('math')}`.",
        )
    if name in _BY_NAME and not rest:
        return _BY_NAME[name]
    known = [*_BY_NAME, "numeric:TOLERANCE"]
    raise ConfigError(
        f"There is no comparison {spec!r}.",
        f"{nearest(name, [*_BY_NAME, 'numeric'])} Comparisons: {', '.join(known)}.".strip(),
    )


def _numeric(tolerance: Fraction, answer: str, reference: str) -> bool:
    given = number(answer)
    wanted = number(reference)
    if given is None or wanted is None:
        return exact_equal(answer, reference)
    return abs(given - wanted) <= tolerance * max(Fraction(1), abs(wanted))


def _text(answer: str, reference: str) -> bool:
    return answer.casefold().split() == reference.casefold().split()


def _set(answer: str, reference: str) -> bool:
    if len(answer) > max(LEAST_SET_CHARACTERS, SET_FACTOR * len(reference)):
        return False
    given = _Elements(answer)
    wanted = _Elements(reference)
    return len(given.found) == len(wanted.found) and all(map(wanted.has, given.found))


class _Elements:
    """Set of elements, parsed from text. A comma between groups of three digits is not a separator.

    Elements that `exact_equal` finds equal count as one. Each is parsed once and looked up by its
    number, not compared with all others, since a policy may write very many elements.
    """

    def __init__(self, text: str) -> None:
        self.found: list[tuple[Fraction | str, str]] = []
        """Elements, each as (number, unit) or (text, "")."""
        self._units: dict[Fraction | str, set[str]] = {}
        inside = text.strip()
        while inside[:1] + inside[1:][-1:] in ("{}", "[]", "()"):
            inside = inside[1:-1].strip()
        for part in re.split(r";|,(?!\d{3}(?!\d))|,\s+", inside):
            element = quantity(part) or (part.strip(), "")
            if part.strip() and not self.has(element):
                self.found.append(element)
                self._units.setdefault(element[0], set()).add(element[1])

    def has(self, element: tuple[Fraction | str, str]) -> bool:
        """True if an equal element exists. Units are compared only if both have one."""
        value, unit = element
        units = self._units.get(value, ())
        return unit in units or (bool(units) and not unit) or "" in units


def _symbolic(answer: str, reference: str) -> bool:
    return not _why_not_symbolic(answer, reference)


def _why_not_symbolic(answer: str, reference: str) -> str:
    """Reason why an answer is not equal to the reference (empty if it is equal).

    An answer is also unequal if the algebra takes too long for it or cannot parse it.
    """
    if exact_equal(answer, reference):
        return ""
    if max(len(answer), len(reference)) > MAX_EXPRESSION_CHARACTERS:
        return f"longer than {MAX_EXPRESSION_CHARACTERS} characters"
    try:
        equal = bounded_call("hrm_agent.rewards.symbolic:is_equal", answer, reference)
    except (ExceededError, CallRaisedError) as error:
        return f"it cannot be compared: {error}"
    return "" if equal else "not equal"


_BY_NAME: dict[str, Comparison] = {
    "exact": exact_equal,
    "set": _set,
    "symbolic": _symbolic,
    "text": _text,
}
