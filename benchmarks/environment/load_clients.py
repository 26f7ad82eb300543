"""Clients of a loaded server, with the expected result of each of their calls. `load` starts them.

Each client makes one call after the other, of a random kind: cheap calls, numpy, sympy, cells of
sessions, calls that are submitted twice under one id, calls that are cancelled, errors, time-outs,
too much memory or output, and attacks. The random choices and the numbers that are computed are the
same in every run.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from benchmarks.environment.load_attacks import Attacker
from benchmarks.environment.measure import Row
from hrm_agent.environment.base import Environment, ExecutionResult, Limits, Submission
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.errors import HrmError
from tests.environment.attacks.snippets import CORPUS, DEFAULTS, Call, read_folder

__all__ = ["MIB", "PATIENT", "TOKEN", "Client", "Tally", "short_attacks"]

MIB = 2**20
SEED = 7
TOKEN = "a token for the load alone"
PATIENT = Limits(wall_seconds=300, cpu_seconds=300)
"""Limits of calls that end by themselves, long enough for a busy machine."""
ANSWER_SECONDS = 300.0
"""Seconds after which a call without an answer counts as lost."""
STAY = 50
"""Calls that a client makes before it leaves and comes back."""
BACK_SECONDS = 1.0
"""Seconds before a refused client tries again."""
CELLS = 20
"""Maximum cells of one session."""
ATTACK_SECONDS = 0.7
"""Maximum seconds of an attack. Attacks that may take longer are left to the corpus' own test."""
TIMED = ("plain", "numpy", "error", "cell")
"""Kinds of calls that end as soon as possible."""
ENDLESS = "import time\nwhile True: time.sleep(60)"


class Tally:
    """Counts of calls and of their faults."""

    def __init__(self) -> None:
        self.made, self.faults = (
            Counter[str](),
            {name: Counter[str]() for name in ("lost", "wrong", "doubled")},
        )
        self.told: list[str] = []
        self.outcomes = 0
        """Number of outcomes that the server has to count: of calls whose client waits for the
        answer.
        """
        self.seconds: dict[str, list[float]] = {}
        """Seconds from submission to answer, by phase, of each call that is not an attack."""
        self.phase = ""
        self.attacks = Counter[str]()
        """Attacks of an `Attacker`, by kind."""

    def blame(self, fault: str, kind: str, what: str, times: int = 1) -> None:
        self.faults[fault][kind] += times
        self.told.append(f"{self.made.total()} calls were made: {fault}: {kind}: {what}")

    def judge(self, kind: str, result: ExecutionResult, *, good: bool) -> None:
        if not good:
            texts = (
                f"{result.stdout[:80]!r} {result.stderr[-300:]!r} {result.value} {result.session}"
            )
            said = (
                f"{result.status} after {result.duration_seconds:.3f} s, attempt {result.attempt}:"
                f" {texts}"
            )
            self.blame("lost" if str(result.status) == "infrastructure" else "wrong", kind, said)

    def rows(self) -> list[Row]:
        kinds = [
            *self.made,
            *(kind for fault in self.faults.values() for kind in fault if kind not in self.made),
        ]
        rows = [
            {"calls": k, "made": self.made[k], **{n: f[k] for n, f in self.faults.items()}}
            for k in kinds
        ]
        return [
            *rows,
            {
                "calls": "all",
                "made": self.made.total(),
                **{n: f.total() for n, f in self.faults.items()},
            },
        ]


class Client:
    """Client that makes one call after the other and checks each result."""

    def __init__(
        self,
        url: str,
        number: int,
        attacks: list[Call],
        tally: Tally,
        attacker: Attacker | None = None,
    ) -> None:
        """Create a client. With an `attacker`, its attacks replace the calls of `attacks`."""
        self._url, self._number, self._attacks, self._tally = url, number, attacks, tally
        self._attacker = attacker
        self.share = 0.0
        """Share of its calls that are attacks."""
        self._made = 0
        self._chance = random.Random(SEED * 1000 + number)
        self._environment: Environment
        self._session = self._cells = 0
        self._count = number * 1000
        self._kinds: dict[Callable[[int], Awaitable[None]], int] = {
            self._plain: 42, self._numpy: 8, self._sympy: 3, self._cell: 20, self._twice: 6, self._cell_twice: 3,
            self._cancelled: 4, self._cancelled_cell: 2, self._error: 6, self._timeout: 2, self._memory: 2,
            self._output: 2,
        }  # fmt: skip

    async def make(self, numbers: range, done: Callable[[], None]) -> None:
        """Make the calls of one phase."""
        for number in numbers:
            if self._made % STAY == 0:
                await self._come_back()
            self._made += 1
            if self._chance.random() < self.share:
                kind: Callable[[int], Awaitable[None]] = self._attack
            else:
                (kind,) = self._chance.choices([*self._kinds], [*self._kinds.values()])
            name = kind.__name__.strip("_").replace("_", " ")
            self._tally.made[name] += 1
            began = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await kind(number)
            except (HrmError, TimeoutError) as error:
                self._tally.blame("lost", name, f"{type(error).__name__} {error}")
            if name in TIMED:
                self._tally.seconds.setdefault(self._tally.phase, []).append(
                    time.monotonic() - began
                )
            done()

    async def leave(self) -> None:
        if self._made:  # False if there were more clients than calls
            await self._end_session()
            await self._environment.close()
        if self._attacker is not None:
            await self._attacker.close()

    async def _come_back(self) -> None:
        if hasattr(self, "_environment"):
            await self._environment.close()
        try:
            self._environment = await asyncio.to_thread(RemoteEnvironment, self._url, token=TOKEN)
        except HrmError as error:
            self._tally.blame("lost", "come back", f"{error}")
            await asyncio.sleep(BACK_SECONDS)
            await self._come_back()

    async def _run(self, code: str, limits: Limits = PATIENT, **how: str | None) -> ExecutionResult:
        self._tally.outcomes += 1
        return await self._environment.run(Submission(code, limits=limits, **how))  # pyright: ignore[reportArgumentType]

    async def _comes_to(self, kind: str, code: str, stdout: str, value: str | None = None) -> None:
        result = await self._run(code)
        self._tally.judge(kind, result, good=_same(result, "ok", stdout, value))

    async def _plain(self, number: int) -> None:
        await self._comes_to(
            "plain", f"print({number})\n{number} ** 3", f"{number}\n", str(number**3)
        )

    async def _numpy(self, number: int) -> None:
        code = f"import numpy as np\nprint(int(np.arange({number}).sum()))"
        await self._comes_to("numpy", code, f"{sum(range(number))}\n")

    async def _sympy(self, number: int) -> None:
        code = (
            f"import sympy\nx = sympy.Symbol('x')\nprint(sympy.expand((x + {number}) * (x -"
            f" {number})))"
        )
        await self._comes_to("sympy", code, f"x**2 - {number**2}\n" if number else "x**2\n")

    async def _error(self, number: int) -> None:
        result = await self._run(f"print({number})\nraise ValueError({number})")
        good = (
            _same(result, "error", f"{number}\n", None)
            and f"ValueError: {number}\n" in f"{result.stderr}\n"
        )
        self._tally.judge("error", result, good=good)

    async def _ends(self, kind: str, status: str, code: str, limits: Limits = PATIENT) -> None:
        result = await self._run(code, limits)
        self._tally.judge(kind, result, good=result.status == status)

    async def _timeout(self, number: int) -> None:
        await self._ends("timeout", "timeout", f"{ENDLESS}  # {number}", Limits(wall_seconds=0.3))

    async def _memory(self, number: int) -> None:
        code = (
            "[0] * 10**10" if number % 2 else "kept = []\nwhile True: kept.append(bytearray(10**6))"
        )
        await self._ends("memory", "out_of_memory", code, Limits(300, 300, memory_bytes=64 * MIB))

    async def _output(self, number: int) -> None:
        await self._ends(
            "output", "output_limit", f"while True: print('{number % 10}' * 1_000_000)"
        )

    async def _attack(self, number: int) -> None:
        if self._attacker is not None:
            before = self._attacker.calls
            kind, wrong = await self._attacker.attack(self._chance)
            self._tally.outcomes += self._attacker.calls - before
            self._tally.attacks[kind] += 1
            if wrong:
                self._tally.blame("wrong", "attack", f"{kind}: {wrong}")
            return
        call = self._attacks[self._chance.randrange(len(self._attacks))]
        result = await self._run(call.code, call.limits)
        good = result.status in call.outcomes and "BREACH" not in f"{result.stdout}{result.value}"
        if not good:
            self._tally.told.append(
                f"the attack of call {number}: {call.code.partition(chr(10))[0]}"
            )
        self._tally.judge("attack", result, good=good)

    async def _twice(self, number: int) -> None:
        """Submit a call twice under one id, at once or in sequence. Equal random bytes in both
        answers show that it ran once.
        """
        code, name = (
            f"import os\nprint({number})\nos.urandom(8).hex()",
            f"{SEED} {self._number} {number}",
        )
        first, second = await self._both(code, name, None)
        self._tally.judge(
            "twice",
            first,
            good=_same(first, "ok", f"{number}\n", first.value) and bool(first.value),
        )
        if second.value != first.value:
            self._tally.blame("doubled", "twice", f"{first} and {second}")

    async def _both(self, code: str, name: str, session: str | None) -> list[ExecutionResult]:
        self._tally.outcomes -= 1  # two submissions of one id have one outcome
        calls = [self._run(code, id=name, session=session) for _ in range(2)]
        return (
            list(await asyncio.gather(*calls))
            if self._chance.random() < 0.5
            else [await call for call in calls]
        )

    async def _cell(self, number: int) -> None:
        del number
        result = await self._run(await self._next_cell(), session=self._name)
        self._counted("cell", result)

    async def _cell_twice(self, number: int) -> None:
        for result in await self._both(
            await self._next_cell(), f"{SEED} cell {number}", self._name
        ):
            self._counted("cell twice", result)

    @property
    def _name(self) -> str:
        return f"{self._number} {self._session}"

    async def _next_cell(self) -> str:
        if self._cells == CELLS:
            await self._end_session()
        self._cells, self._count = self._cells + 1, self._count + 1
        return "count += 1\ncount" if self._cells > 1 else f"count = {self._count}\ncount"

    def _counted(self, kind: str, result: ExecutionResult) -> None:
        ahead = (
            result.value is not None
            and result.value.isdecimal()
            and int(result.value) > self._count
        )
        if ahead:
            self._tally.blame("doubled", kind, f"{result.value}, not {self._count}")
        else:
            good = _same(result, "ok", "", str(self._count)) and str(result.session) != "lost"
            self._tally.judge(kind, result, good=good)

    async def _end_session(self) -> None:
        await self._environment.end_session(self._name)
        self._session, self._cells, self._count = self._session + 1, 0, self._number * 1000

    async def _cancelled(self, number: int) -> None:
        await self._cancel(f"{ENDLESS}  # {number}", None)

    async def _cancelled_cell(self, number: int) -> None:
        """Cancel a cell, which kills the session's process, and check that the session is rebuilt
        without it.
        """
        await self._cancel(f"count = -1\n{ENDLESS}  # {number}", self._name)

    async def _cancel(self, code: str, session: str | None) -> None:
        task = asyncio.ensure_future(
            self._environment.run(Submission(code, session=session, limits=PATIENT))
        )
        await asyncio.wait([task], timeout=self._chance.choice((0.0, 0.01, 0.1)))
        if task.done():
            self._tally.judge("cancelled", await task, good=False)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _same(result: ExecutionResult, status: str, stdout: str, value: str | None) -> bool:
    return (result.status, result.stdout, result.value) == (status, stdout, value)


def short_attacks() -> list[Call]:
    """Attacks of one short call that do not depend on the host."""
    calls = [snippet.calls[0] for snippet in read_folder(CORPUS) if len(snippet.calls) == 1]
    light = [call for call in calls if call.session is None and not call.heavy and call.copies == 1]
    short = [
        call
        for call in light
        if call.limits.wall_seconds <= ATTACK_SECONDS or "ok" in call.outcomes
    ]
    own = [call for call in short if not re.search(r"@[A-Z_0-9]+@", call.code)]
    return [call for call in own if call.limits.memory_bytes == DEFAULTS["memory"] * MIB]
