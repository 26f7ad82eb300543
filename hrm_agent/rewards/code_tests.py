"""Reward for code: the task's tests are run on it in the sandbox.

The expected result stays outside of the sandbox: a test names a call or an input, and the
comparison is made here. So code cannot win by patching the harness, ending its process or returning
an object that equals everything. It gets the input of a test only when that test is due
(`hrm_agent.rewards.tested_program`).

A test is one of

* `{"call": "f(2, 3)", "equals": 5}`: a Python expression, and a value (of JSON, or a Python literal
  as text under `"equals_literal"`);
* `"assert f(2, 3) == 5"`: an assert whose right side is a literal. Other asserts are refused, since
  they would be evaluated beside the code under test;
* `{"stdin": "2 3", "stdout": "5"}`: a program. White space at the ends of lines is ignored, and
  prompts of `input` may or may not be part of the expected output.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from hrm_agent.answers.program_text import code_in
from hrm_agent.environment.current import ready_environment
from hrm_agent.rewards.rubric import Reward, Scored
from hrm_agent.rewards.tested_program import (
    MAX_PROGRAM_BYTES,
    MAX_TEST_BYTES,
    CodeTest,
    TestedProgram,
)
from hrm_agent.trajectory import TaskRef, ToolStatus

__all__ = ["code_in", "passes_tests"]

MAX_TESTS = 200
MAX_TIMEOUTS = 5
"""Maximum number of programs per answer that may time out. Then the remaining tests fail, too."""
LONGEST_SECONDS = 86_400.0
"""Wall-clock timeout of a reward, in seconds. The program's time is limited separately. The rest is
waiting for others, and only an environment that does not answer takes this long.
"""
MAX_PROGRAMS = 16
"""Maximum number of programs under test in parallel. An environment has 64 sessions, including
those of its tools.
"""
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def passes_tests(
    tests: str = "tests",
    *,
    read: Callable[[str], str | None] = code_in,
    partial: bool = False,
    seconds: float = 5.0,
    name: str = "correct",
    weight: float = 1.0,
) -> Reward:
    """Reward that is 1 if the code in the final text passes all tests of the task, else 0.

    `tests`: key of the tests in the task's metadata. `partial`: the value is the share of passed
    tests; otherwise testing stops at the first failure. `seconds`: wall-clock time of one program,
    and of all calls together. All programs of a text have 40 times as long. No opinion (None) if
    the task has no tests.
    """

    async def correct(text: str, task: TaskRef) -> Scored:
        found = task.metadata.get(tests)
        wanted = [_test(each) for each in cast("Sequence[Any]", found or ())[:MAX_TESTS]]
        if not wanted:
            return Scored(None, f"the task has no {tests!r}")
        code = read(text)
        if code is None:
            return Scored(0.0, "no code was found in the final text")
        if len(repr(code).encode()) > MAX_PROGRAM_BYTES:
            return Scored(0.0, f"the code is longer than {MAX_PROGRAM_BYTES:,} bytes")
        failures = await _failures(code, wanted, seconds, every=partial)
        passed = failures.count("")
        said = f"{passed} of {len(wanted)} tests passed"
        if why := next(filter(None, failures), ""):
            said += f"; test {failures.index(why) + 1}: {why}"
        return Scored(passed / len(wanted) if partial else float(passed == len(wanted)), said)

    return Reward(correct, name=name, weight=weight, timeout_seconds=LONGEST_SECONDS)


async def _failures(
    code: str, tests: Sequence[CodeTest], seconds: float, *, every: bool
) -> list[str]:
    """Reasons why tests failed, in their order (empty for a passed test). Without `every`, testing
    stops at the first failure.
    """
    failures: list[str] = []
    output_bytes = max(test.output_bytes for test in tests)
    gate = _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_PROGRAMS))
    async with (
        gate,
        TestedProgram(await ready_environment(), code, seconds, output_bytes) as program,
    ):
        for test in tests:
            failures.append(await program.failure(test))
            if failures[-1] and not every:
                break
            if failures.count(str(ToolStatus.TIMEOUT)) >= MAX_TIMEOUTS:
                break
    return failures


def _test(given: Any) -> CodeTest:
    """Parse a test. Raises ValueError for an invalid one: a mistake in the task, reported as the
    reward's fault.
    """
    test = _read(given)
    if (size := len(test.handed.encode())) > MAX_TEST_BYTES:
        raise ValueError(
            f"a test hands {size:,} bytes to the program, and the sandbox takes {MAX_TEST_BYTES:,}"
        )
    return test


def _read(given: Any) -> CodeTest:
    if isinstance(given, str):
        return _asserted(given)
    row = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if "stdin" in row or "stdout" in row:
        return CodeTest(stdin=str(row.get("stdin", "")), stdout=str(row.get("stdout", "")))
    if isinstance(row.get("call"), str) and ("equals" in row or "equals_literal" in row):
        equals = (
            _literal(ast.parse(row["equals_literal"], mode="eval").body)
            if "equals_literal" in row
            else row["equals"]
        )
        return CodeTest(call=ast.unparse(ast.parse(row["call"], mode="eval")), equals=equals)
    raise ValueError(
        f"{str(given)[:200]!r} is no test: write call and equals, stdin and stdout, or an assert"
    )


def _asserted(text: str) -> CodeTest:
    match ast.parse(text.strip()).body:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            return CodeTest(call=ast.unparse(left), equals=_literal(right))
        case _:
            raise ValueError(f"{text[:200]!r} is no `assert CALL == LITERAL`")


def _literal(node: ast.expr) -> Any:
    """Value of a literal, which may contain `float("inf")` and similar calls."""

    class Named(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            match node:
                case ast.Call(ast.Name("float"), [ast.Constant(str(text))], []):
                    return ast.Constant(float(text))
                case _:
                    return node

    return ast.literal_eval(Named().visit(node))
