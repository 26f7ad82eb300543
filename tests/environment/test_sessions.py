"""Calls that share variables: what they keep, what ends them, and that they stay apart."""

from __future__ import annotations

import asyncio

from hrm_agent.environment import Environment, Limits, LocalEnvironment
from hrm_agent.trajectory import ToolStatus


async def test_variables_and_files_are_kept_and_sessions_are_apart(environment: Environment) -> None:
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


async def test_a_timeout_ends_the_session_and_limits_hold_per_call(environment: Environment) -> None:
    limits = Limits(wall_seconds=1, cpu_seconds=1)
    for _ in range(3):  # 1.2 s together: no limit on the sum
        result = await environment.execute(
            "x = 1\nimport time\nend = time.time() + 0.4\nwhile time.time() < end: pass", session="time", limits=limits
        )
        assert result.status is ToolStatus.OK
    assert (await environment.execute("while True: pass", session="time", limits=limits)).status is ToolStatus.TIMEOUT
    assert "NameError" in (await environment.execute("x", session="time")).stderr


async def test_a_death_is_typed_and_the_next_call_starts_anew(environment: Environment) -> None:
    await environment.execute("x = 1", session="death")
    assert (await environment.execute("import os\nos._exit(3)", session="death")).status is ToolStatus.ERROR
    assert "NameError" in (await environment.execute("x", session="death")).stderr


async def test_memory_limit_in_a_session(environment: Environment) -> None:
    result = await environment.execute("[0] * 10**10", session="memory")
    assert result.status is ToolStatus.OUT_OF_MEMORY


async def test_end_session(environment: Environment) -> None:
    await environment.execute("x = 1", session="end")
    await environment.end_session("end")
    await environment.end_session("unknown")
    assert "NameError" in (await environment.execute("x", session="end")).stderr


async def test_the_session_idle_longest_makes_room() -> None:
    environment = LocalEnvironment(slots=1, max_sessions=2)
    for name in ("a", "b"):
        await environment.execute("x = 1", session=name)
    await environment.execute("x", session="a")
    await environment.execute("x = 1", session="c")
    kept = [(await environment.execute("x", session=name)).value for name in ("a", "c", "b")]
    assert kept == ["1", "1", None]
    await environment.close()


async def test_speaking_out_of_turn_ends_the_session_and_forges_no_outcome(environment: Environment) -> None:
    """The channel to the zygote is within the snippet's reach: it may end its own call early, nothing else."""
    code = """
import os, threading, time
def speak():
    time.sleep(0.2)
    os.write(4, bytes(50))
threading.Thread(target=speak).start()
x = 1
"""
    await environment.execute(code, session="speaker")
    await asyncio.sleep(0.4)
    assert "NameError" in (await environment.execute("x", session="speaker")).stderr
    assert (await environment.execute("2", session="bystander")).value == "2"
