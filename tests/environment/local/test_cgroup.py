"""L3: a call's whole tree of processes is bounded, counted, stopped and ended by a cgroup."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.environment import Limits, LocalEnvironment
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local.zygote_process import PURE
from hrm_agent.environment.sandbox import cgroup
from hrm_agent.errors import HrmError
from hrm_agent.testing import block_until, wait_until
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks.host import PROJECT, descendants, is_running
from tests.support.environment.contract import CHAIN, IDLE, LONG, SLOTS, EnvironmentContract

needs_cgroup = pytest.mark.cgroup
MIB = 1 << 20
HOLDERS = """
import os, time
for _ in range(8):
    if not os.fork():
        held = b'x' * 200_000_000
        break
time.sleep(600)
"""
BURN = "\nimport time\nbegan = time.process_time()\nwhile time.process_time() - began < {}: pass\n"
ORPHANS = f"""
import os
ended, lives = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        {textwrap.indent(BURN.format(0.3), "        ")}
    os._exit(0)
os.wait()
os.close(lives)
os.read(ended, 1)
"""
"""A grandchild that nobody waits for burns CPU time; the call ends when the grandchild has closed
the pipe.
"""


@pytest.fixture(params=["compiled", "python"])
def environment(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalEnvironment]:
    if request.param == "python":
        monkeypatch.setenv(PURE, "1")
    environment = LocalEnvironment(slots=2, isolation=Isolation.L3)
    yield environment
    environment.shutdown()


def groups_of(environment: LocalEnvironment) -> list[Path]:
    """Cgroups of the calls of an environment's slots."""
    return sorted(Path(environment._workers._place_of_zygotes.groups).glob("slot-*/call"))


def told(group: Path, file: str, name: str) -> int:
    return cgroup.figure((group / file).read_bytes(), f"{name} ".encode())


@needs_cgroup
async def test_a_tree_that_holds_too_much_is_out_of_memory(environment: LocalEnvironment) -> None:
    limits = Limits(300, 300, memory_bytes=256 * MIB)
    result = await environment.execute(HOLDERS, limits=limits)
    assert (result.status, result.isolation) == (ToolStatus.OUT_OF_MEMORY, "L3")
    assert "held more memory than their limit" in result.stderr
    assert sum(told(group, "memory.events", "oom_kill") for group in groups_of(environment)) > 0
    assert (await environment.execute("6 * 7", limits=LONG)).value == "42"


@needs_cgroup
async def test_what_is_written_to_the_working_folder_counts_and_is_given_back(
    environment: LocalEnvironment,
) -> None:
    limits = Limits(300, 300, memory_bytes=48 * MIB)
    write = "for i in range({}): open(str(i), 'wb').write(bytes(1 << 20))"
    for _ in range(3):
        assert (await environment.execute(write.format(30), limits=limits)).status is ToolStatus.OK
    assert (
        await environment.execute(write.format(60), limits=limits)
    ).status is ToolStatus.OUT_OF_MEMORY


@needs_cgroup
async def test_the_peak_is_the_trees_and_not_the_last_calls(environment: LocalEnvironment) -> None:
    code = (
        "import os\nfor _ in range(3):\n    if not os.fork():\n        held = b'x' * 50_000_000\n  "
        "      os._exit(0)\n"
    )
    code += "for _ in range(3): os.wait()"
    at_once = "import time\nheld = b'x' * 50_000_000\ntime.sleep(0.2)"
    assert (
        await environment.execute(f"{code}\n{at_once}", limits=LONG)
    ).peak_memory_bytes > 50_000_000
    assert (await environment.execute("1", limits=LONG)).peak_memory_bytes < 50_000_000


@needs_cgroup
async def test_cpu_time_is_counted_whoever_waits(environment: LocalEnvironment) -> None:
    result = await environment.execute(ORPHANS, limits=LONG)
    assert result.status is ToolStatus.OK
    assert result.cpu_seconds > 0.29
    assert (await environment.execute("1", limits=LONG)).cpu_seconds < result.cpu_seconds


@needs_cgroup
async def test_a_limit_of_cpu_time_is_the_trees(environment: LocalEnvironment) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    result = await environment.execute(code, limits=Limits(300, 0.5))
    assert result.status is ToolStatus.TIMEOUT
    assert result.cpu_seconds >= 0.5


@needs_cgroup
def test_the_kernel_counts_the_processes() -> None:
    """Apart from RLIMIT_NPROC, which holds in a slot as well."""
    made = cgroup.claim(None)
    try:
        code = f"""
            import os, time
            from hrm_agent.environment.sandbox import cgroup, kernel
            group = cgroup.enter(os.open({made!r}, os.O_RDONLY), 1, None, 5)
            pid, _ = kernel.clone(isolated=False, into=group.folder)
            if pid == 0:
                os.setsid()
                count = 0
                try:
                    while os.fork():
                        count += 1
                    time.sleep(600)
                except OSError as error:
                    print(count, error.errno, flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
            os.killpg(pid, 9)
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=300, check=True
        )
        assert done.stdout == "4 11\n"
        group = Path(made) / "slot-1" / "call"
        assert told(group, "pids.events", "max") > 0
    finally:
        cgroup.discard(made)
    assert not Path(made).exists()


@needs_cgroup
async def test_an_idle_session_is_frozen_and_goes_on(environment: LocalEnvironment) -> None:
    assert (
        await environment.execute(f"x = 3\n{CHAIN}", session="s", limits=LONG)
    ).status is ToolStatus.OK
    await wait_until(
        lambda: any(told(group, "cgroup.events", "frozen") for group in groups_of(environment))
    )
    (frozen,) = [
        group for group in groups_of(environment) if told(group, "cgroup.events", "frozen")
    ]
    assert len((frozen / "cgroup.procs").read_text().split()) > 1
    before = told(frozen, "cpu.stat", "usage_usec")
    await asyncio.sleep(0.5)
    assert told(frozen, "cpu.stat", "usage_usec") == before
    result = await environment.execute("x", session="s", limits=LONG)
    assert (result.value, result.session) == ("3", "kept")
    await environment.end_session("s")
    await wait_until(lambda: not told(frozen, "cgroup.events", "populated") or not frozen.exists())


@needs_cgroup
async def test_the_whole_tree_of_a_killed_call_is_dead(environment: LocalEnvironment) -> None:
    code = f"import os\nfor _ in range(3):\n    if not os.fork(): os.setsid()\n{IDLE}"
    call = asyncio.create_task(environment.execute(code, limits=LONG))
    await wait_until(lambda: any(map(crowded, all_of())))
    pids = {int(pid) for group in all_of() for pid in (group / "cgroup.procs").read_text().split()}
    assert len(pids) >= 8
    call.cancel()
    await wait_until(lambda: not any(map(is_running, pids)))


def all_of() -> list[Path]:
    return sorted(Path(cgroup.delegated(None)).glob("hrm-*/slot-*/call"))


def crowded(group: Path) -> bool:
    return len((group / "cgroup.procs").read_text().split()) >= 8


@needs_cgroup
async def test_a_snippet_sees_nothing_of_it(environment: LocalEnvironment) -> None:
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        def failed(*arguments):
            return libc.syscall(*arguments) == -1 and ctypes.get_errno()
        found = [name for name in ("/sys", "/sys/fs/cgroup", "/proc") if os.path.exists(name)]
        given = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
        found, [n for n in range(3, 256) if not failed(72, n, 1)], failed(435, given, 88), failed(317, 1, 0, 0)
    """
    for session in (None, "s"):
        result = await environment.execute(textwrap.dedent(code), session=session, limits=LONG)
        descriptors = "[3]" if session is None else "[3, 4, 5, 6]"
        assert result.value == f"([], {descriptors}, 38, 1)"


HOST = """
import asyncio
from hrm_agent.environment import LocalEnvironment, Limits
from hrm_agent.environment.isolation import Isolation
async def main():
    environment = LocalEnvironment(slots=2, isolation=Isolation.L3)
    print(environment._workers._place_of_zygotes.groups, flush=True)
    code = "import os\\nfor _ in range(3): os.fork()\\nwhile True: pass"
    await asyncio.gather(*[environment.execute(code, limits=Limits(300, 300)) for _ in range(2)])
asyncio.run(main())
"""


@needs_cgroup
def test_nothing_outlives_a_killed_host_but_folders_which_the_next_one_removes() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdout is not None
        made = Path(host.stdout.readline().strip())
        block_until(lambda: sum(crowded(group) for group in made.glob("slot-*/call")) == 2)
        pids = descendants(host.pid)
        host.send_signal(signal.SIGKILL)
    assert len(pids) >= 16
    block_until(lambda: not any(map(is_running, pids)))
    assert made.is_dir()
    environment = LocalEnvironment(slots=1, isolation=Isolation.L3)
    (own,) = {path.parents[1] for path in groups_of(environment)}
    assert own.is_dir() and not made.exists()
    environment.shutdown()
    assert not own.exists()


@needs_cgroup
async def test_a_slot_that_is_given_up_leaves_no_folder() -> None:
    environment = LocalEnvironment(slots=1, isolation=Isolation.L3)
    (first,) = groups_of(environment)
    assert (
        await environment.execute("while True: pass", limits=Limits(0.2))
    ).status is ToolStatus.TIMEOUT
    await wait_until(lambda: not first.parent.exists())
    assert (await environment.execute("6 * 7", limits=LONG)).value == "42"
    await environment.close()


@needs_cgroup
class TestContract(EnvironmentContract):
    @pytest.fixture(scope="class")
    def environment(self) -> Iterator[LocalEnvironment]:
        environment = LocalEnvironment(slots=SLOTS, isolation=Isolation.L3)
        yield environment
        environment.shutdown()

    @pytest.fixture
    def closing(self) -> Iterator[LocalEnvironment]:
        environment = LocalEnvironment(slots=SLOTS, isolation=Isolation.L3)
        yield environment
        environment.shutdown()


# what can be told without a cgroup


def a_cgroup(folder: Path, controllers: str = "cpu memory pids") -> Path:
    """Folder with the files of a cgroup."""
    folder.mkdir()
    for name, text in {"controllers": controllers, "procs": "", "subtree_control": ""}.items():
        (folder / f"cgroup.{name}").write_text(text)
    return folder


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is taken for the mounted cgroups, with this process in the first of them."""
    monkeypatch.setattr(cgroup, "_own_folder", lambda: str(tmp_path))
    return tmp_path


def test_a_folder_that_is_no_cgroup(mounted: Path) -> None:
    with pytest.raises(
        HrmError,
        match=r"is not a cgroup of version 2\.\s+L3 needs a cgroup .*systemd-run.*--cgroup",
    ):
        LocalEnvironment(slots=1, cgroup=mounted)
    with pytest.raises(HrmError, match="is not a cgroup of version 2"):
        LocalEnvironment(slots=1, isolation=Isolation.L3)


def test_a_cgroup_without_controllers(mounted: Path) -> None:
    folder = a_cgroup(mounted / "own", "cpu pids")
    with pytest.raises(
        OSError,
        match=re.escape(f"no controller memory: write '+memory +pids' to {mounted}/cgroup.sub"),
    ):
        cgroup.delegated(str(folder))


def test_a_cgroup_that_is_somebody_elses(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_cgroup(mounted / "own")
    monkeypatch.setattr(
        cgroup.os, "access", lambda path, mode: not str(path).endswith("subtree_control")
    )
    with pytest.raises(
        OSError,
        match=r"subtree_control may not be written by this user: the cgroup was not delegated",
    ):
        cgroup.delegated(str(folder))


def test_a_cgroup_with_others_in_it(mounted: Path) -> None:
    folder = a_cgroup(mounted / "own")
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    with pytest.raises(OSError, match=r"other processes are in .*own, which was not delegated"):
        cgroup.delegated(str(folder))
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert cgroup.delegated(str(folder)) == str(folder)


def test_the_leaf_of_a_host_is_not_what_is_divided(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_cgroup(mounted / "scope")
    monkeypatch.setattr(cgroup, "_own_folder", lambda: str(a_cgroup(folder / "host")))
    assert cgroup.delegated(None) == str(folder)


def test_only_what_dead_hosts_left_is_removed(tmp_path: Path) -> None:
    alive = f"hrm-{os.getpid()}-{cgroup._start_time('self')}-a"
    for name in (
        alive,
        f"hrm-{os.getpid()}-1-b",
        "hrm-999999999-5-c/slot-1/call",
        "hrm-",
        "hrm-x",
        "another-1-2-d",
    ):
        (tmp_path / name).mkdir(parents=True)
    cgroup._remove_stale(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [alive, "another-1-2-d", "hrm-", "hrm-x"]
    )


def test_figures_of_its_files() -> None:
    text = b"low 0\noom 3\noom_kill 2\noom_group_kill 1\n"
    assert [cgroup.figure(text, name) for name in (b"oom_kill ", b"oom ", b"none ")] == [2, 3, 0]
    assert cgroup.figure(b"4096\n") == 4096


def test_less_than_l3_touches_no_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "claim", lambda folder: pytest.fail("it was not asked for"))
    environment = LocalEnvironment(slots=1)
    assert environment.missing["cgroup"] == "none was asked for"
    environment.shutdown()
