"""Hostile results, drawn by a seed: results that a snippet may leave to those who read them, as
code that is run and as bytes that are read.

    python -m tests.support.environment.hostile [--calls 10000] [--readings 10000] [--seed 0] [--isolation L2]

`hostile_calls` gives snippets of one to three pieces, each from a part of `PIECES`: values,
representations, descriptors, exits, signals, names, output, files of the value, system calls.
`complaints` lists what is wrong with an outcome, whatever was run. `attack` runs hostile calls, and
calls of another client beside them, on any environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hrm_agent.environment import Environment, ExecutionResult, Limits, LocalEnvironment, Submission
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local.slot_files import OUTPUT_FACTOR, SlotFiles, outcome
from hrm_agent.environment.sandbox.memory import figure
from hrm_agent.environment.sandbox.protocol import MEMORY_ERROR, Ended, Reply
from hrm_agent.trajectory import ToolStatus

__all__ = [
    "LIMITS",
    "PIECES",
    "Figures",
    "HostileCall",
    "attack",
    "complaints",
    "hostile_bytes",
    "hostile_calls",
    "hostile_expression",
    "read_hostile_files",
]

LIMITS = Limits(wall_seconds=60.0, cpu_seconds=60.0, memory_bytes=256 * 2**20, output_bytes=1024)
POSSIBLE = frozenset(ToolStatus) - {
    ToolStatus.INFRASTRUCTURE,
    ToolStatus.INVALID_CALL,
    ToolStatus.TIMEOUT,
}
"""Statuses that a call may end with. `timeout` is not among them, since no piece takes long: a
time-out would be forged, or a session would have lost the pipe that it answers on.
"""
NAMES = (
    *(
        b"VmHWM: x",
        b"VmHWM: 9999999",
        b"\nVmHWM:\t1 kB",
        b") Z 1 1 1 1",
        b")\n(x) R 0",
        b"Threads:\t1",
        b"Pss: -1",
    ),
    *(
        b"\xff\xfe\xff",
        b"%n%s%d",
        b"oom_kill 9",
        b"usage_usec x",
        b"SigIgn:\t0",
        b"[rollup]",
        b"",
        b"\\n\\t",
        b"a" * 15,
    ),
)
_SIGNALS = sorted(set(range(1, 65)) - {19, 20, 21, 22})
"""Signals except those that stop a process, since a stopped process ends only at its time limit."""
_WORDS = (
    *(
        b"12\n",
        b"0\n",
        b"-1\n",
        b"9999999999\n",
        b"1_0\n",
        b" 3\n",
        b"\xd9\xa3\n",
        b"007\nabc",
        b"\n",
        b"5\r\n",
        b"1e3\n",
    ),
    *(
        b"[" * 5000,
        b'{"a":' * 900,
        b"1" * 5000,
        b"NaN",
        b"-Infinity",
        b"1e999",
        b'"\\ud800"',
        b'{"a":1,"a":2}',
        b"nul",
    ),
    *(
        b"\x00" * 40,
        b"\xc3",
        b"\xf0\x9f\x98",
        b"\xed\xa0\x80",
        b"\x1b]0;x\x07",
        b"\xe2\x80\xae",
        b"0x" + b"f" * 9000,
    ),
    *(
        MEMORY_ERROR,
        b"Process ended by SIGKILL\n",
        b"Traceback (most recent call last):\n",
        b"\xff" * 70000,
    ),
)
_EXPRESSIONS = (
    *(
        "float('nan')",
        "1e400",
        "-(10**4299)",
        "10**5000",
        "10**60000",
        "'\\ud800'",
        "'\\x00' * 999",
        "b'\\xff' * 999",
    ),
    *(
        "range(10**12)",
        "...",
        "type",
        "iter([])",
        "{float('nan'): 1}",
        "{(1, 2): 3}",
        "{True: 1, 1.0: 2}",
        "'x' * 10**6",
    ),
    *(
        "[[]] * 9999",
        "{'a': object()}",
        "'5\\nabc'",
        "[float('inf')]",
        "complex('nan')",
        "NotImplemented",
        "lambda: 0",
    ),
    *(
        "(lambda x: (x.append(x), x)[1])([])",
        "(lambda d: (d.update(a=d), d)[1])({})",
        "memoryview(b'x')",
        "-0.0",
        "''",
    ),
)
_REPRS = (
    *(
        "return '0x' + 'f' * 100000",
        "return 7",
        "return self",
        "raise ValueError",
        "raise SystemExit(0)",
        "os._exit(0)",
    ),
    *(
        "return repr(self)",
        "raise KeyboardInterrupt",
        "return '\\ud800' * 9",
        "return '9' * 10**6",
        "os.close(3); return 'x'",
    ),
    *(
        "return 'a\\nb\\r\\x00'",
        "print('in repr'); return ''",
        "raise MemoryError",
        "os.ftruncate(3, 999); return 'x'",
    ),
    *(
        "os.write(3, b'1\\nx' + b'[' * 980); os._exit(0)",
        "del sys.stdout; return 'x'",
        "raise type('E', (Exception,), {})",
    ),
)
_BASES = ("object", "int", "str", "list", "dict", "float", "tuple")


@dataclass(frozen=True, slots=True)
class HostileCall:
    """One call, and the pieces that it is made of."""

    code: str
    parts: tuple[str, ...]
    """Keys of `PIECES`."""
    session: bool


def hostile_bytes(chance: random.Random) -> bytes:
    """Bytes of any length up to some hundred thousand."""
    pieces = [chance.choice(_WORDS) for _ in range(chance.randrange(4))]
    if chance.random() < 0.4:
        pieces.append(chance.randbytes(chance.choice((1, 7, 1023, 1024, 1025, 5000))))
    if chance.random() < 0.1:
        pieces.append(b"x" * (LIMITS.output_bytes * OUTPUT_FACTOR + chance.randrange(-2, 3)))
    chance.shuffle(pieces)
    return b"".join(pieces)


def hostile_expression(chance: random.Random) -> str:
    """A Python expression whose value is odd."""
    if chance.random() < 0.3:
        depth = chance.choice((3, 90, 400, 990, 5000))
        return f"__import__('functools').reduce(lambda found, _: [found], range({depth}), 1)"
    return chance.choice(_EXPRESSIONS)


def _value(chance: random.Random) -> str:
    return chance.choice(("RESULT = ", "")) + hostile_expression(chance)


def _repr(chance: random.Random) -> str:
    base, body = chance.choice(_BASES), chance.choice(_REPRS)
    name = chance.choice(("X", "\\ud800", "x" * 9999, "a\\nb"))
    end = chance.choice(("X()", "[X()]", "RESULT = X()", "raise SystemExit(X())"))
    return f"""
def shown(self):
    {body}
X = type('{base}', ({base},), dict(__repr__=shown, __str__=shown))
try: X.__name__ = '{name}'
except Exception: pass
{end}"""


def _descriptors(chance: random.Random) -> str:
    lines = list[str]()
    for _ in range(chance.randrange(1, 6)):
        one, other = (
            chance.choice((0, 1, 2, 3, 4, 7, 8, 9)),
            chance.choice((0, 1, 2, 3, 4, 7, 8, 9)),
        )
        size = chance.choice((0, 1, 1024, 65536, 2**20, 2**40))
        lines.append(
            chance.choice(
                (
                    f"os.write({one}, {chance.choice(_WORDS)[:999]!r})",
                    f"os.ftruncate({one}, {size})",
                    f"os.pwrite({one}, b'x', {size})",
                    f"os.lseek({one}, {size}, 0)",
                    f"os.close({one})",
                    f"os.dup2({one}, {other})",
                    f"os.fchmod({one}, {chance.choice((0, 0o222, 0o7777))})",
                    f"os.set_blocking({one}, {chance.choice((True, False))})",
                    f"os.sendfile({one}, {other}, 0, {size % 2**20})",
                    f"os.posix_fallocate({one}, 0, {1 + size % 2**20})",
                    "os.closerange(0, 5)",
                )
            )
        )
    return "\n".join(f"try: {line}\nexcept OSError: pass" for line in lines)


def _exit(chance: random.Random) -> str:
    code = chance.choice(
        (0, 1, 2, 90, 91, 92, 126, 127, 137, 139, 152, 159, 255, chance.randrange(256))
    )
    return chance.choice(
        (
            f"os._exit({code})",
            f"sys.exit({code})",
            f"raise SystemExit({hostile_expression(chance)})",
            f"os.execv('/bin/sh', ['sh', '-c', 'exit {code}'])",
            f"os.execv('/bin/sh', ['sh', '-c', 'kill -{chance.choice(_SIGNALS)} $$'])",
            "raise MemoryError",
            "raise type('VmHWM: x', (BaseException,), {'__str__': lambda self: 1 / 0})",
            "raise RecursionError",
            "raise ExceptionGroup('g', [ValueError('\\ud800')])",
            f"os.write(3, {chance.choice(_WORDS)[:999]!r})\nos._exit({code})",
            "os.abort()",
        )
    )


def _signal(chance: random.Random) -> str:
    number, fault = chance.choice(_SIGNALS), chance.choice((11, 7, 4, 8))
    kill, place = f"os.kill(os.getpid(), {number})", chance.choice((0, 8, 2**47 - 1))
    answer = f"lambda *_: os._exit({number})"
    return chance.choice(
        (
            kill,
            f"if os.fork() == 0:\n    os.kill(os.getppid(), {number})\n    os._exit(0)\nos.wait()",
            f"if os.fork() == 0:\n    {kill}\n    os._exit(0)\nos.wait()",
            f"try: signal.signal({number}, {answer})\nexcept (OSError, ValueError): pass\n{kill}",
            (
                "signal.pthread_sigmask(0, range(1,"
                f" 65))\nsignal.pthread_kill(threading.get_ident(), {number})"
            ),
            f"signal.signal({fault}, signal.SIG_IGN)\nctypes.string_at({place})",
            "signal.setitimer(0, 0.001)\ntime.sleep(0.005)",
        )
    )


def _name(chance: random.Random) -> str:
    name, pause = chance.choice(NAMES), chance.choice((0, 0, 0.002, 0.08))
    called = f"libc.prctl(15, {name!r}, 0, 0, 0)"
    program = f"""
import subprocess
path = '/tmp/' + {name.replace(b"/", b"_").decode("latin-1")!r} + 'p'
open(path, 'w').write('#!/bin/sh\\nsleep {pause}')
os.chmod(path, 0o755)
subprocess.run([path], check=False)"""
    return chance.choice(
        (
            called,
            f"thread = threading.Thread(target=lambda: {called})\nthread.start()\nthread.join()",
            (
                f"{called}\nif os.fork() == 0:\n    {called}\n    time.sleep({pause})\n   "
                " os._exit(0)\nos.wait()"
            ),
            program,
        )
    )


def _output(chance: random.Random) -> str:
    data = hostile_bytes(chance)
    short = repr(data) if len(data) < 20000 else f"{data[:50]!r} * {len(data) // 50}"
    return chance.choice(
        (
            f"os.write({chance.choice((1, 2))}, {short})",
            f"print(({short}).decode('utf-8', 'surrogateescape'))",
            f"sys.stderr.write(({short}).decode('latin-1'))",
            f"sys.stdout.buffer.write({short})",
            f"sys.stdout = None\nos.write(1, {short})",
        )
    )


def _value_file(chance: random.Random) -> str:
    end = chance.choice(("", "os._exit(0)", "7", "raise MemoryError"))
    return f"os.write(3, {hostile_bytes(chance)[:20000]!r})\n{end}"


def _call(chance: random.Random) -> str:
    foreign = 1 << 30 | 39
    number = chance.choice(
        (-1, 500, 10**6, 2**31 - 1, 2**32 - 1, foreign, 272, 272 | 1 << 32, 101, 321, 446)
    )
    return f"libc.syscall(ctypes.c_long({number}), 0, 0, 0, 0, 0)"


PIECES: dict[str, Callable[[random.Random], str]] = {
    "values": _value,
    "representations": _repr,
    "descriptors": _descriptors,
    "exits": _exit,
    "signals": _signal,
    "names": _name,
    "output": _output,
    "files of the value": _value_file,
    "system calls": _call,
}
_HEAD = (
    "import ctypes, os, signal, sys, threading, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"
)


def hostile_calls(
    seed: int, count: int, parts: Sequence[str] = tuple(PIECES)
) -> Iterator[HostileCall]:
    """Hostile calls, identical for the same seed. Each part of `PIECES` is the first one in
    turn.
    """
    chance = random.Random(seed)
    for number in range(count):
        chosen = (parts[number % len(parts)], *chance.choices(parts, k=chance.choice((0, 0, 1, 2))))
        pieces = [PIECES[part](chance) for part in chosen]
        chance.shuffle(pieces)
        yield HostileCall(_HEAD + "\n".join(pieces), chosen, session=chance.random() < 0.25)


def complaints(result: ExecutionResult, limits: Limits = LIMITS) -> list[str]:
    """Faults in the outcome of a hostile call; empty if it has none."""
    found = list[str]()
    if result.status not in POSSIBLE:
        found.append(f"{result.status}: {result.stderr[-200:]!r}")
    if not 0 <= result.peak_memory_bytes < limits.memory_bytes + 2**30:
        found.append(f"peak memory of {result.peak_memory_bytes} bytes")
    if not 0 <= result.cpu_seconds <= limits.cpu_seconds:
        found.append(f"{result.cpu_seconds} s of CPU time")
    for name in ("stdout", "stderr", "value", "value_json"):
        text: str = getattr(result, name) or ""
        if len(text) > 3 * limits.output_bytes + 400:
            found.append(f"{name} has {len(text)} characters")
        try:
            text.encode()
        except UnicodeEncodeError:
            found.append(f"{name} is no text")
    if result.value_json is not None:
        try:
            json.loads(result.value_json)
        except (ValueError, RecursionError):
            found.append("value_json is no JSON")
    return found


@dataclass(slots=True)
class Figures:
    """Result of an attack."""

    calls: int = 0
    others: int = 0
    """Number of calls that another client made meanwhile. A wrong answer to one is among the
    complaints.
    """
    statuses: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


async def attack(
    environment: Environment, calls: Sequence[HostileCall], *, clients: int = 6
) -> Figures:
    """Run the calls, `clients` in parallel. After each call, another client makes a call and checks
    its answer.
    """
    figures, waiting = Figures(), iter(enumerate(calls))

    async def one(number: int, call: HostileCall) -> None:
        name = f"hostile {number}" if call.session else None
        result = await environment.run(
            Submission(call.code, session=name, limits=LIMITS, run="policy")
        )
        results = [result]
        if name is not None:
            results.append(
                await environment.run(Submission("1", session=name, limits=LIMITS, run="policy"))
            )
            await environment.end_session(name, run="policy")
        figures.calls += 1
        figures.statuses.update(str(each.status) for each in results[:1])
        figures.wrong += [
            f"{call.parts}: {text}\n{call.code}" for each in results for text in complaints(each)
        ]
        other = await environment.run(Submission("6 * 7", limits=LIMITS, run="another"))
        figures.others += 1
        if (other.status, other.value, other.attempt) != (ToolStatus.OK, "42", 1):
            figures.wrong.append(f"another client after {call.parts}: {other}\n{call.code}")

    async def client() -> None:
        for number, call in waiting:
            await one(number, call)

    await asyncio.gather(*(client() for _ in range(clients)))
    return figures


def read_hostile_files(seed: int, count: int) -> list[str]:
    """Let the host's readers read random files. Return what is wrong with their results."""
    chance, found, files = random.Random(seed), list[str](), SlotFiles()
    for _ in range(count):
        files.prepare("")
        for descriptor in files.descriptors[1:]:
            os.pwrite(descriptor, hostile_bytes(chance), chance.choice((0, 0, 0, 1, 5000)))
            if chance.random() < 0.1:
                os.ftruncate(descriptor, chance.choice((0, 1, 1023, 1024, 65536, 2**30)))
        status = chance.choice(
            (0, chance.randrange(256) << 8, chance.randrange(1, 65), chance.randrange(1, 65) | 0x80)
        )
        reply = Reply(
            1, chance.choice(list(Ended)), status, 0.1, chance.random(), chance.randrange(2**28)
        )
        oom = chance.random() < 0.5
        result = outcome(reply, files, LIMITS, "L2", started=True, oom_killed=lambda oom=oom: oom)
        blameless = reply.ended in (Ended.KILLED, Ended.NOT_STARTED, Ended.TIMEOUT)
        found += [
            text
            for text in complaints(result)
            if not (blameless and text.startswith(str(result.status)))
        ]
        words = b"".join(
            chance.choices(
                (*NAMES, b"\n", b" ", b"12", b"VmHWM:", b"Pss:", b"\t"), k=chance.randrange(12)
            )
        )
        name = chance.choice((b"VmHWM:", b"Pss:", b"oom_kill "))
        line = next((line for line in words.split(b"\n") if line.startswith(name)), b"")
        expected = [int(word) for word in line.removeprefix(name).split()[:1] if word.isdigit()]
        if figure(words, name) != sum(expected):
            found.append(f"a figure of {words!r}")
    files.close()
    return found


async def _run(calls: int, readings: int, seed: int, isolation: Isolation) -> int:
    began = time.monotonic()
    wrong = read_hostile_files(seed, readings)
    print(f"{readings} readings, {len(wrong)} wrong, {time.monotonic() - began:.0f} s", flush=True)
    environment = LocalEnvironment(slots=4, isolation=isolation)
    figures = await attack(environment, list(hostile_calls(seed, calls)))
    metrics = await environment.metrics()
    counts = [
        line
        for line in metrics.splitlines()
        if line.startswith(("hrm_environment_worker_f", "hrm_environment_slot_d"))
    ]
    health = await environment.check_health(60)
    await environment.close()
    for text in (wrong + figures.wrong)[:20]:
        print(text)
    print(
        f"{figures.calls} calls at {isolation}, {figures.others} of another client,"
        f" {len(figures.wrong)} wrong"
    )
    print(
        f"{dict(figures.statuses)}; {'; '.join(counts)}; {health or 'well'};"
        f" {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong or figures.wrong or health else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.environment.hostile", description=__doc__
    )
    parser.add_argument("--calls", type=int, default=10_000, help="snippets to run [10000]")
    parser.add_argument(
        "--readings", type=int, default=10_000, help="sets of files to read [10000]"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--isolation", type=Isolation, default=Isolation.L2, help="lowest isolation level [L2]"
    )
    arguments = parser.parse_args()
    return asyncio.run(
        _run(arguments.calls, arguments.readings, arguments.seed, arguments.isolation)
    )


if __name__ == "__main__":
    sys.exit(main())
