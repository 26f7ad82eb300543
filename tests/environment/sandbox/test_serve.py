"""A slot's two bodies, Python and compiled: what a call comes to does not tell which one ran it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hrm_agent.environment.local.zygote_process as process
from hrm_agent.environment import ExecutionResult, Limits, LocalEnvironment
from hrm_agent.environment.local.zygote_process import PURE, missing_body
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks.host import descendants
from tests.support.environment.contract import FOREVER, IDLE, LONG

pytestmark = pytest.mark.whole

INSTALL = "apt-get install -y gcc libc6-dev python3-dev, then pip install -e . again"
FOLDER = "import os\nsorted(os.listdir('.')), oct(os.stat('.').st_mode)"
CASES = {
    "value": ("print(1)\n40 + 2", LONG),
    "empty": ("", LONG),
    "text": ("print('\u00fc\u4e2d\U0001f600')\n'\\udc80'", LONG),
    "long code": ("x = 0\n" + "x += 1\n" * 30_000 + "x", LONG),
    "error": ("print('before')\n1/0", LONG),
    "syntax": ("def", LONG),
    "exit code": ("import os\nos._exit(7)", LONG),
    "signal": ("import os, signal\nsignal.raise_signal(signal.SIGTERM)", LONG),
    "fault": ("import ctypes\nctypes.string_at(0)", LONG),
    "refused call": (
        "import ctypes\nctypes.CDLL(None, use_errno=True).unshare(0x10000000), ctypes.get_errno()",
        LONG,
    ),
    "at the first look": ("import time\ntime.sleep(0.05)\n3", LONG),
    "after some looks": ("import time\ntime.sleep(0.17)\n3", LONG),
    "time-out": (f"print('before', flush=True)\n{IDLE}", Limits(wall_seconds=0.5)),
    "time-out before the first look": (IDLE, Limits(wall_seconds=0.02)),
    "CPU": (FOREVER, Limits(wall_seconds=300, cpu_seconds=0.1)),
    "CPU before the first look": (FOREVER, Limits(wall_seconds=300, cpu_seconds=0.01)),
    "no time at all": ("print(1)", Limits(wall_seconds=0.0)),
    "memory": ("[0] * 10**10", Limits(300, 300, memory_bytes=2**27)),
    "memory of a tree": (
        """
import os, time
for _ in range(3):
    if not os.fork():
        x = b'x' * 10**8
        break
time.sleep(300)
""",
        Limits(300, 300, memory_bytes=2**28),
    ),
    "output": ("while True: print('x' * 10_000)", Limits(300, 300, output_bytes=1000)),
    "daemon": ("import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(60)\n1", LONG),
    "files": (
        (
            "import os\nos.mkdir('a')\nopen('a/b', 'w').write('x')\nos.symlink('/usr',"
            " 'c')\nos.listdir('.')[:0]"
        ),
        LONG,
    ),
    "files of mode 0": (
        """
import os
for name in 'ab':
    os.makedirs(name + '/c')
    os.chmod(name + '/c', 0)
    os.chmod(name, 0)
os.close(os.open('f', os.O_CREAT, 0))
""",
        LONG,
    ),
    "folder of mode 0": (
        "import os\ntry: os.chmod('.', 0)\nexcept OSError as error: print(error)",
        LONG,
    ),
    "hidden file": ("open('...', 'w').close()", LONG),
    "many files": ("for i in range(500): open(f'{i:0>99}', 'w').close()", LONG),
    "what a child is": (
        """
import ctypes, os, resource, signal, sys
libc = ctypes.CDLL(None)
capabilities, death = (ctypes.c_uint32 * 6)(), ctypes.c_int()
libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), capabilities), libc.prctl(2, ctypes.byref(death), 0, 0, 0)
limits = [(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith('RLIMIT_')]
memory = dict(limits)['RLIMIT_AS'][1]
limits = [limit for limit in limits if limit[0] != 'RLIMIT_AS']
opened = []
for descriptor in range(64):
    try: opened.append((descriptor, os.fstat(descriptor).st_mode))
    except OSError: pass
print([*capabilities], death.value, limits, 2**28 < memory < 2**30, opened)
print(os.getpid(), os.getppid(), os.getsid(0), os.getcwd(), signal.pthread_sigmask(0, []))
__name__, sorted(globals()), sys.argv[:1], signal.getsignal(signal.SIGINT) is signal.default_int_handler
""",
        Limits(300, 300, memory_bytes=2**28),
    ),
}


LEAST = {
    "at the first look": (0.05, 0.0),
    "after some looks": (0.17, 0.0),
    "time-out": (0.5, 0.0),
    "time-out before the first look": (0.02, 0.0),
    "CPU": (0.1, 0.1),
    "CPU before the first look": (0.01, 0.01),
}
"""Seconds that a case takes, and of the CPU."""
CORES = os.cpu_count() or 1


async def begun(environment: LocalEnvironment, code: str, limits: Limits) -> ExecutionResult:
    """The result of a call; repeated where a slow machine had not started the snippet when its time
    limit ended.
    """
    while True:
        result = await environment.execute(code, limits=limits)
        if result.status is not ToolStatus.INFRASTRUCTURE:
            return result


def start(pure: bool) -> LocalEnvironment:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PURE, "1" if pure else "")
        return LocalEnvironment(slots=1)


@pytest.fixture(scope="module")
def pure() -> Iterator[LocalEnvironment]:
    environment = start(pure=True)
    yield environment
    environment.shutdown()


@pytest.fixture(scope="module")
def built() -> None:
    """Assert that the compiled body exists, whatever the switch is. If it is missing, the message
    names how to install it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(PURE, raising=False)
        assert not missing_body(), f"{missing_body()}: {INSTALL}"


@pytest.fixture(scope="module")
def compiled(built: None) -> Iterator[LocalEnvironment]:
    environment = start(pure=False)
    yield environment
    environment.shutdown()


def told(result: ExecutionResult) -> tuple[object, ...]:
    """Parts of a result that do not differ from call to call."""
    return (
        result.status,
        result.stdout,
        result.stderr,
        result.value,
        result.value_json,
        result.isolation,
    )


async def faults_of_the_slot(environment: LocalEnvironment, calls: int) -> int:
    """Pages that a slot has to be given for a call: of the busiest process, and of the call that
    needed fewest.

    On a busy machine a call may last so long that the compiled body hands it over, which costs
    pages too.
    """

    def faults() -> dict[int, int]:
        pids = descendants(environment.pid)
        return {
            pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
            for pid in pids
        }

    found: list[int] = []
    for _ in range(calls):
        before = faults()
        await environment.execute("1")
        found.append(max(after - before.get(pid, 0) for pid, after in faults().items()))
    return min(found)


async def test_the_compiled_body_leaves_the_slots_pages_shared(
    pure: LocalEnvironment, compiled: LocalEnvironment
) -> None:
    assert await faults_of_the_slot(compiled, 20) < 20 < await faults_of_the_slot(pure, 20)


@pytest.mark.parametrize("name", CASES)
async def test_both_bodies_tell_the_same(
    pure: LocalEnvironment, compiled: LocalEnvironment, name: str
) -> None:
    code, limits = CASES[name]
    took, used = LEAST.get(name, (0.0, 0.0))
    results = list[ExecutionResult]()
    for environment in (pure, compiled):
        began = time.monotonic()
        result = await begun(environment, code, limits)
        assert took <= result.duration_seconds <= time.monotonic() - began
        assert used <= result.cpu_seconds <= (time.monotonic() - began) * CORES + 0.1
        results.append(result)
    assert told(results[0]) == told(results[1])
    one, other = results
    assert one.peak_memory_bytes == pytest.approx(other.peak_memory_bytes, rel=0.5)
    after = [await environment.execute(FOLDER) for environment in (pure, compiled)]
    assert {result.value for result in after} == {"([], '0o41777')"}


async def test_the_bodies_take_turns_in_one_slot(compiled: LocalEnvironment) -> None:
    """Calls alternate: those of a session, which only the Python body serves, and some that the
    compiled body begins but does not end.
    """
    for i in range(5):
        assert (await compiled.execute(f"{i}")).value == str(i)
        assert (await compiled.execute(f"x = {i}", session=f"s{i}")).status == "ok"
        assert (await compiled.execute("import time\ntime.sleep(0.08)\n1")).value == "1"
        assert (await compiled.execute("x", session=f"s{i}")).value == str(i)
        await compiled.end_session(f"s{i}")
        assert (await compiled.execute("open('f', 'w').close()")).status == "ok"
        assert (await compiled.execute(FOLDER)).value == "([], '0o41777')"


@pytest.mark.parametrize("body", [True, False], ids=["pure", "compiled"])
async def test_a_call_is_killed_in_time(
    body: bool, pure: LocalEnvironment, compiled: LocalEnvironment
) -> None:
    """Calls are killed before and after the compiled body has handed them over."""
    environment = pure if body else compiled
    for wait in (0.001, 0.01, 0.03, 0.06, 0.2):
        call = asyncio.create_task(environment.execute(IDLE, limits=LONG))
        await asyncio.sleep(wait)
        call.cancel()
        assert (await asyncio.wait_for(environment.execute("1"), 60)).value == "1"


async def test_slots_do_without_a_body_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(process.__file__).parents[1] / "sandbox"
    shutil.copytree(
        source, tmp_path / "sandbox", ignore=shutil.ignore_patterns("_serve*", "__pycache__")
    )
    monkeypatch.setattr(process, "__file__", str(tmp_path / "local" / "zygote_process.py"))
    monkeypatch.setattr(process, "missing_body", str)
    environment = LocalEnvironment(slots=1)
    assert (await environment.execute("6 * 7")).value == "42"
    assert await faults_of_the_slot(environment, 20) > 20
    await environment.close()


def test_a_body_of_another_version_is_left_alone(
    built: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PURE, raising=False)
    monkeypatch.setattr("hrm_agent.environment.sandbox._serve.SOURCE", "older")
    assert "another version" in missing_body()


def test_a_switch_puts_the_compiled_body_out_of_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PURE, "1")
    assert missing_body() == f"{PURE} is set"


@pytest.mark.parametrize(
    ("code", "differs"),
    [
        ("import random\nrandom.random()", True),
        ("import uuid\nuuid.uuid1().clock_seq", True),
        ("from statistics import NormalDist\nNormalDist().samples(2)", True),
        ("import numpy as np\nnp.random.random()", True),
        ("import importlib\ngetattr(importlib.import_module('ran' 'dom'), 'ran' 'dom')()", False),
    ],
)
async def test_who_draws_by_name_draws_anew(
    compiled: LocalEnvironment, code: str, differs: bool
) -> None:
    values = [(await compiled.execute(code)).value for _ in range(4)]
    assert None not in values
    assert (len(set(values)) > 1) == differs
