"""A reward for code: the tests of the task are run on it, in the sandbox.

What the code has to come to stays outside of the sandbox: a test says what to call, or what to
feed, and the comparison is made here. So code that patches the harness, ends its process, or
returns an object that equals everything, wins nothing; and it is given the input of a test when
that test is due (`hrm_agent.rewards.tested_program`).

A test is one of

* `{"call": "f(2, 3)", "equals": 5}`: a Python expression, and a value (of JSON, or a Python literal
  as text under `"equals_literal"`);
* `"assert f(2, 3) == 5"`: the same, where the right side is a literal; other asserts are refused,
  since whether one holds would be decided beside the code that it tests;
* `{"stdin": "2 3", "stdout": "5"}`: a program; white space at the ends of lines does not count, and
  prompts of `input` count or not.
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
"""Programs of one answer that may run into their time; then the tests that are left have failed as
well.
"""
LONGEST_SECONDS = 86_400.0
"""Wall clock of a reward. The program's time is bounded as it is measured; the rest is waiting for
others, and only an environment that does not answer takes so long.
"""
MAX_PROGRAMS = 16
"""Under test at a time: an environment has room for 64 sessions, those of its tools among them."""
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
    """A reward: 1 where the code in the final text passes all tests of the task, else 0.

    `tests`: the key of the task's metadata under which they stand. `partial`: the share that
    passes; else the first that fails is the last that is run. `seconds`: wall clock of one program,
    and of all calls together; all programs of a text have 40 times as long. No opinion where the
    task has no tests.
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
    """Why each test failed, empty for one that passed; without `every` none after the first
    failure.
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
    """Raises ValueError for what is no test: a mistake in the task, told as the reward's fault."""
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
    """The value of a literal, in which `float("inf")` and its like may stand."""

    class Named(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            match node:
                case ast.Call(ast.Name("float"), [ast.Constant(str(text))], []):
                    return ast.Constant(float(text))
                case _:
                    return node

    return ast.literal_eval(Named().visit(node))
