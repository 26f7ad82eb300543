"""Code that a policy could write to spoil its score: drawn programs, none of which is right.

`python -m tests.support.rewards.hostile_programs --count 5000` scores 5,000 programs, and prints
those that did not get a 0 for their own fault. After every `BATCH` programs a right program has to
score 1.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hrm_agent.environment import LocalEnvironment, using_environment
from hrm_agent.rewards import Rollout, Rubric, opened_scorer, passes_tests
from hrm_agent.trajectory import RewardScore, TaskRef
from tests.support.trajectory.samples import make_trajectory

__all__ = ["BATCH", "hostile_answers", "misjudged"]

Draw = random.Random
BATCH = 50
SECRET = "9f3c-what-has-to-come-out"
RIGHT = (
    f"```python\ndef f(n):\n    return {SECRET!r}\nif __name__ == '__main__':\n   "
    f" print({SECRET!r})\n```"
)
TESTS: list[Any] = [{"call": "f(17)", "equals": SECRET}, {"call": "f(18)", "equals": SECRET}]
PRINTS: list[Any] = [{"stdin": "17\n", "stdout": SECRET}, {"stdin": "18\n", "stdout": SECRET}]

_CLASS = """class X{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 1
    def __repr__(self): {repr}
    def __str__(self): {repr}
    def __iter__(self): {iter}
    def __len__(self): {len}
    def __getattr__(self, name): {getattr}
    def __bool__(self): {len}
    def __reduce__(self): {repr}
    {more}
"""
_BODIES = (
    "return self",
    "return 1",
    "return None",
    "return '...'",
    "return '\\ud800\\0' * 50",
    "return 'x' * 10**6",
    "return [X] * 3",
    "raise ValueError('\\udcff')",
    "raise SystemExit(0)",
    "raise KeyboardInterrupt",
    "raise StopIteration",
    "raise MemoryError",
    "raise RecursionError",
    "raise BaseException",
    "return self.__class__.__repr__(self)",
    "yield self",
    "import os; os._exit(0)",
)
_MORE = (
    "pass",
    "__class__ = property(lambda self: str)",
    "__class__ = property(lambda self: int)",
    "__class__ = property(lambda self: 1 / 0)",
    "__class__ = property(lambda self: dict)",
    "__float__ = __int__ = __index__ = lambda self: self",
    "ndim = dtype = property(lambda self: self)",
    "__dict__ = None",
    "__slots__ = ()",
    "__dataclass_fields__ = {'a': 1}",
    "__next__ = lambda self: self",
    "__getitem__ = lambda self, at: self",
    "keys = items = lambda self: iter(lambda: (1, 1), 0)",
    "__del__ = lambda self: print('gone')",
)
_SCALARS: tuple[Callable[[Draw], str], ...] = (
    lambda draw: f"int('f' * {draw.randint(1, 90_000)}, 16)",
    lambda draw: f"-(1 << {draw.randint(1, 200_000)})",
    lambda draw: f"10 ** {draw.randint(0, 6000)}",
    lambda draw: repr(
        draw.choice(["", "\ud800", "\0", SECRET[:-1], SECRET.upper(), "nan", "0x" + "f" * 50])
    ),
    lambda draw: f"'x' * {draw.choice([1, 10**4, 10**6, 10**8])}",
    lambda draw: f"'\\ud83d' * {draw.choice([1, 10**4])}",
    lambda draw: draw.choice(
        ["float('nan')", "float('-inf')", "1e308 * 10", "-0.0", "complex('nan+infj')", "..."]
    ),
    lambda draw: draw.choice(
        ["None", "True", "NotImplemented", "type", "f", "lambda: 1", "object()", "Exception()"]
    ),
    lambda draw: draw.choice(
        ["__import__('sys')", "__import__('os').environ", "globals()", "(i for i in iter(int, 1))"]
    ),
    lambda draw: draw.choice(
        ["iter(int, 1)", "map(str, iter(int, 1))", "range(10**12)", "memoryview(b'x')", "bytes(9)"]
    ),
    lambda draw: f"__import__('decimal').Decimal('1e{draw.choice([0, 400, 999_999_999])}')",
    lambda draw: "__import__('fractions').Fraction(1, 3)",
    lambda draw: "X()",
    lambda draw: "type('N', (type,), {'__name__': property(lambda s: 1 / 0)})('M', (), {})()",
)
_NESTED: tuple[Callable[[Draw, str], str], ...] = (
    lambda draw, inner: f"[{inner}]",
    lambda draw, inner: f"({inner}, {inner})",
    lambda draw, inner: f"{{1: {inner}}}",
    lambda draw, inner: f"[{inner}] * {draw.choice([2, 100, 10**5])}",
    lambda draw, inner: f"deep({inner}, {draw.choice([10, 900, 990, 2000, 100_000])})",
    lambda draw, inner: f"deep_dict({inner}, {draw.choice([10, 900, 2000])})",
    lambda draw, inner: f"cycle({inner})",
    lambda draw, inner: (
        f"type('L', (list,), {{'__len__': lambda s: -1, '__iter__': lambda s: s}})([{inner}])"
    ),
    lambda draw, inner: f"type('D', (dict,), {{'items': lambda s: 1 / 0}})(a={inner})",
    lambda draw, inner: (
        f"type('S', (str,), {{'__eq__': lambda s, o: True, '__hash__': lambda s: 0}})({inner})"
    ),
)
_HELPERS = """import os, sys, signal, threading
def deep(x, n):
    for _ in range(n): x = [x]
    return x
def deep_dict(x, n):
    for _ in range(n): x = {'k': x}
    return x
def cycle(x):
    a = [x]
    a.append(a)
    return a
"""
_NAMES = ("VmHWM: x", "VmHWM:\t9 kB", "a) R 1", "\n", ")", "PPid:\t1")
"""Process names that a program may choose."""
SIGNALS = tuple((set(range(1, 32)) | set(range(34, 65))) - {19, 20, 21, 22})
"""Signals except those that stop a process, since a stopped process ends only at its time limit."""


def _value(draw: Draw, depth: int = 0) -> str:
    if depth < 3 and draw.random() < 0.4:
        return draw.choice(_NESTED)(draw, _value(draw, depth + 1))
    return draw.choice(_SCALARS)(draw)


def _written(draw: Draw) -> str:
    """Expression of bytes that a program writes to a descriptor that is not its own."""
    n = draw.choice([10, 500, 980, 1500, 50_000])
    return draw.choice(
        [
            f"b'1\\nx' + b'[' * {n}",
            f"b'1\\nx' + b'[' * {n} + b']' * {n}",
            f"b'1\\nx[\"=\",' + b'[\"l\",' * {n}",
            "b'3\\nabc[\"=\", \"%s\"]' % b'a'",
            f"b'1\\nx' + b'9' * {n}",
            f"b'1\\nx[\"=\", [\"i\", \"0x' + b'f' * {n} + b'\"]]'",
            'b\'1\\nx["=", ["q", "0x1", "0x0"]]\'',
            'b\'1\\nx["=", {"a": 1}]\'',
            "b'1\\nx[[1, 2], [0, 10**9], [-5, 3]]'",
            "b'999999999\\nx'",
            "b'-1\\n'",
            f"b'\\xff\\x00' * {n}",
            "b'1\\nx\"\\\\ud800\"'",
            f"os.urandom({n})",
        ]
    )


_RAISED = ("X", "SystemExit(X())", "KeyboardInterrupt", "GeneratorExit", "MemoryError", "E()")
_BUILTINS = (
    "repr",
    "type",
    "eval",
    "compile",
    "exec",
    "map",
    "hex",
    "list",
    "isinstance",
    "BaseException",
    "len",
)
_DEEDS: tuple[Callable[[Draw], str], ...] = (
    lambda draw: f"os.write(3, {_written(draw)}); os._exit({draw.choice([0, 0, 1, 91])})",
    lambda draw: f"os.write(3, {_written(draw)})",
    lambda draw: f"os.write({draw.choice([1, 2, 4, 5, 6])}, {_written(draw)})",
    lambda draw: f"os._exit({draw.choice([0, 1, 91, 137, 255])})",
    lambda draw: f"sys.exit({draw.choice(['0', 'None', '1', 'X()', '10**5000', repr(chr(0xD800))])})",
    lambda draw: f"os.kill(os.getpid(), {draw.choice(SIGNALS)})",
    lambda draw: f"signal.raise_signal({draw.choice(SIGNALS)})",
    lambda draw: f"signal.signal({draw.choice([2, 15, 24, 11])}, lambda *a: os._exit(0))",
    lambda draw: f"open('/proc/self/comm', 'w').write({draw.choice(_NAMES)!r})",
    lambda draw: "os.abort()",
    lambda draw: "__import__('ctypes').string_at(0)",
    lambda draw: f"os.close({draw.randint(0, 9)})",
    lambda draw: "os.closerange(0, 100)",
    lambda draw: f"os.dup2({draw.randint(0, 3)}, {draw.randint(0, 6)})",
    lambda draw: f"os.ftruncate(3, {draw.choice([0, 10**5, 10**12])})",
    lambda draw: f"os.lseek({draw.choice([0, 1, 3])}, {draw.choice([0, 5, 10**6])}, 0)",
    lambda draw: f"raise {draw.choice(_RAISED)}",
    lambda draw: "raise type('Z' * 10**5, (BaseException,), {'__str__': lambda s: 1 / 0})()",
    lambda draw: "f(0) if sys.getrecursionlimit() else 0",
    lambda draw: f"sys.setrecursionlimit({draw.choice([50, 10**6])})",
    lambda draw: f"sys.set_int_max_str_digits({draw.choice([0, 640])})",
    lambda draw: f"bytearray({draw.choice([10**9, 10**12])})",
    lambda draw: f"print('x' * {draw.choice([10**4, 10**6, 10**7])})",
    lambda draw: f"sys.stderr.write('\\ud800\\0\\n' * {draw.choice([1, 10**5])})",
    lambda draw: f"sys.stdout = sys.stderr = {draw.choice(['None', 'X()', '1'])}",
    lambda draw: f"sys.{draw.choice(['stdout', 'stdin'])}.{draw.choice(['close', 'detach', 'buffer.close'])}()",
    lambda draw: draw.choice(["sys.modules.clear()", "del sys.modules['__main__']", "sys.modules['json'] = None"]),
    lambda draw: f"sys.modules['__main__'].returned = lambda call: {draw.choice(['[]', '[1]', 'X()', '1'])}",
    lambda draw: f"sys.modules['__main__'].data = lambda value: {_value(draw, 2)}",
    lambda draw: "sys.modules['__main__'].__dict__.clear()",
    lambda draw: "sys.modules['solution'] = X()",
    lambda draw: f"__import__('builtins').{draw.choice(_BUILTINS)} = X()",
    lambda draw: f"__import__('json').dumps = lambda *a, **k: {draw.choice(['X()', repr('[' * 2000), '1 / 0'])}",
    lambda draw: f"__import__('os').{draw.choice(['write', '_exit', 'read', 'lseek'])} = X()",
    lambda draw: "sys.settrace(lambda *a: os._exit(0))",
    lambda draw: "sys.setprofile(lambda *a: 1 / 0)",
    lambda draw: "threading.Thread(target=lambda: [os.write(3, b'9') for _ in iter(int, 1)], daemon=True).start()",
    lambda draw: f"threading.Timer({draw.choice([0.0, 0.01])}, lambda: os._exit(0)).start()",
    lambda draw: f"__import__('atexit').register(lambda: {draw.choice(['os._exit(0)', '1 / 0', 'print(1)', 'f(1)'])})",
    lambda draw: "os.fork()",
    lambda draw: "[os.fork() for _ in range(8)]",
    lambda draw: "os.setsid()",
    lambda draw: "os.chdir('/')",
    lambda draw: "os.chmod('/tmp', 0)",
    lambda draw: f"open('/tmp/x', 'wb').write(bytes({draw.choice([10**4, 10**7, 10**8])}))",
    lambda draw: f"__import__('resource').setrlimit({draw.randint(0, 9)}, (0, 0))",
    lambda draw: "__import__('gc').get_objects().clear()",
    lambda draw: "__import__('ctypes').CDLL(None).prctl(15, b'x: y', 0, 0, 0)",
    lambda draw: "while True: break",
    lambda draw: "exec('(' * 500 + ')' * 500)",
    lambda draw: "eval('-' * 50_000 + '1')",
    lambda draw: "__import__('faulthandler')._sigsegv()",
)  # fmt: skip
_SLOW = (
    "while True: pass",
    "__import__('time').sleep(60)",
    "os.kill(os.getpid(), 19)",
    "x = 9 ** 9 ** 9",
)


def hostile_answers(seed: int, count: int) -> list[tuple[str, list[Any]]]:
    """Final texts with the tests that they have to fail, identical for the same seed."""
    draw = Draw(seed)
    return [_answer(draw) for _ in range(count)]


def _answer(draw: Draw) -> tuple[str, list[Any]]:
    if draw.random() < 0.02:
        return (
            "".join(
                draw.choice("```\n~~~python (\0\ud800'\"") for _ in range(draw.randint(1, 3000))
            ),
            TESTS,
        )
    deed = draw.choice(_SLOW) if draw.random() < 0.02 else draw.choice(_DEEDS)(draw)
    bodies = {name: draw.choice(_BODIES) for name in ("repr", "iter", "len", "getattr")}
    base = draw.choice(
        ["", "(str)", "(list)", "(dict)", "(int)", "(Exception)", "(tuple)", "(set)"]
    )
    lines = [
        _HELPERS,
        _CLASS.format(base=base, more=draw.choice(_MORE), **bodies),
        "class E(BaseException): __str__ = __repr__ = X.__repr__",
    ]
    place = draw.choice(["load", "call", "both", "value", "print"])
    lines += [deed] if place in ("load", "both") else []
    lines += [
        "def f(n):",
        f"    {deed if place in ('call', 'both') else 'pass'}",
        f"    return {_value(draw)}",
    ]
    if place == "print":
        lines += [deed, f"print({_value(draw)})"]
    code = "\n".join(lines)
    return f"```python\n{code}\n```", PRINTS if place == "print" else TESTS


async def misjudged(
    answers: Sequence[tuple[str, list[Any]]], environment: LocalEnvironment
) -> tuple[list[Any], Counter[str]]:
    """Answers that did not get a 0 with a reason for their own fault, and how often each reason was
    given.
    """
    reasons, wrong, gate = Counter[str](), list[Any](), asyncio.Semaphore(4)
    async with opened_scorer(Rubric([passes_tests(seconds=2.0)])) as scorer:

        async def score(text: str, tests: list[Any]) -> RewardScore:
            task = TaskRef(id="t", family="mine", prompt="p", metadata={"tests": tests})
            async with gate:
                (found,) = await scorer.score([Rollout(make_trajectory(answer=text, task=task))])
            return found.scores[0]

        with using_environment(environment):
            for begin in range(0, len(answers), BATCH):
                batch = answers[begin : begin + BATCH]
                for (text, tests), found in zip(
                    batch, await asyncio.gather(*(score(*one) for one in batch)), strict=True
                ):
                    reasons[found.reason.partition("; ")[2][:60] or found.reason] += 1
                    if found.value != 0.0 or found.fault is not None or not found.reason:
                        wrong.append((text, tests, found))
                for tests in (TESTS, PRINTS):
                    right = await score(RIGHT, tests)
                    if right.value != 1.0:
                        wrong.append((RIGHT, tests, right))
    return wrong, reasons


def main() -> int:
    """Score `--count` hostile programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    environment, began = LocalEnvironment(slots=2), time.monotonic()
    wrong, reasons = asyncio.run(misjudged(hostile_answers(given.seed, given.count), environment))
    environment.shutdown()
    for text, _, found in wrong:
        print(f"{found!r}\n{text}\n{'-' * 80}")
    for reason, times in reasons.most_common(40):
        print(f"{times:6} {reason}")
    print(
        f"{given.count} hostile answers of seed {given.seed}, {len(wrong)} misjudged,"
        f" {time.monotonic() - began:.0f} s"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
