"""Calls with arbitrary code and outputs are counted:
what a policy writes cannot end its training.
"""

from __future__ import annotations

import random

import pytest

from hrm_agent.training.select.penalties import count_calls
from hrm_agent.training.select.retracing.given import FUNCTIONS, MODULES
from hrm_agent.trajectory import ToolCall, ToolStatus
from tests.support.training.builders import tool_call

PROBLEM = "How many of 12, 7 and 30 apples are red? strawberry 3 4 5"
NUMBERS = [
    "0",
    "1",
    "-7",
    "3.5",
    "1e400",
    "10**9",
    "0x" + "f" * 4200,
    "2**500",
    "1j",
    "True",
    "None",
    "float('nan')",
]
TEXTS = [
    "''",
    "'²'",
    "'١٢'",
    "'a'",
    "'{:{}}'",
    "'%*d'",
    "'['*500",
    "'9'*1999",
    "'\\ud800'",
    "b'\\xff'",
    "'strawberry'",
]
METHODS = sorted(
    {
        name
        for kind in (str, bytes, list, dict, set, int, float)
        for name in dir(kind)
        if name[0] != "_"
    }
)
OUTPUTS = [
    "Ellipsis",
    "²",
    "٣",
    "1²",
    "1e999",
    "nan",
    "<a at 0x1f>",
    "9" * 5000,
    "\ud800",
    "...",
    "'",
    "0" * 30,
    "1.5e",
]


def expression(dice: random.Random, depth: int = 0) -> str:
    """A random expression over all functions and methods that are retraced."""
    kind = dice.randrange(12) if depth < 4 else dice.randrange(3)
    if kind < 3:
        return dice.choice(
            [*NUMBERS, *TEXTS, "x", "y", "f", "range(9)", "...", *dice.sample(sorted(FUNCTIONS), 3)]
        )
    parts = [expression(dice, depth + 1) for _ in range(dice.randrange(1, 4))]
    listed, first = ", ".join(parts), parts[0]
    module = dice.choice(sorted(MODULES))
    name = dice.choice(sorted(MODULES[module]))
    forms = [
        f"{dice.choice(sorted(FUNCTIONS))}({listed})",
        f"{module}.{name}({listed})",
        f"({first}).{dice.choice(METHODS)}({listed})",
        f"[{listed}]",
        f"({listed},)",
        "{" + listed + "}",
        (
            f"(({first}) {dice.choice(['+', '*', '**', '%', '<<', '//', '==', 'in', 'is', 'and'])}"
            f" ({parts[-1]}))"
        ),
        f"sorted([{listed}], key={dice.choice(sorted(FUNCTIONS))})",
        f"[i for i in {first} if i]",
        f"(lambda a, *b: a)({listed})",
        f"({first})[{parts[-1]}]",
        f"functools.reduce({dice.choice(sorted(FUNCTIONS))}, [{listed}])",
    ]
    return dice.choice(forms)


def snippet(dice: random.Random) -> str:
    """Snippet of one to three statements."""
    modules = "import " + ", ".join(sorted(MODULES)) + "\n"
    made = [expression(dice) for _ in range(3)]
    grown = dice.choice(["[y, y]", "(y, y)", "y + y", "{0: y}"])
    lines = [
        f"x = {made[0]}",
        f"y = {made[1]}\nfor _ in range({dice.choice([3, 90])}): y = {grown}",
        f"print({made[2]})",
        f"x.{dice.choice(METHODS)}({made[0]})",
        f"def f(*a): return {made[1]}",
        f"class A: y = {made[0]}",
        f"x = {'[' * 80}1{']' * 80}",
        made[1],
    ]
    return modules * dice.randrange(2) + "\n".join(dice.sample(lines, dice.randrange(1, 4)))


def ran(number: int, code: object, shown: str) -> ToolCall:
    facts = {"arguments": {"code": code}, "content": shown, "stdout": shown}
    return tool_call(f"call {number}", ToolStatus.OK).model_copy(update=facts)


def session(seed: int, count: int) -> list[ToolCall]:
    dice = random.Random(seed)
    codes = [snippet(dice) for _ in range(count)]
    odd = "".join(
        chr(dice.choice([dice.randrange(1, 0x11000), dice.randrange(32, 127)])) for _ in range(60)
    )
    return [
        ran(number, code, dice.choice([*OUTPUTS, odd, expression(dice), str(dice.getrandbits(90))]))
        for number, code in enumerate(codes)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_arbitrary_calls_are_counted(seed: int) -> None:
    calls = session(seed, 25)
    counted = count_calls(calls, PROBLEM if seed % 2 else "")
    assert counted.counted | counted.padding == {each.tool_call_id for each in calls}


def nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


DOUBLED = "for _ in range(60): y = (y, y)\n"


@pytest.mark.parametrize(
    ("codes", "shown"),
    [
        (["import ast\nast.literal_eval('2 apples')"], "2"),
        (["import ast\nast.literal_eval('[' * 500)"], "2"),
        (["print(7 * 19)"], "Ellipsis"),
        (["print('a')"], "²"),
        (["y = 1\nfor _ in range(150): y = [y]", "y = 2\nprint(y)"], "2"),
        ([f"y = 1\n{DOUBLED}", f"y = 1\n{DOUBLED}print(len(y))"], "2"),
        ([f"y = 1\n{DOUBLED}print({{y}})"], "2"),
        (["print(sorted([10 ** 11], key=bytes), max([10 ** 11], key=bytearray))"], "2"),
        (["import itertools\nprint(itertools.product(*['ab'] * 500, repeat=1000))"], "2"),
        ([f"x = [0x{'f' * 5000}] * 3\nprint(x.count(3))"], "2"),
        ([nested(100_000)], "2"),
    ],
)
def test_hostile_calls_are_counted(codes: list[object], shown: str) -> None:
    assert (
        0
        <= count_calls(
            [ran(number, code, shown) for number, code in enumerate(codes)], PROBLEM
        ).error
        <= 1
    )
