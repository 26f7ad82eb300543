"""Paddings that a policy might write, run in real sessions: none of them lowers a penalty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.training.select.penalties import count_calls, penalty_error, penalty_format
from hrm_agent.training.select.roc import select
from hrm_agent.trajectory import TaskRef, ToolCall, ToolStatus
from tests.support.training.builders import call, rollout, tool_call, trajectory
from tests.support.training.paddings import (
    FAMILIES,
    LATER,
    Padding,
    paddings,
    recorded,
    run_session,
)

WORKED = "print(23 * 2 + 45 * 4)"
FAILED = "1 / 0"
PASSES = {"weekdays"}
"""Families of which one goes undetected, as docs/training.md states."""
WORKS = {"the same twice", "kept as it is"}
"""Families that calculate something: they are padding where it has been calculated."""


@pytest.fixture(scope="module")
def environment() -> Iterator[LocalEnvironment]:
    environment = LocalEnvironment(slots=2)
    yield environment
    environment.shutdown()


async def lowered(
    environment: LocalEnvironment, chosen: Sequence[tuple[str, Padding]]
) -> list[tuple[str, Padding]]:
    """The paddings that lower p_err of a rollout with one call that worked and one that failed, or
    with neither.
    """
    found: list[tuple[str, Padding]] = []
    for number, (name, codes) in enumerate(chosen):
        results = await run_session(environment, [WORKED, *codes, FAILED], f"{name} {number}")
        calls = recorded([WORKED, *codes, FAILED], results)
        assert (calls[0].status, calls[-1].status) == (ToolStatus.OK, ToolStatus.ERROR)
        alone = calls[1:-1]
        base = penalty_error([calls[0], calls[-1]]) == 1 / 2 and penalty_error([calls[-1]]) == 1.0
        holds = penalty_error(calls) >= 1 / 2
        if name not in WORKS:
            holds &= penalty_error([*alone, calls[-1]]) == 1.0 and penalty_error(alone) >= 1 / 2
        found += [] if base and holds else [(name, codes)]
    return found


@pytest.mark.whole
async def test_no_padding_lowers_the_share_of_errors(environment: LocalEnvironment) -> None:
    known = {name: family for name, family in (FAMILIES | LATER).items() if name not in PASSES}
    assert await lowered(environment, paddings(known, len(known), seed=3)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_padding_of_many(environment: LocalEnvironment, seed: int) -> None:
    known = {name: family for name, family in (FAMILIES | LATER).items() if name not in PASSES}
    assert await lowered(environment, paddings(known, 212, seed)) == []


def ran(name: str, code: str, shown: str = "", status: ToolStatus = ToolStatus.OK) -> ToolCall:
    facts = {"arguments": {"code": code}, "content": shown or "(no output)", "stdout": shown}
    return tool_call(name, status).model_copy(update=facts)


def test_turns_of_such_paddings_do_not_lower_the_penalty_for_surplus_answers() -> None:
    def turn(number: int, asked: list[str], text: str = "") -> Any:
        response = {"type": "ai", "content": text, "tool_calls": [{"id": each} for each in asked]}
        return call(
            f"turn-{number}",
            parent=f"turn-{number - 1}" if number else None,
            text=text,
            response=response,
        )

    tools = [
        ran("a", "import math\nprint('plan')", "plan\n"),
        ran("b", "if True: print('ok')", "ok\n"),
    ]
    tools += [ran("c", "x = 'so'"), ran("d", "print(x)", "so\n")]
    answers = "<answer>1</answer><answer>2</answer>"
    padded = [
        *(turn(number, [tool.tool_call_id]) for number, tool in enumerate(tools)),
        turn(4, [], answers),
    ]
    assert (
        penalty_format(padded, count_calls(tools)) == penalty_format([turn(0, [], answers)]) == 1.0
    )


@pytest.mark.parametrize(
    ("codes", "shown"),
    [
        (["print(sum(n for n in range(200) if n % 7 == 3))"], "2842"),
        (["print(len([n for n in range(1, 500) if n * n % 11 == 5]))"], "90"),
        (["n = 1\nwhile n * n < 5000:\n    n += 1\nprint(n)"], "71"),
        (["def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nf(7)"], "5040"),
        (
            [
                (
                    "from collections import defaultdict\nd = defaultdict(int)\nfor n in range(50): d[n"
                    " % 7] += n\nd[3]"
                )
            ],
            "171",
        ),
        (["import sympy\nx = sympy.Symbol('x')\nsympy.solve(x**2 - 5*x + 6)"], "[2, 3]"),
        (
            [
                (
                    "for n in range(2, 60):\n    if n % 7 == 5 and n % 11 == 8:\n        print(n)\n    "
                    "    break"
                )
            ],
            "19",
        ),
        (
            [
                (
                    "best = 0\nfor a in range(90):\n    for b in range(90):\n        best = max(best, a"
                    " * b % 97)\nbest"
                )
            ],
            "96",
        ),
        (["from itertools import combinations\nlen(list(combinations(range(10), 3)))"], "120"),
        (["import datetime\nd = datetime.date(2024, 3, 9)\nd.strftime('%j')"], "'069'"),
        (
            [
                (
                    "def g(n):\n    total = 0\n    for i in range(n):\n        total += i * i\n   "
                    " return total\ng(5)"
                )
            ],
            "30",
        ),
    ],
)
def test_what_is_worked_out_counts(codes: list[str], shown: str) -> None:
    calls = [ran(str(number), code, shown) for number, code in enumerate(codes)]
    assert count_calls(calls).effective == len(codes)


@pytest.mark.parametrize(
    ("code", "shown", "effective"),
    [
        ("class A: pass\nprint(A)", "<class '__main__.A'>", 0),
        ("class A: pass\nA", "<class '__main__.A'>", 0),
        ("import errno\nprint(errno.ENOENT)", "2", 0),
        ("from errno import ENOENT\nENOENT", "2", 0),
        ("import http\nprint(http.HTTPStatus.OK)", "200", 0),
        ("class A:\n    n = 23 * 17\nprint(A.n)", "391", 1),
        ("class A:\n    def f(self): return 23 * 17\nprint(A().f())", "391", 1),
        ("import enum\nclass C(enum.Enum):\n    A = 23 * 17\nfor c in C: print(c.value)", "391", 1),
        ("import calendar\nprint(calendar.timegm((2024, 3, 9)))", "1709942400", 1),
        ("import http\nprint(http.HTTPStatus.OK * 17)", "3400", 1),
    ],
)
def test_classes_and_attributes_of_modules_show_nothing_as_they_are(
    code: str, shown: str, effective: int
) -> None:
    assert count_calls([ran("a", code, shown)]).effective == effective


def test_what_is_found_out_about_the_problem_counts() -> None:
    counts = ran("a", "print('strawberry'.count('r'))", "3\n")
    assert count_calls([counts]).effective == 0
    assert count_calls([counts], "How many r are in strawberry?").effective == 1
    task = TaskRef(id="1", family="f", prompt="How many r are in strawberry?")
    kept = [trajectory(0, 1.0, tool_calls=(counts,), task=task), rollout(1, 0.0, task=task)]
    assert [overlay.penalty_error for overlay in select(kept, 2, seed=0)] == [0.0, 0.0]


def test_hostile_snippets_are_retraced_within_bounds() -> None:
    hostile = [
        "x = [0] * 1000\nfor i in range(40):\n    x = [x] * 1000\nprint(x)",
        "x = 'a' * 1000\nfor i in range(60):\n    x = x + x\nprint(len(x))",
        "print(9 ** 9 ** 9)",
        "print('%999999999d' % 5, f'{5:>999999999}', 'a'.ljust(10 ** 9))",
        "def f(): return f() + f()\nprint(f())",
        "while True: pass",
        "x = 1\nfor i in range(10 ** 9): x = x * 3\nprint(x)",
        "import codecs\nprint(codecs.decode(b'BZh91AY' * 200, 'bz2'))",
        "from itertools import count\nprint(list(count()))",
        "print(1 << 10 ** 9, 2 ** 10 ** 9, bytes(10 ** 10))",
        "import math\nprint(math.factorial(10 ** 8), math.comb(10 ** 8, 10 ** 7))",
        "print('{:{}}'.format(5, 10 ** 9), 'a'.replace('', 'b' * 1999) * 1999)",
        "print([[[[[[[[1] * 9] * 9] * 9] * 9] * 9] * 9] * 9] * 9 == 0)",
    ]
    for number, code in enumerate(hostile):
        assert 0 <= penalty_error([ran(str(number), code, "5")]) <= 1
