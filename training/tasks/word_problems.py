"""Word problems with unseen numbers: the tasks for which the small policy is built.

A template is a text with placeholders for numbers and words, an exact function of the numbers, a
Python expression (for the tool loop), and a plan of one to three subgoals (for the hierarchical
graph). Subgoals that do not need each other can be solved at the same time. Only the numbers make
the problems hard for a small policy, so a hash of template and numbers decides the split. No seed
draws numbers of the evaluation split for training, even with other names and nouns.

The expected answer is computed with exact rationals, independently of the Python expressions. If
the expressions give another value (because floats round differently at the last place), the draw is
discarded.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Literal, cast

from hrm_agent.environment.sandbox.protocol import SNIPPET
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import derive_seed

__all__ = [
    "TEMPLATES",
    "Form",
    "PlanStep",
    "Split",
    "Template",
    "WordProblem",
    "problem",
    "sample_problems",
    "snippet_value",
    "split_of",
    "word_problems",
]

Split = Literal["train", "eval"]
Form = Literal["plain", "exact"]
"""Form of a problem. plain: it asks a question. exact: it prescribes the final text (`Return
exactly: 'Answer: <unit>'.`).
"""

EVAL_SHARE = 10
"""One of this many problems belongs to the evaluation split."""

ALWAYS_EVAL = frozenset({("tank", (1200, 2, 3, 150))})
"""Problems that are always held out, since the documentation shows them."""

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("apples", "pears", "plums", "books", "pens", "cards", "stamps", "shells")


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Step of a plan, with its solution."""

    name: str
    """Name by which later subgoals use the value, a Python identifier."""
    goal: str
    """Goal of the step, as given to the solver."""
    needs: tuple[str, ...]
    """Names of earlier subgoals."""
    code: str
    """Code that assigns the needed values to their names, and ends with the formula."""
    value: str
    """Value of the code's last expression, as its repr."""


@dataclass(frozen=True, slots=True)
class WordProblem:
    """Problem with its answer and both solution paths."""

    template: str
    """Name of the template."""
    numbers: tuple[int, ...]
    """Drawn numbers, in the template's order."""
    words: tuple[str, ...]
    """Drawn names and nouns."""
    text: str
    """Text of the problem without its question."""
    question: str
    """Question in one sentence."""
    unit: str
    """Unit of the answer: `liters`."""
    answer: str
    """Exact answer, written as in Python."""
    expression: str
    """Whole computation as one Python expression."""
    plan: tuple[PlanStep, ...]
    """Steps to the answer. A step comes after the steps that it needs."""

    def prompt(self, form: Form = "plain") -> str:
        """Prompt for the policy."""
        if form == "plain":
            return f"{self.text} {self.question}"
        return f"{self.text} Return exactly: 'Answer: <{self.unit}>'."

    def final_text(self, form: Form = "plain") -> str:
        """Final message that answers `prompt(form)`."""
        return (
            f"Answer: {self.answer}"
            if form == "exact"
            else f"<answer>\\boxed{{{self.answer}}}</answer>"
        )

    def task(self, form: Form = "plain") -> Task:
        """Task of the problem, with its verifier."""
        parts = (self.template, *map(str, self.numbers), *self.words)
        return Task(
            id="-".join(parts) + ("-exact" if form == "exact" else ""),
            family="word_problems",
            prompt=self.prompt(form),
            verify=exact_verifier(self.answer),
            answer=self.answer,
            metadata={"template": self.template, "numbers": list(self.numbers)},
        )


@dataclass(frozen=True, slots=True)
class Template:
    """Kind of problem. Texts, formulas and goals are format strings over numbers and words."""

    name: str
    """Name of the template, unique. The ids of its tasks begin with it."""
    text: str
    """Text of the problem without its question."""
    question: str
    """Question in one sentence."""
    unit: str
    """Unit of the answer."""
    ranges: Mapping[str, range]
    """Ranges of the numbers, by name."""
    solve: Callable[..., Fraction | int]
    """Function (numbers as keyword arguments) -> exact answer."""
    expression: str
    """Whole computation as one Python expression."""
    plan: tuple[tuple[str, str, str], ...]
    """Steps as `(name, goal, formula)`. A formula needs the earlier subgoals whose names it
    contains.
    """
    decimals: int = 0
    """Number of decimals to which the answer is rounded."""


TEMPLATES: tuple[Template, ...] = (
    Template(
        name="tank",
        text=(
            "A tank holds {capacity} L. It leaks {leak}% per hour for {hours} hours, then is"
            " refilled by {refill} L."
        ),
        question="How many liters are in it? Round to 2 decimals.",
        unit="liters",
        ranges={
            "capacity": range(100, 2001, 10),
            "leak": range(1, 10),
            "hours": range(2, 7),
            "refill": range(10, 501),
        },
        solve=lambda capacity, leak, hours, refill: (
            capacity * Fraction(100 - leak, 100) ** hours + refill
        ),
        expression="round({capacity}*(1-{leak}/100)**{hours}+{refill}, 2)",
        plan=(
            ("left", "liters left after the leak", "round({capacity}*(1-{leak}/100)**{hours}, 4)"),
            ("total", "liters after the refill", "round(left+{refill}, 2)"),
        ),
        decimals=2,
    ),
    Template(
        name="shop",
        text="{who} buys {a} {thing} at {b} coins each and {c} {other} at {d} coins each.",
        question="How many coins does {who} pay?",
        unit="coins",
        ranges={"a": range(11, 100), "b": range(11, 100), "c": range(11, 100), "d": range(11, 100)},
        solve=lambda a, b, c, d: a * b + c * d,
        expression="{a}*{b}+{c}*{d}",
        plan=(
            ("first", "coins for the first kind", "{a}*{b}"),
            ("second", "coins for the second kind", "{c}*{d}"),
            ("total", "coins in all", "first+second"),
        ),
    ),
    Template(
        name="boxes",
        text="{who} packs {a} boxes with {b} {thing} each, then gives away {c} {thing}.",
        question="How many {thing} are left?",
        unit="{thing}",
        ranges={"a": range(11, 100), "b": range(11, 100), "c": range(101, 1000)},
        solve=lambda a, b, c: a * b - c,
        expression="{a}*{b}-{c}",
        plan=(("packed", "number packed", "{a}*{b}"), ("left", "number left over", "packed-{c}")),
    ),
    Template(
        name="change",
        text="{who} has {a} coins and buys {b} {thing} at {c} coins each.",
        question="How many coins does {who} keep?",
        unit="coins",
        ranges={"a": range(1001, 10000), "b": range(11, 100), "c": range(11, 100)},
        solve=lambda a, b, c: a - b * c,
        expression="{a}-{b}*{c}",
        plan=(("spent", "coins spent", "{b}*{c}"), ("kept", "coins kept", "{a}-spent")),
    ),
    Template(
        name="train",
        text="A train drives {a} km per hour for {b} hours, then {c} km per hour for {d} hours.",
        question="How many km does it drive?",
        unit="km",
        ranges={"a": range(101, 300), "b": range(11, 60), "c": range(41, 300), "d": range(11, 60)},
        solve=lambda a, b, c, d: a * b + c * d,
        expression="{a}*{b}+{c}*{d}",
        plan=(
            ("first", "km of the first part", "{a}*{b}"),
            ("second", "km of the second part", "{c}*{d}"),
            ("total", "km in all", "first+second"),
        ),
    ),
    Template(
        name="share",
        text="{who} finds {a} {thing} and {b} {other} and shares them equally among {c} friends.",
        question="How many does each friend get?",
        unit="items",
        ranges={"a": range(101, 1000), "b": range(101, 1000), "c": range(3, 30)},
        solve=lambda a, b, c: Fraction(a + b, c),
        expression="({a}+{b})//{c}",
        plan=(
            ("found", "items found", "{a}+{b}"),
            ("share", "items for each friend", "found//{c}"),
        ),
    ),
    Template(
        name="savings",
        text="{who} has {a} coins and saves {b} coins a week for {c} weeks.",
        question="How many coins does {who} have then?",
        unit="coins",
        ranges={"a": range(101, 1000), "b": range(11, 100), "c": range(11, 100)},
        solve=lambda a, b, c: a + b * c,
        expression="{a}+{b}*{c}",
        plan=(("total", "coins after the last week", "{a}+{b}*{c}"),),
    ),
    Template(
        name="fence",
        text="A field is {a} m long and {b} m wide. A fence goes around it {c} times.",
        question="How many m of fence are that?",
        unit="m",
        ranges={"a": range(101, 1000), "b": range(11, 1000), "c": range(2, 10)},
        solve=lambda a, b, c: 2 * (a + b) * c,
        expression="2*({a}+{b})*{c}",
        plan=(("around", "m once around", "2*({a}+{b})"), ("fence", "m of fence", "around*{c}")),
    ),
    Template(
        name="bakery",
        text="A bakery bakes {a} rolls a day, sells {b} of them and keeps the rest, for {c} days.",
        question="How many rolls does it keep?",
        unit="rolls",
        ranges={"a": range(101, 1000), "b": range(101, 1000), "c": range(3, 100)},
        solve=lambda a, b, c: (a - b) * c,
        expression="({a}-{b})*{c}",
        plan=(
            ("day", "rolls kept each day", "{a}-{b}"),
            ("total", "rolls kept in all days", "day*{c}"),
        ),
    ),
    Template(
        name="farm",
        text="A farm keeps {a} hens and {b} cows.",
        question="How many legs do they have?",
        unit="legs",
        ranges={"a": range(11, 1000), "b": range(11, 1000)},
        solve=lambda a, b: 2 * a + 4 * b,
        expression="2*{a}+4*{b}",
        plan=(
            ("hens", "legs of the hens", "2*{a}"),
            ("cows", "legs of the cows", "4*{b}"),
            ("total", "legs in all", "hens+cows"),
        ),
    ),
)
"""Templates of all kinds of problems."""

_BY_NAME = {template.name: template for template in TEMPLATES}


def problem(
    template: str, numbers: tuple[int, ...], words: tuple[str, ...] = ()
) -> WordProblem | None:
    """Problem with these numbers (None if it has no positive answer of the required precision, or
    floats do not give the exact answer).

    `words`: values of the placeholders `(who, thing, other)`, as many as the template has.
    """
    kind = _BY_NAME[template]
    values = dict(zip(kind.ranges, numbers, strict=True))
    answer = _rounded(Fraction(kind.solve(**values)), kind.decimals)
    if answer is None or answer <= 0:
        return None
    places = ("who", "thing", "other")[: _word_count(kind)]
    texts = {**values, **dict(zip(places, words, strict=True))}
    expression = kind.expression.format(**texts)
    plan = _solve_plan(kind, texts)
    if {Fraction(plan[-1].value), Fraction(snippet_value(expression))} != {answer}:
        return None
    return WordProblem(
        template=template,
        numbers=numbers,
        words=words,
        text=kind.text.format(**texts),
        question=kind.question.format(**texts),
        unit=kind.unit.format(**texts),
        answer=plan[-1].value,
        expression=expression,
        plan=plan,
    )


def sample_problems(split: Split, seed: int, count: int) -> list[WordProblem]:
    """Sample `count` different problems of a split. A longer list with the same seed starts with
    the shorter one.
    """
    return list(islice(_draws(split, seed), count))


def word_problems(split: Split, seed: int, count: int, form: Form = "plain") -> list[Task]:
    """Return `count` different tasks of a split, which depend only on the arguments."""
    return [drawn.task(form) for drawn in sample_problems(split, seed, count)]


def split_of(template: str, numbers: tuple[int, ...]) -> Split:
    """Split to which a problem belongs, for all seeds and words."""
    if (template, numbers) in ALWAYS_EVAL:
        return "eval"
    digest = hashlib.sha256(f"{template}:{numbers}".encode()).digest()
    return "eval" if int.from_bytes(digest[:4]) % EVAL_SHARE == 0 else "train"


def snippet_value(code: str) -> str:
    """Return the repr of the last expression of a snippet of this package. Never use it for code
    that a policy wrote.
    """
    tree = ast.parse(code, SNIPPET)
    *before, last = tree.body
    names: dict[str, object] = {}
    exec(compile(ast.Module(before, []), SNIPPET, "exec"), names)  # noqa: S102 - the code comes from the table above
    expression = ast.Expression(cast("ast.Expr", last).value)
    return repr(eval(compile(expression, SNIPPET, "eval"), names))  # noqa: S307 - likewise


def _draws(split: Split, seed: int) -> Iterator[WordProblem]:
    """Yield problems without end, from the templates in turn. No combination of template and
    numbers is repeated.
    """
    rng = random.Random(derive_seed(seed, "word_problems", split))
    seen: set[tuple[str, tuple[int, ...]]] = set()
    while True:
        for kind in TEMPLATES:
            drawn = _draw(kind, split, rng)
            while (kind.name, drawn.numbers) in seen:
                drawn = _draw(kind, split, rng)
            seen.add((kind.name, drawn.numbers))
            yield drawn


def _draw(kind: Template, split: Split, rng: random.Random) -> WordProblem:
    """Draw problems until one belongs to the split."""
    while True:
        numbers = tuple(rng.choice(values) for values in kind.ranges.values())
        words = (rng.choice(NAMES), *rng.sample(THINGS, 2))[: _word_count(kind)]
        if split_of(kind.name, numbers) == split and (drawn := problem(kind.name, numbers, words)):
            return drawn


def _word_count(kind: Template) -> int:
    """Number of the placeholders `(who, thing, other)` that the template has."""
    return max(
        (i + 1 for i, place in enumerate(("{who}", "{thing}", "{other}")) if place in kind.text),
        default=0,
    )


def _solve_plan(kind: Template, texts: Mapping[str, object]) -> tuple[PlanStep, ...]:
    """Steps of a plan with their code and value. A value is computed by the step's code."""
    known: dict[str, str] = {}
    steps: list[PlanStep] = []
    for name, goal, pattern in kind.plan:
        formula = pattern.format(**texts)
        needs = tuple(earlier for earlier in known if re.search(rf"\b{earlier}\b", formula))
        code = "".join(f"{need} = {known[need]}\n" for need in needs) + formula
        known[name] = snippet_value(code)
        steps.append(PlanStep(name, goal.format(**texts), needs, code, known[name]))
    return tuple(steps)


def _rounded(value: Fraction, decimals: int) -> Fraction | None:
    """Value rounded to `decimals` (None if `decimals` is 0 and the value is not an integer)."""
    if decimals == 0:
        return value if value.denominator == 1 else None
    return round(value, decimals)
