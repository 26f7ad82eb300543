"""Calls that share variables: what they keep, what ends them, how they are rebuilt, and that they
stay apart.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from hrm_agent.environment import Environment, Limits, LocalEnvironment
from hrm_agent.environment.base import Cell, SessionState, Submission
from hrm_agent.errors import HrmError
from hrm_agent.testing import wait_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import FOREVER, IDLE, LONG, SHORT, gauge, until_gauge
from tests.support.environment.held import HOLD, PATIENCE_SECONDS, until_held
from tests.support.environment.killing import SLOT, at_depth


async def test_variables_and_files_are_kept_and_sessions_are_apart(
    environment: Environment,
) -> None:
    await environment.execute("x = 5\nopen('note', 'w').write('kept')", session="kept")
    again = await environment.execute("x += 1\nprint(open('note').read())\nx", session="kept")
    assert (again.value, again.stdout) == ("6", "kept\n")
    assert "NameError" in (await environment.execute("x", session="other")).stderr
    assert "NameError" in (await environment.execute("x")).stderr


async def test_an_error_leaves_the_session_alive(environment: Environment) -> None:
    await environment.execute("x = 1", session="error")
    assert (await environment.execute("x = 2\n1 / 0", session="error")).status is ToolStatus.ERROR
    assert (await environment.execute("x", session="error")).value == "2"


async def test_result_counts_only_in_the_cell_that_sets_it(environment: Environment) -> None:
    assert (await environment.execute("RESULT = [1]", session="result")).value == "[1]"
    assert (await environment.execute("y = 2", session="result")).value is None


async def test_calls_of_one_session_run_one_after_the_other(environment: Environment) -> None:
    code = "import time\nn = globals().get('n', 0)\ntime.sleep(0.01)\nn += 1\nn"
    results = await asyncio.gather(*(environment.execute(code, session="queue") for _ in range(10)))
    assert [result.value for result in results] == [str(i + 1) for i in range(10)]


async def test_a_timeout_ends_the_process_and_limits_hold_per_call(
    environment: Environment,
) -> None:
    code = (
        "import time\nx, end = 1, time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    )
    limits = Limits(wall_seconds=300, cpu_seconds=0.25)
    for _ in range(3):  # 0.3 s together: no limit on the sum
        assert (
            await environment.execute(code, session="time", limits=limits)
        ).status is ToolStatus.OK
    assert (
        await environment.execute(FOREVER, session="time", limits=limits)
    ).status is ToolStatus.TIMEOUT
    again = await environment.execute("x", session="time")
    assert (again.value, again.session) == ("1", SessionState.REPLAYED)


async def test_the_wall_clock_is_each_calls_own(environment: Environment) -> None:
    await environment.execute("import time\ntime.sleep(0.2)", session="wall", limits=LONG)
    late = await environment.execute(IDLE, session="wall", limits=SHORT)
    assert (late.status, late.duration_seconds >= SHORT.wall_seconds) == (ToolStatus.TIMEOUT, True)


@pytest.mark.parametrize("end", ["import os\nos._exit(3)", "import os\nos._exit(0)"])
async def test_after_a_death_the_cells_before_it_are_run_again(
    environment: Environment, end: str
) -> None:
    # whether the death is heard of before or after the next call is a matter of chance
    for _ in range(5):
        await environment.execute("x = globals().get('x', 0) + 1", session=end)
        first = await environment.execute("x", session=end)
        await environment.execute(end, session=end)
        again = await environment.execute("x", session=end)
        assert (again.value, again.session) == (first.value, SessionState.REPLAYED)


async def test_a_cancelled_call_leaves_no_trace(environment: Environment) -> None:
    await environment.execute("x = 1", session="cancel")
    call = asyncio.create_task(environment.execute(f"x = 2\n{HOLD}", session="cancel", limits=LONG))
    await until_held()
    call.cancel()
    again = await environment.execute("x", session="cancel")
    assert (again.value, again.session) == ("1", SessionState.REPLAYED)


async def test_random_numbers_are_the_same_again(environment: Environment) -> None:
    draw = "import random\nx = random.random()\nx"
    first = (await environment.execute(draw, session="random")).value
    assert (await environment.execute(draw, session="another")).value != first
    await environment.execute("import os\nos._exit(0)", session="random")
    again = await environment.execute("x", session="random")
    assert (again.value, again.session) == (first, SessionState.REPLAYED)


async def test_what_comes_to_something_else_is_told(environment: Environment) -> None:
    await environment.execute("import time\nx = time.monotonic_ns()\nx", session="changed")
    await environment.execute("import os\nos._exit(0)", session="changed")
    again = await environment.execute("x > 0", session="changed")
    assert (again.value, again.session, again.changed_cells) == ("True", SessionState.DIFFERS, (1,))


async def test_the_cells_that_are_given_count(environment: Environment) -> None:
    async def run(code: str, *cells: str) -> tuple[str | None, SessionState | None]:
        history = tuple(map(Cell, cells))
        result = await environment.run(Submission(code, session="history", history=history))
        return result.value, result.session

    assert await run("x = 1") == (None, SessionState.NEW)
    assert await run("x", "x = 1") == ("1", SessionState.KEPT)
    assert await run("x", "x = 2", "y = 3") == ("2", SessionState.REPLAYED)
    assert await run("x", "x = 2", "import os\nos._exit(3)") == ("2", SessionState.LOST)
    assert (
        "NameError"
        in (await environment.run(Submission("x", session="history", history=()))).stderr
    )


async def test_a_fork_is_a_copy_apart(environment: Environment) -> None:
    await environment.execute("x = [1]\nopen('note', 'w').write('kept')", session="source")
    await environment.fork_session("source", "copy")
    await environment.execute("x.append(2)", session="source")
    copy = await environment.execute("x, open('note').read()", session="copy")
    assert (copy.value, copy.session) == ("([1], 'kept')", SessionState.REPLAYED)
    await environment.execute("x.append(3)\nopen('note', 'w').write('gone')", session="copy")
    source = await environment.execute("x, open('note').read()", session="source")
    assert (source.value, source.session) == ("([1, 2], 'kept')", SessionState.KEPT)
    with pytest.raises(HrmError, match="no session 'unknown'"):
        await environment.fork_session("unknown", "copy")


async def test_a_session_is_denied_to_another_run(environment: Environment) -> None:
    await environment.run(Submission("x = 1", session="owned", run="mine"))
    denied = await environment.run(Submission("x", session="owned", run="theirs"))
    assert (denied.status, denied.value) == (ToolStatus.DENIED, None)


async def test_memory_limit_in_a_session(environment: Environment) -> None:
    result = await environment.execute("[0] * 10**10", session="memory")
    assert result.status is ToolStatus.OUT_OF_MEMORY


async def test_end_session(environment: Environment) -> None:
    await environment.execute("x = 1", session="end")
    await environment.end_session("end")
    await environment.end_session("unknown")
    assert "NameError" in (await environment.execute("x", session="end")).stderr


async def test_no_call_meets_the_processes_of_a_session_that_is_being_ended() -> None:
    """Processes of such a session hold the slot's files. They must not change the code and output
    of another call.
    """
    environment = LocalEnvironment(slots=1)
    spy = (
        "import os\nif os.fork() == 0:\n    while True:\n        os.write(1, b'forged') if"
        " os.read(4, 65536) else 0"
    )
    await environment.execute(spy, session="ended")
    frozen = set(at_depth(SLOT))
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)  # so the end of the session waits
    try:
        await environment.end_session("ended")
        # a call that is given to a frozen slot waits without end
        async with asyncio.timeout(PATIENCE_SECONDS):
            meanwhile = await environment.execute("40 + 2")
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    results = [meanwhile, *[await environment.execute("40 + 2") for _ in range(5)]]
    assert [(result.stdout, result.value) for result in results] == [("", "42")] * 6
    await environment.close()


async def test_the_session_idle_longest_makes_room() -> None:
    environment = LocalEnvironment(slots=1, max_sessions=2)
    for name in ("a", "b"):
        await environment.execute("x = 1", session=name)
    await environment.execute("x", session="a")
    await environment.execute("x = 1", session="c")
    found = [await environment.execute("x", session=name) for name in ("a", "c", "b")]
    assert [result.value for result in found] == ["1"] * 3
    assert [result.session for result in found] == [
        SessionState.KEPT,
        SessionState.KEPT,
        SessionState.REPLAYED,
    ]
    await environment.close()


SPEAKER = """
import os, sys, threading, time
def speak():
    while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "serve_session":
        time.sleep(0.001)
    os.write(5, bytes(50))
if time.monotonic() < {}:
    threading.Thread(target=speak).start()
x = 1
"""
"""Once the main thread waits for the next call; not when it is run again, if that is later."""


async def test_speaking_out_of_turn_ends_the_session_and_forges_no_outcome(
    environment: Environment,
) -> None:
    """The channel to the slot is within the snippet's reach: it may end its own call early, nothing
    else.
    """
    before, seconds, silent, answered = await gauge(environment, "sessions_living"), 0.5, 0.0, False
    # it may have begun too late to speak, or spoken in its own call
    while not answered or time.monotonic() >= silent:
        await environment.end_session("speaker")
        seconds *= 2
        silent = time.monotonic() + seconds
        told = await environment.execute(SPEAKER.format(silent), session="speaker")
        answered = told.status is ToolStatus.OK
    await until_gauge(environment, "sessions_living", before)
    await wait_until(lambda: time.monotonic() > silent)
    after = await environment.execute("x", session="speaker")
    assert (after.value, after.session) == ("1", SessionState.REPLAYED)
    assert (await environment.execute("2", session="bystander")).value == "2"
