"""Outcomes of snippets: one type for each way of ending, with output, value and duration."""

from __future__ import annotations

import asyncio

import pytest

from hrm_agent.environment import Environment, Limits, LocalEnvironment
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import FOREVER, IDLE, LONG, SHORT


@pytest.mark.parametrize(
    ("code", "stdout", "value"),
    [
        ("print('a')\n6 * 7", "a\n", "42"),
        ("x = 3\nRESULT = x * 2", "", "6"),
        ("RESULT = 1\n'last'", "", "'last'"),
        ("RESULT = 1\nprint('shown')", "shown\n", "1"),
        ("None", "", None),
        ("", "", None),
        ("# only a comment", "", None),
        ("import sys\nsys.exit()", "", None),
        ("'\\u00e9\\u4e2d'", "", "'\u00e9\u4e2d'"),
        ("print('\\ud800')", "\\ud800\n", None),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(1)", "", "P(x=1)"),
        ("__name__", "", "'__main__'"),
    ],
)
async def test_success_gives_output_and_value(
    environment: Environment, code: str, stdout: str, value: str | None
) -> None:
    result = await environment.execute(code, limits=LONG)
    assert (result.status, result.stdout, result.stderr, result.value) == (
        ToolStatus.OK,
        stdout,
        "",
        value,
    )
    assert result.duration_seconds > 0


@pytest.mark.parametrize(
    ("code", "last_line"),
    [
        ("x", "NameError: name 'x' is not defined"),
        ("1 +", "SyntaxError: invalid syntax"),
        (
            "import math\nmath.factorial(-1)",
            "ValueError: factorial() not defined for negative values",
        ),
        (
            "import json\njson.loads('{')",
            (
                "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes:"
                " line 1 column 2 (char 1)"
            ),
        ),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import pydantic", "ModuleNotFoundError: No module named 'pydantic'"),
        ("a\0b", ": source code string cannot contain null bytes"),
        (
            "class B(BaseException):\n    def __str__(self): raise B\nraise B",
            "<exception str() failed>",
        ),
        ("import ctypes\nctypes.string_at(0)", "Process ended by SIGSEGV"),
        ("import os\nos._exit(7)", ""),
    ],
)
async def test_failure_is_an_error_with_a_traceback(
    environment: Environment, code: str, last_line: str
) -> None:
    result = await environment.execute(code)
    assert result.status is ToolStatus.ERROR
    assert (result.stderr.splitlines() or [""])[-1].endswith(last_line)
    assert result.value is None


async def test_traceback_shows_the_snippet_and_no_path_of_the_host(
    environment: Environment,
) -> None:
    result = await environment.execute("import json\ndef f():\n    json.loads('{')\nf()")
    assert 'File "<snippet>", line 3, in f\n    json.loads' in result.stderr
    assert "/" not in result.stderr


async def test_output_printed_before_the_end_is_kept(environment: Environment) -> None:
    result = await environment.execute(f"print('before')\n{IDLE}", limits=SHORT)
    assert (result.status, result.stdout) == (ToolStatus.TIMEOUT, "before\n")
    assert result.duration_seconds >= SHORT.wall_seconds


async def test_wall_clock_counts_sleep(environment: Environment) -> None:
    result = await environment.execute(IDLE, limits=SHORT)
    assert result.status is ToolStatus.TIMEOUT


async def test_cpu_time_is_limited_apart_from_the_wall_clock(environment: Environment) -> None:
    limits = Limits(wall_seconds=300, cpu_seconds=0.3)
    result = await environment.execute(FOREVER, limits=limits)
    assert result.status is ToolStatus.TIMEOUT
    assert 0.3 <= result.cpu_seconds <= result.duration_seconds + 0.05
    assert result.duration_seconds < limits.wall_seconds


@pytest.mark.parametrize(
    "code",
    [
        "[0] * 10**10",
        "import mmap\nmmap.mmap(-1, 2**33)",
        "x = []\nwhile True: x.append(bytes(10**6))",
    ],
)
async def test_memory_limit(environment: Environment, code: str) -> None:
    result = await environment.execute(code, limits=Limits(300, 300, memory_bytes=256 * 2**20))
    assert result.status is ToolStatus.OUT_OF_MEMORY


async def test_long_output_is_cut_in_the_middle_and_its_size_told(environment: Environment) -> None:
    result = await environment.execute(
        "print('a' * 1000 + 'b' * 1000)", limits=Limits(output_bytes=100)
    )
    assert result.status is ToolStatus.OK
    assert result.stdout == "a" * 50 + "\n[... 1901 of 2001 bytes cut ...]\n" + "b" * 49 + "\n"


async def test_long_value_is_cut(environment: Environment) -> None:
    result = await environment.execute("'a' * 100_000", limits=Limits(output_bytes=100))
    assert result.value is not None
    assert 100 <= len(result.value) < 200
    assert "of 100002 bytes cut" in result.value


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(1000): print('x' * 1_000_000)",
        "import sys\nwhile True: sys.stderr.write('x' * 100_000)",
        "import os\nwhile True:\n    try: os.write(1, b'x' * 1_000_000)\n    except OSError: break",
        "import os\nos.system('yes')",
    ],
)
async def test_a_flood_of_output_is_stopped_by_the_kernel(
    environment: Environment, code: str
) -> None:
    result = await environment.execute(code, limits=LONG)
    assert result.status is ToolStatus.OUTPUT_LIMIT  # and not ended by its time
    assert len(result.stdout) + len(result.stderr) < 40_000


LIBRARY = {
    "a database": (
        """
import sqlite3
one, other = sqlite3.connect("/tmp/x.db"), sqlite3.connect("/tmp/x.db")
one.execute("create table t (a)")
one.execute("insert into t values (42)")
one.commit()
one.close()
other.execute("select a from t").fetchone()[0]
"""
    ),
    "a database in a thread": (
        """
import sqlite3, threading
found = []
def work():
    database = sqlite3.connect("file:/tmp/x.db?vfs=unix-none", uri=True)
    found.append(database.execute("select 42").fetchone()[0])
    try:
        sqlite3.connect("/tmp/y.db").execute("create table t (a)")
    except sqlite3.OperationalError as error:
        assert str(error) == "access permission denied"
        found.append(error)
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert len(found) == 2
found[0]
"""
    ),
    "locks": (
        """
import fcntl
with open("/tmp/file", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
42
"""
    ),
    "a pool": (
        "from multiprocessing import Pool\nwith Pool(2) as pool: found = pool.map(abs, [-40,"
        " 2])\nsum(found)"
    ),
    "an executor": (
        """
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2) as pool: found = sum(pool.map(abs, [-40, 2]))
found
"""
    ),
    "a queue": (
        """
import multiprocessing
queue, array = multiprocessing.Queue(), multiprocessing.Array("i", [40, 2])
process = multiprocessing.Process(target=queue.put, args=(sum(array),))
process.start()
found = queue.get()
process.join()
found
"""
    ),
    "programs": (
        """
import asyncio, subprocess
async def main():
    process = await asyncio.create_subprocess_exec("timeout", "60", "echo", "40", stdout=asyncio.subprocess.PIPE)
    return int((await process.communicate())[0])
asyncio.run(main()) + int(subprocess.run(["echo", "2"], capture_output=True, check=True).stdout)
"""
    ),
}


@pytest.mark.parametrize("name", LIBRARY)
async def test_the_standard_library_works_with_processes_and_files(
    environment: Environment, name: str
) -> None:
    result = await environment.execute(LIBRARY[name], limits=LONG)
    assert (result.status, result.stderr, result.value) == (ToolStatus.OK, "", "42")


async def test_two_hundred_calls_at_once_get_their_own_answers(environment: Environment) -> None:
    results = await asyncio.gather(
        *(environment.execute(f"print({i})\n{i} ** 2") for i in range(200))
    )
    assert [(result.stdout, result.value) for result in results] == [
        (f"{i}\n", str(i * i)) for i in range(200)
    ]


async def test_set_order_is_the_same_in_every_process() -> None:
    outcomes: set[str | None] = set()
    for _ in range(2):
        environment = LocalEnvironment(slots=1)
        outcomes.add((await environment.execute("list({'a', 'b', 'c', 'd', 'e'})")).value)
        await environment.close()
    assert len(outcomes) == 1


async def test_random_numbers_differ_from_call_to_call(environment: Environment) -> None:
    results = await asyncio.gather(
        *(environment.execute("import random\nrandom.random()") for _ in range(4))
    )
    assert len({result.value for result in results}) == 4
