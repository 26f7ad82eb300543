"""A reward for code: the tests of the task are run on it, in the sandbox.

What the code has to come to stays outside of the sandbox: a test says what to call, or what to feed, and the comparison
is made here. So code that patches the harness, ends its process, or returns an object that equals everything, wins
nothing.

A test is one of

* `{"call": "f(2, 3)", "equals": 5}`: a Python expression, and a value (of JSON, or a Python literal as text under
  `"equals_literal"`);
* `"assert f(2, 3) == 5"`: the same, where the right side is a literal; other asserts are refused, since whether one
  holds would be decided beside the code that it tests;
* `{"stdin": "2 3", "stdout": "5"}`: a program; white space at the ends of lines does not count.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hrm_agent.answers.final_answer import own_text
from hrm_agent.environment import Limits
from hrm_agent.environment.current import ready_environment
from hrm_agent.rewards.rubric import Reward, Scored
from hrm_agent.trajectory import TaskRef, ToolStatus

__all__ = ["code_in", "passes_tests"]

_FENCE = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_MARK = "HRM_AGENT_TEST_VALUES"
MAX_TESTS = 200


def code_in(text: str) -> str | None:
    """The last fenced block of the model's own words; the whole text where there is no fence."""
    visible = own_text(text)
    blocks = _FENCE.findall(visible)
    return blocks[-1] if blocks else None if "```" in visible else visible.strip() or None


def passes_tests(
    tests: str = "tests",
    *,
    read: Callable[[str], str | None] = code_in,
    partial: bool = False,
    seconds: float = 5.0,
    name: str = "correct",
    weight: float = 1.0,
) -> Reward:
    """A reward: 1 where the code in the final text passes all tests of the task, else 0.

    `tests`: the key of the task's metadata under which they stand. `partial`: the share that passes. `seconds`: wall
    clock of one program, and of all calls together. No opinion where the task has no tests.
    """

    async def correct(text: str, task: TaskRef) -> Scored:
        found = task.metadata.get(tests)
        wanted = [_test(each) for each in cast("Sequence[Any]", found or ())][:MAX_TESTS]
        if not wanted:
            return Scored(None, f"the task has no {tests!r}")
        code = read(text)
        if code is None:
            return Scored(0.0, "no code was found in the final text")
        passed = await _passed(code, wanted, Limits(wall_seconds=seconds, cpu_seconds=seconds))
        share = sum(passed) / len(passed)
        return Scored(share if partial else float(share == 1), f"{sum(passed)} of {len(passed)} tests passed")

    return Reward(correct, name=name, weight=weight, timeout_seconds=seconds * (MAX_TESTS + 12))


@dataclass(frozen=True, slots=True)
class _Test:
    call: str = ""
    equals: Any = None
    stdin: str | None = None
    stdout: str = ""


def _test(given: Any) -> _Test:
    """Raises ValueError for what is no test: a mistake in the task, told as the reward's fault."""
    if isinstance(given, str):
        return _asserted(given)
    row = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if "stdin" in row or "stdout" in row:
        return _Test(stdin=str(row.get("stdin", "")), stdout=str(row.get("stdout", "")))
    if isinstance(row.get("call"), str) and ("equals" in row or "equals_literal" in row):
        equals = ast.literal_eval(row["equals_literal"]) if "equals_literal" in row else row["equals"]
        return _Test(call=ast.unparse(ast.parse(row["call"], mode="eval")), equals=equals)
    raise ValueError(f"{str(given)[:200]!r} is no test: write call and equals, stdin and stdout, or an assert")


def _asserted(text: str) -> _Test:
    match ast.parse(text.strip()).body:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            return _Test(call=ast.unparse(left), equals=ast.literal_eval(right))
        case _:
            raise ValueError(f"{text[:200]!r} is no `assert CALL == LITERAL`")


async def _passed(code: str, tests: Sequence[_Test], limits: Limits) -> list[bool]:
    calls = [test for test in tests if test.stdin is None]
    values = await _values(code, [test.call for test in calls], limits) if calls else []
    by_call = iter([_same(value, test.equals) for value, test in zip(values, calls, strict=True)])
    return [next(by_call) if test.stdin is None else await _prints(code, test, limits) for test in tests]


async def _values(code: str, calls: Sequence[str], limits: Limits) -> list[str | None]:
    """The repr of what each call returned; None for one that raised, and for all where the code did not end."""
    each = ", ".join(f"lambda: ({call})" for call in calls)
    harness = f"""{code}

def {_MARK}(call):
    try:
        return repr(call())
    except Exception:
        return None

RESULT = [{_MARK}(call) for call in ({each},)]
"""
    value = await _run(harness, limits)
    try:
        found = json.loads(value or "null")
    except ValueError:
        found = None
    if not isinstance(found, list) or len(cast("list[Any]", found)) != len(calls):
        return [None] * len(calls)
    return [text if isinstance(text, str) else None for text in cast("list[Any]", found)]


async def _run(code: str, limits: Limits) -> str | None:
    result = await (await ready_environment()).execute(code, limits=limits)
    if result.status is ToolStatus.INFRASTRUCTURE:
        raise RuntimeError(f"the sandbox lost the call: {result.stderr[-200:]}")
    return result.value_json if result.status is ToolStatus.OK else None


async def _prints(code: str, test: _Test, limits: Limits) -> bool:
    fed = f"import io as _io, sys as _sys\n_sys.stdin = _io.StringIO({test.stdin!r})\ndel _io, _sys\n{code}"
    result = await (await ready_environment()).execute(fed, limits=limits)
    if result.status is ToolStatus.INFRASTRUCTURE:
        raise RuntimeError(f"the sandbox lost the call: {result.stderr[-200:]}")
    return result.status is ToolStatus.OK and _lines(result.stdout) == _lines(test.stdout)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same(shown: str | None, wanted: Any) -> bool:
    if shown is None:
        return False
    try:
        found = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return _plain(found) == _plain(wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _plain(value: Any) -> Any:
    """With lists for tuples, which JSON does not tell apart."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value
