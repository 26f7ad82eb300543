"""Contract of every `Environment`, whether in this process, on a server, or on a cluster.

Subclass `EnvironmentContract` and give it a fixture `environment`: an environment of the
implementation under test, with at least the standard library, `SLOTS` slots and no other user. The
tests do not close it; the fixture `closing` gives an environment that a test may close.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

import pytest

from hrm_agent.environment.base import (
    Cell,
    Environment,
    ExecutionResult,
    Limits,
    SessionState,
    Submission,
)
from hrm_agent.environment.sandbox.seccomp import number_of
from hrm_agent.errors import HrmError
from hrm_agent.testing import wait_until
from hrm_agent.trajectory import ToolStatus

__all__ = [
    "CHAIN",
    "FOREVER",
    "IDLE",
    "LONG",
    "SHORT",
    "SLOTS",
    "EnvironmentContract",
    "all_slots_free",
    "gauge",
    "run_batch",
]

SLOTS = 2
FOREVER = "while True: pass"
IDLE = "import time\nwhile True: time.sleep(60)"
"""Endless code that slows down nothing else."""
CHAIN = """
import os
if os.fork() == 0:
    while os.fork() == 0:
        pass
    os._exit(0)
"""
"""Code that leaves a chain of processes behind, each of which forks the next one and exits."""
SHORT = Limits(wall_seconds=0.5)
LONG = Limits(wall_seconds=300, cpu_seconds=300)
"""Limits for calls that end by themselves or by the test, so long that a slow machine causes no
time-out.
"""


async def run_batch(
    environment: Environment, submissions: Sequence[Submission]
) -> list[ExecutionResult]:
    """Run calls in parallel. Results in the order given."""
    return list(await asyncio.gather(*map(environment.run, submissions)))


async def gauge(environment: Environment, name: str) -> float:
    lines = (await environment.metrics()).splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith(f"hrm_environment_{name} ")
    )


async def until_gauge(environment: Environment, name: str, value: float) -> None:
    async def reached() -> bool:
        return await gauge(environment, name) == value

    await wait_until(reached)


async def all_slots_free(environment: Environment) -> None:
    await until_gauge(environment, "running", 0)


async def occupied(environment: Environment) -> list[asyncio.Task[ExecutionResult]]:
    """Occupy every slot with a call that goes on until it is cancelled.

    Calls that an earlier test has cancelled hold their slots for a moment longer. If such a call
    were counted as running, one of the new calls would have no slot, and would wait behind the
    test's own calls.
    """
    await all_slots_free(environment)
    tasks = [asyncio.create_task(environment.execute(IDLE, limits=LONG)) for _ in range(SLOTS)]
    await until_gauge(environment, "running", SLOTS)
    return tasks


async def cancelled(*tasks: asyncio.Task[ExecutionResult]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EnvironmentContract:
    async def test_the_level_of_isolation_stands_in_every_outcome(
        self, environment: Environment
    ) -> None:
        assert environment.isolation in ("L0", "L1", "L2", "L3")
        assert (await environment.execute("1")).isolation == environment.isolation

    @pytest.mark.parametrize(
        ("code", "limits", "status"),
        [
            ("6 * 7", LONG, ToolStatus.OK),
            ("1 / 0", LONG, ToolStatus.ERROR),
            ("1 +", LONG, ToolStatus.ERROR),
            ("import os\nos._exit(7)", LONG, ToolStatus.ERROR),
            (FOREVER, SHORT, ToolStatus.TIMEOUT),
            (IDLE, SHORT, ToolStatus.TIMEOUT),
            (FOREVER, Limits(wall_seconds=300, cpu_seconds=0.3), ToolStatus.TIMEOUT),
            ("[0] * 10**10", LONG, ToolStatus.OUT_OF_MEMORY),
            ("while True: print('x' * 1_000_000)", LONG, ToolStatus.OUTPUT_LIMIT),
            ("1", Limits(wall_seconds=-1), ToolStatus.INVALID_CALL),
            ("1", Limits(wall_seconds=float("nan")), ToolStatus.INVALID_CALL),
            ("1", Limits(memory_bytes=10**30), ToolStatus.INVALID_CALL),
            ("# " + "x" * 3_000_000, Limits(), ToolStatus.INVALID_CALL),
        ],
    )
    async def test_each_way_of_ending_has_its_status(
        self, environment: Environment, code: str, limits: Limits, status: ToolStatus
    ) -> None:
        result = await environment.execute(code, limits=limits)
        assert result.status is status, result
        assert result.isolation == environment.isolation
        # a call with the limits SHORT may not have begun on a slow machine, and gets a second attempt
        assert result.attempt == 1 or limits is SHORT

    async def test_what_is_measured(self, environment: Environment) -> None:
        code = "import time\nx = b'x' * 50_000_000\nwhile time.process_time() < 0.1: pass"
        began = time.monotonic()
        result = await environment.execute(code, limits=LONG)
        whole = time.monotonic() - began
        assert 0.05 <= result.duration_seconds <= whole
        assert 0.05 <= result.cpu_seconds <= whole + 0.05  # one core, and a tick of the clock
        assert 50_000_000 <= result.peak_memory_bytes < 500_000_000
        assert 0 <= result.queued_seconds <= whole

    async def test_sessions_belong_to_runs(self, environment: Environment) -> None:
        await environment.run(Submission("x = 1", session="of a", run="a"))
        await environment.run(Submission("x = 2", session="of b", run="b"))
        assert (
            await environment.run(Submission("x", session="of a", run="b"))
        ).status is ToolStatus.DENIED
        for source, target in (("of a", "copy of a"), ("of b", "of a")):
            with pytest.raises(HrmError, match="belongs to another run"):
                await environment.fork_session(source, target, run="b")
        with pytest.raises(HrmError, match="belongs to another run"):
            await environment.end_session("of a", run="b")
        await environment.fork_session("of a", "copy of a", run="a")
        assert (await environment.run(Submission("x", session="copy of a", run="a"))).value == "1"
        for name, run in (("of a", "a"), ("copy of a", "a"), ("of b", "b"), ("unknown", "c")):
            await environment.end_session(name, run=run)
        assert (
            await environment.run(Submission("x", session="of a", run="b"))
        ).session is SessionState.NEW
        await environment.end_session("of a", run="b")

    async def test_what_was_refused_is_counted(self, environment: Environment) -> None:
        numbers = [number_of(name) for name in ("io_setup", "io_setup", "io_setup", "ptrace")]
        code = (
            "import ctypes\nlibc = ctypes.CDLL(None)\n[libc.syscall(number, 0, 0, 0, 0) for number"
            f" in {numbers}]"
        )
        for session in (None, "s"):
            result = await environment.execute(code, session=session)
            assert (result.status, result.value) == (ToolStatus.OK, "[-1, -1, -1, -1]"), result
            assert result.refused == {"io_setup": 3, "ptrace": 1}
            assert (await environment.execute("1", session=session)).refused == {}
        assert 'refused_total{system_call="io_setup"} 6' in await environment.metrics()

    @pytest.mark.parametrize(
        ("code", "value", "as_json"),
        [
            (
                "{'a': [1, 2.5, None, True]}",
                "{'a': [1, 2.5, None, True]}",
                {"a": [1, 2.5, None, True]},
            ),
            ("RESULT = 'é中\\n'", "'é中\\n'", "é中\n"),
            ("{1, 2}", "{1, 2}", None),
            ("x = 1", None, None),
        ],
    )
    async def test_a_value_and_its_json(
        self, environment: Environment, code: str, value: str, as_json: object
    ) -> None:
        result = await environment.execute(code)
        assert result.value == value
        assert (result.value_json and json.loads(result.value_json)) == as_json

    async def test_output_is_cut_in_the_middle_and_its_size_told(
        self, environment: Environment
    ) -> None:
        code = "import sys\nprint('a' * 1000 + 'b' * 1000)\nprint('é' * 30, file=sys.stderr)"
        result = await environment.execute(code, limits=Limits(output_bytes=100))
        assert result.stdout.startswith("a" * 40) and result.stdout.endswith("b" * 40 + "\n")
        assert "bytes cut" in result.stdout and len(result.stdout) < 200
        assert (result.stdout_bytes, result.stderr, result.stderr_bytes) == (
            2001,
            "é" * 30 + "\n",
            61,
        )

    async def test_text_of_every_kind_arrives_as_it_was(self, environment: Environment) -> None:
        text = "\x00\x1b\u2028\U0001f600\x7f"
        result = await environment.execute(f"print({text!a}, end='')\n{text!a}")
        assert result.stdout == text
        assert result.value == repr(text)

    async def test_half_a_surrogate_pair_arrives_as_it_was(self, environment: Environment) -> None:
        assert (await environment.execute("ord('\ud800')")).value == str(0xD800)

    async def test_calls_share_nothing_without_a_session(self, environment: Environment) -> None:
        await environment.execute("x = 1")
        assert "NameError" in (await environment.execute("x")).stderr

    async def test_calls_of_a_session_share_their_variables(self, environment: Environment) -> None:
        first = await environment.execute("x = 1", session="share")
        second = await environment.execute("x + 1", session="share")
        assert (first.session, second.session, second.value) == (
            SessionState.NEW,
            SessionState.KEPT,
            "2",
        )
        assert "NameError" in (await environment.execute("x", session="share not")).stderr

    async def test_a_session_whose_process_died_is_rebuilt_without_the_cell_that_killed_it(
        self, environment: Environment
    ) -> None:
        await environment.execute("x = 5", session="dies")
        assert (
            await environment.execute(FOREVER, session="dies", limits=SHORT)
        ).status is ToolStatus.TIMEOUT
        after = await environment.execute("x", session="dies")
        assert (after.session, after.value) == (SessionState.REPLAYED, "5")

    async def test_a_session_stands_where_its_history_says(self, environment: Environment) -> None:
        first = await environment.execute("x = 1", session="history")
        await environment.execute("x += 10", session="history")
        cells = (Cell("x = 1", first.digest),)
        branched = await environment.run(Submission("x", session="history", history=cells))
        assert (branched.session, branched.value) == (SessionState.REPLAYED, "1")
        kept = await environment.run(
            Submission("x", session="history", history=(*cells, Cell("x", branched.digest)))
        )
        assert (kept.session, kept.value) == (SessionState.KEPT, "1")

    async def test_a_history_that_comes_to_something_else_is_told(
        self, environment: Environment
    ) -> None:
        cells = (Cell("y = 0"), Cell("x = 1\nx", "0123456789abcdef"))
        result = await environment.run(Submission("x", session="changed", history=cells))
        assert (result.session, result.changed_cells, result.value) == (
            SessionState.DIFFERS,
            (2,),
            "1",
        )

    async def test_calls_of_a_session_run_in_the_order_of_their_submission(
        self, environment: Environment
    ) -> None:
        cells = [Submission("x = [0]", session="order")]
        cells += [Submission(f"x.append({i})\nlen(x)", session="order") for i in range(1, 10)]
        results = await run_batch(environment, cells)
        assert [result.value for result in results] == [None, *(str(i + 1) for i in range(1, 10))]

    async def test_a_fork_of_a_session_goes_its_own_way(self, environment: Environment) -> None:
        await environment.execute("x = [1]", session="origin")
        await environment.fork_session("origin", "copy")
        await environment.execute("x.append(2)", session="copy")
        assert (await environment.execute("x", session="origin")).value == "[1]"
        assert (await environment.execute("x", session="copy")).value == "[1, 2]"

    async def test_there_is_no_fork_of_what_is_not(self, environment: Environment) -> None:
        with pytest.raises(HrmError, match="nobody"):
            await environment.fork_session("nobody", "copy of nobody")

    async def test_a_session_that_was_ended_is_forgotten(self, environment: Environment) -> None:
        name = "ends / ? # .. é"
        await environment.execute("x = 1", session=name)
        await environment.end_session(name)
        await environment.end_session("never was")
        after = await environment.execute("x", session=name)
        assert (after.session, after.status) == (SessionState.NEW, ToolStatus.ERROR)

    async def test_a_session_of_another_run_is_denied(self, environment: Environment) -> None:
        await environment.run(Submission("x = 1", session="mine", run="mine"))
        denied = await environment.run(Submission("x", session="mine", run="yours"))
        assert (denied.status, denied.value) == (ToolStatus.DENIED, None)

    async def test_a_call_that_is_submitted_again_is_given_its_first_answer(
        self, environment: Environment
    ) -> None:
        call = Submission("import random\nrandom.random()", id="again")
        other = Submission("import random\nrandom.random()", id="another")
        first, again, different = [await environment.run(each) for each in (call, call, other)]
        assert (first.value, first.value_json, first.cpu_seconds) == (
            again.value,
            again.value_json,
            again.cpu_seconds,
        )
        assert different.value != first.value

    async def test_a_call_that_is_submitted_twice_at_once_runs_once(
        self, environment: Environment
    ) -> None:
        await environment.execute("x = 0", session="once")
        call = Submission("import time\ntime.sleep(0.2)\nx += 1\nx", session="once", id="twice")
        results = await run_batch(environment, [call, call])
        assert [result.value for result in results] == ["1", "1"]

    async def test_an_id_belongs_to_its_code(self, environment: Environment) -> None:
        await environment.run(Submission("1", id="taken"))
        assert (
            await environment.run(Submission("2", id="taken"))
        ).status is ToolStatus.INVALID_CALL

    async def test_cancelling_frees_the_slot(self, environment: Environment) -> None:
        await cancelled(*await occupied(environment))
        await all_slots_free(environment)
        assert (await environment.execute("1")).value == "1"

    async def test_cancelling_what_waits_leaves_the_rest_alone(
        self, environment: Environment
    ) -> None:
        holders = await occupied(environment)
        waiting = [asyncio.create_task(environment.execute(f"{i}")) for i in range(3)]
        await until_gauge(environment, "waiting", 3)
        await cancelled(waiting[1], *holders)
        assert [(await waiting[i]).value for i in (0, 2)] == ["0", "2"]

    async def test_a_timeout_around_a_call_ends_it(self, environment: Environment) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await environment.execute(IDLE, limits=LONG)
        await all_slots_free(environment)

    async def test_a_call_that_has_not_begun_at_its_deadline_never_does(
        self, environment: Environment
    ) -> None:
        holders = await occupied(environment)
        began = time.monotonic()
        late = await environment.run(Submission("1", deadline_seconds=0.2))
        assert time.monotonic() - began >= 0.2
        assert (late.status, late.value) == (ToolStatus.INFRASTRUCTURE, None)
        # no slot was free, and still the call has its outcome
        assert not any(holder.done() for holder in holders)
        await cancelled(*holders)
        assert (await environment.run(Submission("1", deadline_seconds=60))).value == "1"

    async def test_outcomes_of_a_batch_stand_in_its_order(self, environment: Environment) -> None:
        codes = [f"import time\ntime.sleep({0.1 if i == 0 else 0})\n{i}" for i in range(20)]
        results = await run_batch(environment, [Submission(code) for code in codes])
        assert [result.value for result in results] == [str(i) for i in range(20)]
        assert await run_batch(environment, []) == []

    async def test_a_slow_call_delays_no_other(self, environment: Environment) -> None:
        slow = asyncio.create_task(environment.execute(IDLE, limits=LONG))
        quick = [asyncio.create_task(environment.execute(f"{i}")) for i in range(10)]
        assert [result.value for result in await asyncio.gather(*quick)] == [
            str(i) for i in range(10)
        ]
        assert not slow.done()
        await cancelled(slow)

    async def test_higher_priority_goes_first(self, environment: Environment) -> None:
        holders = await occupied(environment)
        ended: list[int] = []

        async def call(priority: int) -> None:
            await environment.run(Submission("1", priority=priority))
            ended.append(priority)

        calls = [asyncio.create_task(call(priority)) for priority in (0, 0, 0, 0, 5, 5)]
        await until_gauge(environment, "waiting", len(calls))
        # the other holder goes on, so that the calls run one after the other in the one free slot
        await cancelled(holders[0])
        await asyncio.gather(*calls)
        assert ended == [5, 5, 0, 0, 0, 0]
        await cancelled(holders[1])

    async def test_many_at_once_get_their_own_answers(self, environment: Environment) -> None:
        results = await asyncio.gather(
            *(environment.execute(f"print({i})\n{i} ** 2") for i in range(200))
        )
        assert [(result.stdout, result.value) for result in results] == [
            (f"{i}\n", str(i * i)) for i in range(200)
        ]

    def test_it_serves_one_event_loop_after_another(self, environment: Environment) -> None:
        async def two() -> list[str | None]:
            return [(await environment.execute(f"{i}")).value for i in range(2)]

        assert [asyncio.run(two()) for _ in range(3)] == [["0", "1"]] * 3

    async def test_it_serves_several_event_loops_at_once(self, environment: Environment) -> None:
        async def ten(start: int) -> list[str | None]:
            return [
                r.value
                for r in await asyncio.gather(
                    *(environment.execute(f"{start + i}") for i in range(10))
                )
            ]

        threads = [asyncio.to_thread(asyncio.run, ten(100 * n)) for n in range(4)]
        assert await asyncio.gather(*threads) == [
            [str(100 * n + i) for i in range(10)] for n in range(4)
        ]

    async def test_its_metrics_count_calls(self, environment: Environment) -> None:
        async def ok() -> float:
            return await gauge(environment, 'calls_total{status="ok"}')

        before = await ok()
        await environment.execute("1")
        assert await ok() == before + 1

    async def test_closing_gives_open_calls_an_outcome(self, closing: Environment) -> None:
        call = asyncio.create_task(closing.execute(FOREVER, limits=LONG))
        await until_gauge(closing, "running", 1)
        await closing.close()
        assert (await call).status is ToolStatus.INFRASTRUCTURE
        with pytest.raises(HrmError, match="closed"):
            await closing.execute("1")
        await closing.close()
