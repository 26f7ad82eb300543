"""Lessons of form for a pretrained model: conversations of the tool loop in which the request itself
says what to compute.

    python -m benchmarks.smollm2.lessons LESSONS.jsonl [--count 384] [--seed 0]

They are the cold start of rStar2-Agent (arXiv 2508.20722, section 5) in miniature: calls of the
tool, and general instructions. Each request names the operations: as an expression, in words ("Add 3
cups and $5."), on a list of quantities, by a phrase ("20% off $40", "twice as many as 9"), or step by
step, with a call for each step. No lesson has a story from which the operations must be inferred;
reinforcement learning has to find this.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT, loop_system_turn
from hrm_agent.training.sft import Conversation
from hrm_agent.training.small_policy.format_lessons import write_lessons
from hrm_agent.training.small_policy.snippets import tool_text
from hrm_agent.trajectory import derive_seed

__all__ = ["KINDS", "Request", "lessons", "turns_with_tool", "value_of", "write_asked"]

Request = tuple[str, list[str]]
"""Request in words, and the code of each call that carries it out."""

NOUNS = (
    "apples", "boxes", "cards", "coins", "cups", "days", "dollars", "eggs", "flowers", "hours", "letters",
    "meters", "miles", "minutes", "oranges", "pages", "pens", "people", "pounds", "seats", "shells", "stamps",
    "students", "tickets", "trees", "toys",
)  # fmt: skip
PEOPLE = ("Ana", "Ben", "Chloe", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivan", "Julia", "Kim", "Leo")
WORDS = (
    "apple", "boat", "cloud", "door", "east", "fish", "garden", "hill", "island", "jar", "king", "lamp",
    "moon", "north", "oak", "paper",
)  # fmt: skip
GROUPS = ("boxes", "bags", "rows", "packs", "teams", "rooms", "days", "weeks", "shelves")
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times", 10: "ten times"}
FRACTIONS = (
    (1, 2, "half"), (1, 3, "a third"), (1, 4, "a quarter"), (2, 3, "2/3"), (3, 4, "3/4"), (1, 5, "1/5"),
    (2, 5, "2/5"), (1, 6, "1/6"),
)  # fmt: skip
PERCENTS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75)


def lessons(seed: int, count: int) -> Iterator[Conversation]:
    """Yield `count` conversations, mixed by `KINDS`."""
    rng = random.Random(derive_seed(seed, "lessons of form"))
    system = SystemMessage(loop_system_turn(TOOL_LOOP_PROMPT, fenced=True))
    for _ in range(count):
        request = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if request is instruction:
            asked, (answer,) = request(rng)
            yield Conversation((HumanMessage(asked), AIMessage(answer)))
        else:
            asked, calls = request(rng)
            yield Conversation((system, HumanMessage(asked), *turns_with_tool(calls)))


def turns_with_tool(calls: Sequence[str]) -> list[BaseMessage]:
    """Turns of the tool loop after the request, with fenced calls, as `hrm_agent.tools.fenced`
    writes the results. The answer is the last result.
    """
    turns: list[BaseMessage] = []
    for code in calls:
        turns.append(AIMessage(f"```python\n{code}\n```"))
        turns.append(HumanMessage(f"Result 1 (ok):\n```output\n{tool_text(code)}\n```"))
    return [*turns, AIMessage(f"<answer>\\boxed{{{value_of(calls[-1])}}}</answer>")]


def value_of(code: str) -> str:
    """Result of the code as an answer, without the `.0` of a whole number."""
    return tool_text(code).strip().removesuffix(".0")


def expression(rng: random.Random) -> Request:
    """Expression, partly with signs that Python does not know."""
    a, b, c, d = (_number(rng) for _ in range(4))
    one, two, three = (rng.choice("+-*") for _ in range(3))
    sign = rng.choice("+-")
    code = rng.choice(
        (
            f"{a} {one} {b}",
            f"{a} {one} {b} {two} {c}",
            f"({a} {sign} {b}) * {c}",
            f"{a} * ({b} {sign} {c})",
            f"{a} {one} {b} {two} {c} {three} {d}",
            f"{a * b} / {b}",
            f"({a} {one} {b}) {two} ({c} {three} {d})",
            f"{a}.{rng.randint(1, 9)}5 * {b}",
            f"{a} * {b} / 100",
        )
    )
    shown = code
    if rng.random() < 0.3:
        shown = shown.replace("*", rng.choice("x×")).replace("/", "÷")
    if rng.random() < 0.2:
        shown = shown.replace(" ", "")
    asked = rng.choice(
        (
            f"Work out {shown}.",
            f"What is {shown}?",
            f"Compute {shown}",
            f"{shown} =",
            f"Run this with python: {shown}",
            f"Please calculate {shown}.",
            f"I need the value of {shown}.",
        )
    )
    return asked, [code]


def operation(rng: random.Random) -> Request:
    """One or two operations in words on quantities."""
    noun = rng.choice((None, None, rng.choice(NOUNS)))

    def said(number: int) -> str:
        return _quantity(rng, number, noun)

    a, b, c = (_number(rng) for _ in range(3))
    k = rng.randint(2, 12)
    small, large = min(a, b), max(a, b) + 1
    percent = rng.choice(PERCENTS)
    one = (
        (f"Add {said(a)} and {said(b)}.", f"{a} + {b}"),
        (f"Add {said(a)}, {said(b)} and {said(c)}.", f"{a} + {b} + {c}"),
        (f"What is the sum of {said(a)} and {said(b)}?", f"{a} + {b}"),
        (f"Take {said(small)} away from {said(large)}.", f"{large} - {small}"),
        (f"Subtract {said(small)} from {said(large)}.", f"{large} - {small}"),
        (f"What is {said(large)} minus {said(small)}?", f"{large} - {small}"),
        (f"Multiply {said(a)} by {k}.", f"{a} * {k}"),
        (f"What is {k} times {said(a)}?", f"{k} * {a}"),
        (f"Divide {said(a * k)} by {k}.", f"{a * k} / {k}"),
        (f"Divide {said(a * k)} evenly into {k} parts. How large is a part?", f"{a * k} / {k}"),
        (f"What is half of {said(2 * a)}?", f"{2 * a} / 2"),
        (f"What is a third of {said(3 * a)}?", f"{3 * a} / 3"),
        (f"What is twice {said(a)}?", f"2 * {a}"),
        (f"What is {percent}% of {said(a * 20)}?", f"{a * 20} * {percent} / 100"),
    )
    two = (
        (f"Multiply {said(a)} by {k}, then add {said(b)}.", f"{a} * {k} + {b}"),
        (f"Add {said(a)} and {said(b)}, then multiply the sum by {k}.", f"({a} + {b}) * {k}"),
        (
            f"Subtract {said(small)} from {said(large)}, then multiply what is left by {k}.",
            f"({large} - {small}) * {k}",
        ),
        (f"Add {said(a)} and {said(b)} and divide the sum by {k}.", f"({a} + {b}) / {k}"),
        (f"Multiply {a} by {b} and divide the product by {k}.", f"{a} * {b} / {k}"),
        (
            f"Divide {said(a * k)} by {k}, then subtract {said(min(a, 3))}.",
            f"{a * k} / {k} - {min(a, 3)}",
        ),
        (
            f"Take {percent}% of {said(a * 20)} away from {said(a * 20)}.",
            f"{a * 20} - {a * 20} * {percent} / 100",
        ),
        (
            f"Multiply {said(a)} by {k} and {said(b)} by {c}. Add both products.",
            f"{a} * {k} + {b} * {c}",
        ),
        (f"Double {said(a)} and add the result to {said(b)}.", f"2 * {a} + {b}"),
        (
            f"From {said(a + b + c)} subtract {said(a)}, and then {said(b)}.",
            f"{a + b + c} - {a} - {b}",
        ),
    )
    asked, code = rng.choice(one if rng.random() < 0.5 else two)
    return asked, [code]


def on_a_list(rng: random.Random) -> Request:
    """Operation in words on some of the quantities in a text."""
    who, other = rng.sample(PEOPLE, 2)
    x, y, z = rng.sample(NOUNS, 3)
    a, b, c = (_number(rng) for _ in range(3))
    large, small = max(a, b) + 1, min(a, b)
    note = (
        f"{who} has a note on which stands: {_quantity(rng, a, x)}, {_quantity(rng, b, y)},"
        f" {_quantity(rng, c, z)}."
    )
    two = (
        f"In line one {who} wrote {_quantity(rng, large, x)}."
        f" In line two {other} wrote {_quantity(rng, small, x)}."
    )
    three = (
        f"In line one {who} wrote {_quantity(rng, a, x)}."
        f" In line two {other} wrote {_quantity(rng, b, y)}."
        f" In line three stands {_quantity(rng, c, z)}."
    )
    asked, code = rng.choice(
        (
            (f"{note} Multiply the number of {x} by the number of {z}.", f"{a} * {c}"),
            (f"{note} Add the numbers of {y} and {z}.", f"{b} + {c}"),
            (f"{note} What is the sum of all three numbers?", f"{a} + {b} + {c}"),
            (f"{two} Subtract line two from line one.", f"{large} - {small}"),
            (f"{three} Multiply line one by line two and add line three.", f"{a} * {b} + {c}"),
            (
                f"{three} Add line one and line three, then multiply by line two.",
                f"({a} + {c}) * {b}",
            ),
        )
    )
    return asked, [code]


def in_steps(rng: random.Random) -> Request:
    """Operations in words one after the other, each with a call of its own on the last result."""
    noun = rng.choice((None, None, rng.choice(NOUNS)))

    def said(number: int) -> str:
        return _quantity(rng, number, noun)

    a, b = _number(rng), _number(rng)
    k = rng.randint(2, 12)
    small, large = min(a, b), max(a, b) + 1
    asked, code = rng.choice(
        (
            (f"Add {said(a)} and {said(b)}.", f"{a} + {b}"),
            (f"Multiply {said(a)} by {k}.", f"{a} * {k}"),
            (f"Subtract {said(small)} from {said(large)}.", f"{large} - {small}"),
            (f"Take half of {said(2 * a)}.", f"{2 * a} / 2"),
            (f"Divide {said(a * k)} by {k}.", f"{a * k} / {k}"),
        )
    )
    calls = [code]
    for _ in range(rng.choice((1, 1, 2))):
        result = tool_text(calls[-1]).strip()
        c = _number(rng)
        then, code = rng.choice(
            (
                (f"Then add {said(c)}.", f"{result} + {c}"),
                (f"Add {said(c)} to the result.", f"{result} + {c}"),
                (f"Then multiply it by {k}.", f"{result} * {k}"),
                (f"Then subtract {said(c)}.", f"{result} - {c}"),
                (f"Subtract the result from {said(c)}.", f"{c} - {result}"),
                (f"Then divide it by {k}.", f"{result} / {k}"),
                ("Then double it.", f"2 * {result}"),
            )
        )
        asked = f"{asked} {then}"
        calls.append(code)
    return asked, calls


def by_phrase(rng: random.Random) -> Request:
    """Phrase that stands for a number, alone or with a second operation, in one call or in two."""
    phrase, code = _phrase(rng)
    if rng.random() < 0.55:
        asked = rng.choice(
            (
                f"How much is {phrase}?",
                f"Work out {phrase}.",
                f"I need this number: {phrase}.",
                f"Compute {phrase}.",
            )
        )
        return asked, [code]
    c, k = _number(rng), rng.randint(2, 9)
    other, its_code = _phrase(rng)
    then, further = rng.choice(
        (
            (f"add {c}", f"{{}} + {c}"),
            (f"multiply it by {k}", f"{{}} * {k}"),
            (f"divide it by {k}", f"{{}} / {k}"),
            (f"subtract {c}", f"{{}} - {c}"),
            (f"add {other}", f"{{}} + {_bracketed(its_code)}"),
        )
    )
    asked = rng.choice((f"Take {phrase}. Then {then}.", f"First work out {phrase}, then {then}."))
    if rng.random() < 0.2:
        return asked, [further.format(_bracketed(code))]
    return asked, [code, further.format(tool_text(code).strip())]


def _phrase(rng: random.Random) -> tuple[str, str]:
    """Phrase for a number, and its code."""
    noun = rng.choice((None, rng.choice(NOUNS), rng.choice(NOUNS)))
    things = noun or "things"

    def said(number: int) -> str:
        return _quantity(rng, number, noun)

    a, b = _number(rng), _number(rng)
    k = rng.randint(2, 12)
    small, large = min(a, b), max(a, b) + 1
    percent = rng.choice(PERCENTS)
    over, under, fraction = rng.choice(FRACTIONS)
    factor = rng.choice(list(TIMES))
    times = rng.choice((TIMES[factor], f"{factor} times"))
    few, many = rng.choice(("fewer", "less")), rng.choice(("many", "much"))
    base = 20 * a
    return rng.choice(
        (
            (f"{said(a)} more than {said(b)}", f"{b} + {a}"),
            (f"{said(small)} {few} than {said(large)}", f"{large} - {small}"),
            (f"{times} as {many} as {said(a)}", f"{factor} * {a}"),
            (f"half as {many} as {said(2 * a)}", f"{2 * a} / 2"),
            (f"{k} {things} at ${a} each", f"{k} * {a}"),
            (f"{k} {rng.choice(GROUPS)} of {said(a)} each", f"{k} * {a}"),
            (f"{said(a)} a day for {k} days", f"{a} * {k}"),
            (f"{said(a)} per hour for {k} hours", f"{a} * {k}"),
            (f"{percent}% off ${base}", f"{base} - {base} * {percent} / 100"),
            (f"{percent}% more than {said(base)}", f"{base} + {base} * {percent} / 100"),
            (f"{percent}% of {said(base)}", f"{base} * {percent} / 100"),
            (f"{fraction} of {said(a * under)}", f"{a * under} * {over} / {under}"),
            (f"{said(a * k)} shared equally by {k}", f"{a * k} / {k}"),
            (f"each part of {said(a * k)} in {k} equal parts", f"{a * k} / {k}"),
            (f"the number of groups of {k} in {said(a * k)}", f"{a * k} / {k}"),
            (f"{k} dozen {things}", f"{k} * 12"),
            (f"{k} weeks, in days", f"{k} * 7"),
            (f"{k} hours, in minutes", f"{k} * 60"),
            (f"{k} years, in months", f"{k} * 12"),
            (f"what is left of {said(large)} after {said(small)} are gone", f"{large} - {small}"),
            (f"the difference between {said(large)} and {said(small)}", f"{large} - {small}"),
            (f"how many more {said(large)} are than {said(small)}", f"{large} - {small}"),
            (f"the change from ${large} for ${small}", f"{large} - {small}"),
            (f"{said(a)} and {said(b)} together", f"{a} + {b}"),
            (f"the total of {said(a)} and {said(b)}", f"{a} + {b}"),
        )
    )


def _bracketed(code: str) -> str:
    return f"({code})" if "+" in code or "-" in code else code


def instruction(rng: random.Random) -> Request:
    """Instruction about words, with its answer in place of code."""
    words = rng.sample(WORDS, rng.randint(2, 4))
    listed = " ".join(words)
    asked, answer = rng.choice(
        (
            (f"Repeat these words: {listed}", listed),
            (f"Write these words in capital letters: {listed}", listed.upper()),
            (f"Which is the first of these words? {listed}", words[0]),
            (f"Which is the last of these words? {listed}", words[-1]),
            (f"Put commas between these words: {listed}", ", ".join(words)),
        )
    )
    return asked, [answer]


KINDS: dict[Callable[[random.Random], Request], int] = {
    expression: 14,
    operation: 8,
    on_a_list: 8,
    in_steps: 30,
    by_phrase: 36,
    instruction: 4,
}
"""Number of lessons of each kind in a hundred."""


def _number(rng: random.Random) -> int:
    sizes = (
        rng.randint(2, 12),
        rng.randint(2, 30),
        rng.randint(2, 99),
        rng.randint(10, 400),
        rng.choice((100, 150, 200, 250, 300, 500, 1000, 1200, 2000)),
    )
    return rng.choice(sizes)


def _quantity(rng: random.Random, number: int, noun: str | None) -> str:
    """Number as texts have it: with a noun, as a price, or alone."""
    text = f"{number:,}" if number >= 1000 and rng.random() < 0.6 else str(number)
    if noun == "dollars" or (noun is None and rng.random() < 0.15):
        return f"${text}"
    return f"{text} {noun}" if noun else text


def write_asked(
    make: Callable[[int, int], Iterator[Conversation]], doc: str | None, count: int
) -> None:
    """Command that writes lessons to a file. `count`: default number of them."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_lessons(list(make(options.seed, options.count)), options.out)


if __name__ == "__main__":
    write_asked(lessons, __doc__, 384)
