"""Reward for code: the task's tests are run on it in the sandbox.

The expected result stays outside of the sandbox: a test names a call or an input, and the
comparison is made here. So code cannot win by patching the harness, ending its process or returning
an object that equals everything.

The process of a test gets that test's input when the test is due, and never its expected result. A
test that feeds standard input has its own process. Calls are made one after the other in one
process, as an importing program would make them. Each is sent when the one before has returned. A
call that ends this process is a failed test, and the next one gets a new process. Any early end of
a call is the program's fault, unless the environment itself reports a loss: `infrastructure`.

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
import base64
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

from hrm_agent.answers.program_text import code_in
from hrm_agent.environment import Environment, ExecutionResult, Limits, SessionState, Submission
from hrm_agent.environment.current import ready_environment
from hrm_agent.errors import HrmError
from hrm_agent.rewards.inside import source_of, statement_of
from hrm_agent.rewards.returned import is_returned
from hrm_agent.rewards.rubric import Reward, Scored
from hrm_agent.trajectory import TaskRef, ToolStatus

__all__ = ["code_in", "passes_tests"]

MAX_TESTS = 200
MAX_TIMEOUTS = 5
"""Maximum number of programs per answer that may time out. After these, the remaining tests fail
without being run.
"""
LONGEST_SECONDS = 86_400.0
"""Wall-clock timeout of a reward, in seconds. The program's time is limited separately, and the
rest of the time is spent waiting for other calls. So only an environment that does not answer
exceeds this timeout.
"""
MAX_PROGRAMS = 16
"""Maximum number of programs under test in parallel. Each has a session, and an environment has
only 64, which tools need too.
"""
MAX_PROGRAM_BYTES = 2**18
"""Maximum size of a program. It has to fit into one call of the environment, together with a test.
A longer program counts as wrong.
"""
MAX_TEST_BYTES = 5 * 2**17
"""Maximum size of a test's input to a program, in bytes as sent."""
PACKED_CHARACTERS = 2**16
"""Length from which an input is sent compressed."""
LEAST_OUTPUT_BYTES = 2**14
"""Minimum number of bytes kept of a program's output, however short the right answer is."""
OUTPUT_FACTOR = 8
"""Maximum output, as a multiple of the size of the right answer. A longer output is wrong."""
PROMPT_BYTES = 2**6
"""Number of bytes added to the limit of output for each prompt of `input` and its offsets."""
MAX_OUTPUT_BYTES = 2**25
MAX_ENDED = 16
"""Maximum number of processes that the calls of one program may end. Later calls fail."""
MAX_REBUILT = 64
"""Maximum number of processes that the environment may restart for a program. Restarts for the
environment's own reasons count too, since a call may end a process unnoticed.
"""
MAX_TOGETHER = 40
"""Maximum total time of a program's tests, as a multiple of the time of one test. Later tests
fail.
"""
SHOWN_CHARACTERS = 200
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

    `tests`: key of the tests in the task's metadata. `read`: finds the code in the text. `partial`:
    the value is the share of passed tests; without it, testing stops at the first failure.
    `seconds`: wall-clock time of one program, and of all calls together. All programs of a text
    together have 40 times as long. The value is None (no opinion) if the task has no tests.
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
        failures: list[str] = []  # reasons in the order of the tests (empty for a passed test)
        output_bytes = max(test.output_bytes for test in wanted)
        gate = _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_PROGRAMS))
        async with (
            gate,
            TestedProgram(await ready_environment(), code, seconds, output_bytes) as program,
        ):
            for test in wanted:
                failures.append(await program.failure(test))
                if failures[-1] and not partial:
                    break
                if failures.count(str(ToolStatus.TIMEOUT)) >= MAX_TIMEOUTS:
                    break
        passed = failures.count("")
        said = f"{passed} of {len(wanted)} tests passed"
        if why := next(filter(None, failures), ""):
            said += f"; test {failures.index(why) + 1}: {why}"
        return Scored(passed / len(wanted) if partial else float(passed == len(wanted)), said)

    return Reward(correct, name=name, weight=weight, timeout_seconds=LONGEST_SECONDS)


def _test(given: Any) -> CodeTest:
    """Parse a test. Raises ValueError for an invalid test. That is a mistake in the task, and is
    reported as the reward's fault.
    """
    row = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if isinstance(given, str):
        match ast.parse(given.strip()).body:
            case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
                test = CodeTest(call=ast.unparse(left), equals=_literal(right))
            case _:
                raise ValueError(f"{given[:200]!r} is not of the form `assert CALL == LITERAL`")
    elif "stdin" in row or "stdout" in row:
        test = CodeTest(stdin=str(row.get("stdin", "")), stdout=str(row.get("stdout", "")))
    elif isinstance(row.get("call"), str) and ("equals" in row or "equals_literal" in row):
        equals = (
            _literal(ast.parse(row["equals_literal"], mode="eval").body)
            if "equals_literal" in row
            else row["equals"]
        )
        test = CodeTest(call=ast.unparse(ast.parse(row["call"], mode="eval")), equals=equals)
    else:
        raise ValueError(
            f"{str(given)[:200]!r} is not a test: write call and equals, stdin and stdout, or an"
            " assert"
        )
    if (size := len(test.handed.encode())) > MAX_TEST_BYTES:
        raise ValueError(
            f"a test passes {size:,} bytes to the program, more than the maximum of"
            f" {MAX_TEST_BYTES:,}"
        )
    return test


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


@dataclass(frozen=True, slots=True)
class CodeTest:
    """Test of a program."""

    call: str = ""
    """Python expression to evaluate (empty if the program reads `stdin`)."""
    equals: Any = None
    """Value that the call has to return."""
    stdin: str = ""
    """Standard input of the program."""
    stdout: str = ""
    """Output that the program has to print."""

    @property
    def handed(self) -> str:
        """Python expression for the input that the test passes to the program."""
        given = self.call or self.stdin
        if len(given) <= PACKED_CHARACTERS:
            return repr(given)
        packed = base64.b85encode(zlib.compress(given.encode())).decode()
        return f"__import__('zlib').decompress(__import__('base64').b85decode({packed!r})).decode()"

    @property
    def output_bytes(self) -> int:
        """Output limit in bytes. It suffices for a right answer, a prompt for each line of input,
        and a file with the input, since the environment applies one limit to all of these.
        """
        said = OUTPUT_FACTOR * _told_bytes(self.equals if self.call else self.stdout)
        fed = len(self.stdin.encode()) // 16 + PROMPT_BYTES * self.stdin.count("\n")
        return min(MAX_OUTPUT_BYTES, LEAST_OUTPUT_BYTES + said + fed)


class TestedProgram:
    """Program under test. Use as an async context manager, which ends the process of the calls."""

    __test__ = False  # pytest would collect the class by its name

    def __init__(
        self, environment: Environment, code: str, seconds: float, output_bytes: int
    ) -> None:
        """`seconds`: limit of wall-clock and of CPU time, for each program and for all calls
        together. All programs together have MAX_TOGETHER times as long. `output_bytes`: number of
        bytes that are kept of the output.
        """
        self._environment = environment
        self._code = code
        self._seconds = self._left = seconds
        self._left_together = MAX_TOGETHER * seconds
        self._limits = Limits(output_bytes=output_bytes)
        self._session = ""
        self._ended = self._rebuilt = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_calls()

    async def failure(self, test: CodeTest) -> str:
        """Reason why a test fails (empty if it passes). Raises RuntimeError if the sandbox lost the
        test.
        """
        if self._left_together <= 0:
            return "the tests before it had used the time of all"
        return await (self._call(test) if test.call else self._run(test))

    async def _run(self, test: CodeTest) -> str:
        code = f"{statement_of('program')}\nrun_program({self._code!r}, {test.handed})"
        result = await self._result(Submission(code, limits=self._within(self._seconds)))
        if result.status is not ToolStatus.OK:
            return _ending(result)
        if result.stdout_bytes > self._limits.output_bytes:
            return (
                f"it printed {result.stdout_bytes:,} bytes, and the right output has"
                f" {len(test.stdout.encode()):,}"
            )
        wanted = _lines(test.stdout)
        said = result.stdout
        return (
            ""
            if wanted in (_lines(said), _lines(_without(said, _decoded(result))))
            else "it printed another output"
        )

    async def _call(self, test: CodeTest) -> str:
        if self._left <= 0:
            return "the calls before it had used the time of all"
        if self._ended >= MAX_ENDED or self._rebuilt >= MAX_REBUILT:
            return "its process ended too often"
        code = f"returned({test.handed})"
        first = not self._session
        if first:
            self._session = f"reward-{uuid4().hex}"
            code = (
                f"{statement_of('calls')}\nload({self._code!r}, {source_of('unusual')!r})\n{code}"
            )
        result = await self._result(
            Submission(code, session=self._session, limits=self._within(self._left))
        )
        self._left -= _seconds_of(result)
        self._rebuilt += result.session not in (SessionState.KEPT, SessionState.NEW)
        if result.status is not ToolStatus.OK or result.session is SessionState.LOST:
            await self._end_calls()
        match _decoded(result) if result.status is ToolStatus.OK else None:
            case ["=", shown]:
                return "" if is_returned(shown, test.equals) else "it returned another value"
            case ["!", str(name)]:
                return f"it raised {_shown(name)}"
            case _:
                self._ended += 1
                return _ending(result)

    async def _end_calls(self) -> None:
        session = self._session
        self._session = ""
        if session:
            with suppress(HrmError):  # an unreachable environment drops the session by itself
                await self._environment.end_session(session)

    def _within(self, seconds: float) -> Limits:
        return replace(self._limits, wall_seconds=seconds, cpu_seconds=seconds)

    async def _result(self, submission: Submission) -> ExecutionResult:
        result = await self._environment.run(submission)
        if result.status is ToolStatus.INFRASTRUCTURE:
            raise RuntimeError(
                f"the sandbox lost the call: {_shown(result.stderr[-SHOWN_CHARACTERS:])}"
            )
        self._left_together -= _seconds_of(result)
        return result


def _seconds_of(result: ExecutionResult) -> float:
    """Seconds that the program took, without time in the queue."""
    return max(result.duration_seconds, result.cpu_seconds)


def _told_bytes(value: Any) -> int:
    """Approximate size of a value as JSON. It is not measured by writing the JSON: long integers
    have no decimal text, and a part that occurs several times counts each time.
    """
    size = 0
    left = [value]
    while left:
        each = left.pop()
        size += 8
        if isinstance(each, dict):
            pairs = cast("dict[Any, Any]", each)
            size += 8 * len(pairs)
            left += [*pairs.keys(), *pairs.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            left += cast("Iterable[Any]", each)
        else:
            size += each.bit_length() // 4 if isinstance(each, int) else len(ascii(each))
    return size


def _decoded(result: ExecutionResult) -> Any:
    """Value that the code under test reported, which may be any claim (None if it is not JSON or is
    too large).
    """
    try:
        return json.loads(result.value_json or "null")
    except (ValueError, RecursionError):
        return None


def _ending(result: ExecutionResult) -> str:
    """Status, and the last line that the process or the kernel printed."""
    said = result.stderr[-2000:].rstrip().rpartition("\n")[2]
    if result.status is ToolStatus.OK:
        return "its process ended, or what it says of the value cannot be read"
    return (
        f"{result.status}: {_shown(said)}"
        if said and result.status is ToolStatus.ERROR
        else str(result.status)
    )


def _shown(text: str) -> str:
    """Bounded text that can be stored and printed."""
    return ascii(text[:SHOWN_CHARACTERS])[1:-1]


def _without(said: str, prompts: Any) -> str:
    """Output without the prompts of `input`. `prompts`: their offsets, as the program claims."""
    octets = said.encode()
    after = 0
    kept = list[bytes]()
    for pair in prompts if isinstance(prompts, list) else ():
        match pair:
            case [int(begin), int(end)] if after <= begin <= end:
                kept.append(octets[after:begin])
                after = end
            case _:
                break
    return b"".join([*kept, octets[after:]]).decode("utf-8", "replace")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
