"""Starting, ending, dying and coming back: of the environment, of its fork server and of the
process that uses it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from hrm_agent.environment import LocalEnvironment, active_environment, using_environment
from hrm_agent.environment.local import slot_table
from hrm_agent.errors import HrmError
from hrm_agent.testing import block_until
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks.host import descendants
from tests.support.environment.contract import CHAIN, FOREVER, IDLE, LONG, SHORT, gauge
from tests.support.environment.held import HOLD, Releasing, let_go, until_held
from tests.support.environment.killing import SLOT, at_depth

pytestmark = pytest.mark.whole

PROJECT = Path(__file__).resolve().parents[3]
HOST_PROCESSES = 6
"""Number of processes of an environment with two calls under way: the starter, the zygote, two
slots, and their two children.
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_works_across_event_loops_and_threads() -> None:
    environment = LocalEnvironment(slots=2)

    def run(i: int) -> str | None:
        return asyncio.run(environment.execute(f"{i} + 1")).value

    assert [run(i) for i in range(3)] == ["1", "2", "3"]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(8))) == [str(i + 1) for i in range(8)]
    environment.shutdown()


async def test_no_step_of_a_call_blocks_the_event_loop_of_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers that watch their loop (`langgraph dev` does) fail a call that blocks it."""
    # no call does without a look at the kernel's count
    monkeypatch.setattr(slot_table, "RECENT_SECONDS", 0.0)
    environment = LocalEnvironment(slots=2)
    try:
        await environment.execute("1")
        with blockbuster_ctx(["hrm_agent"]):
            plain, wrong, long, first = await asyncio.gather(
                environment.execute("6 * 7"),
                environment.execute("1 / 0"),
                environment.execute(IDLE, limits=SHORT),
                environment.execute("x = 1", session="a"),
            )
            await environment.fork_session("a", "b")
            other = await environment.execute("x + 1", session="b")
            await environment.end_session("a")
            given_up = asyncio.create_task(environment.execute(FOREVER))
            while not given_up.done() and await gauge(environment, "running") == 0:
                await asyncio.sleep(0.01)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            assert not await environment.check_health()
    finally:
        await environment.close()
    statuses = [outcome.status for outcome in (plain, wrong, long, first, other)]
    assert statuses == [
        ToolStatus.OK,
        ToolStatus.ERROR,
        ToolStatus.TIMEOUT,
        ToolStatus.OK,
        ToolStatus.OK,
    ]
    assert (plain.value, other.value) == ("42", "2")


async def test_what_is_warm_starts_no_process_for_a_call() -> None:
    """Processes of the calls themselves are the only new ones."""

    def parents() -> set[int]:
        """Fork servers, and slots that have made the child of their next call."""
        return {pid for pid in descendants(os.getpid()) - others if descendants(pid)}

    others = descendants(os.getpid())
    environment = LocalEnvironment(slots=2)
    await environment.warm_up()
    warm = block_until(lambda: len(found := parents()) == 2 * (2 + environment.slots) and found)
    for code in ("import sympy", "1"):
        results = await asyncio.gather(environment.execute(code), environment.execute(code))
        assert {result.status for result in results} == {ToolStatus.OK}
    block_until(lambda: parents() == warm)
    assert await gauge(environment, 'calls_total{status="ok"}') == 4
    await environment.close()


async def test_close_ends_running_calls_and_leaves_no_process() -> None:
    environment = LocalEnvironment(slots=2)
    calls = [asyncio.create_task(environment.execute(HOLD, limits=LONG)) for _ in range(4)]
    await until_held(2)
    pids = {environment.pid} | descendants(environment.pid)
    assert len(pids) >= 4  # the starter, the zygote, two children
    await environment.close()
    assert [(await call).status for call in calls] == [ToolStatus.INFRASTRUCTURE] * 4
    block_until(lambda: not any(map(_runs, pids)))
    with pytest.raises(HrmError, match="closed"):
        await environment.execute("1")


async def test_cancelling_kills_the_call_and_frees_its_slot() -> None:
    environment = LocalEnvironment(slots=1)
    running = asyncio.create_task(environment.execute(HOLD, limits=LONG))
    queued = asyncio.create_task(environment.execute("never"))
    await until_held()
    queued.cancel()
    running.cancel()
    result = await asyncio.wait_for(environment.execute("1"), 60)
    assert result.value == "1"
    await environment.close()


async def test_a_slot_is_given_up_after_a_call_that_did_not_end_by_itself() -> None:
    environment = LocalEnvironment(slots=1)

    async def slot_of_a_call() -> set[int]:
        assert (await environment.execute("1")).value == "1"
        return set(at_depth(SLOT - 1, environment.pid))

    first = await slot_of_a_call()
    assert (await environment.execute("1 / 0")).status is ToolStatus.ERROR
    assert await slot_of_a_call() == first
    assert (await environment.execute(FOREVER, limits=SHORT)).status is ToolStatus.TIMEOUT
    block_until(lambda: not any(map(_runs, first)))
    second = await slot_of_a_call()
    assert second and await slot_of_a_call() == second
    await environment.close()


async def test_calls_are_run_again_when_the_fork_server_dies() -> None:
    environment = LocalEnvironment(slots=4)
    calls = [asyncio.create_task(environment.execute(f"{HOLD}{i}", limits=LONG)) for i in range(6)]
    hit = await until_held(4)
    os.kill(environment.pid, signal.SIGKILL)
    await until_held(4, known=hit)
    async with Releasing():
        results = [await call for call in calls]
    assert [(result.value, result.attempt) for result in results] == [
        (str(i), 2 if i < 4 else 1) for i in range(6)
    ]
    await environment.close()


async def test_a_session_call_whose_process_was_lost_is_run_again() -> None:
    """Effects of the lost call stayed in its process, and its snippet did not cause the loss."""
    environment = LocalEnvironment(slots=1)
    await environment.execute("x = 3", session="s")
    call = asyncio.create_task(environment.execute(f"{HOLD}x", session="s", limits=LONG))
    hit = await until_held()
    os.kill(environment.pid, signal.SIGKILL)
    let_go(await until_held(known=hit))
    result = await call
    assert (result.status, result.value, result.session, result.attempt) == (
        "ok",
        "3",
        "replayed",
        2,
    )
    await environment.close()


async def test_a_call_is_lost_when_the_fork_server_dies_twice() -> None:
    environment = LocalEnvironment(slots=1)
    call, hit = asyncio.create_task(environment.execute(HOLD, limits=LONG)), set[int]()
    for _ in range(2):
        hit |= await until_held(known=hit)
        os.kill(environment.pid, signal.SIGKILL)
    assert (await call).status is ToolStatus.INFRASTRUCTURE
    assert (await environment.execute("2")).value == "2"
    await environment.close()


def start_host() -> tuple[subprocess.Popen[bytes], set[int]]:
    """Another process with an environment and two endless calls; its descendants."""
    code = """
        import asyncio
        from hrm_agent.environment import LocalEnvironment, Limits
        async def main():
            environment = LocalEnvironment(slots=2)
            endless = [environment.execute("while True: pass", limits=Limits(300, 300)) for _ in range(2)]
            await asyncio.gather(*endless)
        asyncio.run(main())
    """
    # A shell starts what it puts into the background with SIGINT ignored, and a test run may be
    # such a thing.
    host = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=PROJECT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    block_until(lambda: len(descendants(host.pid)) >= HOST_PROCESSES or host.poll() is not None)
    assert host.poll() is None
    return host, descendants(host.pid)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_killed_host(sign: signal.Signals) -> None:
    host, pids = start_host()
    host.send_signal(sign)
    host.wait(timeout=60)
    block_until(lambda: not any(map(_runs, pids)))


def test_a_fork_of_the_host_may_not_use_its_environment() -> None:
    environment = LocalEnvironment(slots=1)
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(environment.execute("1"))
        except HrmError as error:
            os._exit(17 if "forked" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    assert asyncio.run(environment.execute("1")).value == "1"
    environment.shutdown()


def run_as_ordinary_user(code: str) -> list[str]:
    """Lines that `code` prints as user 1000 without privileges, which a user namespace makes of us.

    (Where that is root, the kernel still exempts it from RLIMIT_NPROC: a fork bomb cannot be tried
    in this way.)
    """
    outer = """
        import os, sys
        from hrm_agent.environment.sandbox import kernel
        uid, gid = os.getuid(), os.getgid()
        assert kernel._libc.unshare(kernel.CLONE_NEWUSER) == 0
        kernel._map_ids("/proc/self", None, (1000, uid), (1000, gid))
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
    """
    command = [sys.executable, "-c", textwrap.dedent(outer), textwrap.dedent(code)]
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_ordinary_user_gets_the_same_isolation() -> None:
    code = """
        import asyncio, os
        from hrm_agent.environment import LocalEnvironment, Limits
        async def main():
            assert os.getuid() == 1000
            environment = LocalEnvironment(slots=2)
            print(environment.isolation)
            seen = "import os; os.getuid(), os.getpid(), os.listdir('/tmp'), os.path.exists('/etc')"
            print((await environment.execute(seen)).value)
            dial = "import socket; socket.create_connection(('127.0.0.1', 1))"
            print((await environment.execute(dial)).stderr.splitlines()[-1])
            print((await environment.execute("while True: pass", limits=Limits(wall_seconds=0.5))).status)
            print((await environment.execute("open('/usr/x', 'w')")).status)
            await environment.close()
        asyncio.run(main())
    """
    assert run_as_ordinary_user(code) == [
        "L2",
        "(1000, 1, [], False)",
        "PermissionError: [Errno 13] Permission denied",
        "timeout",
        "error",
    ]


NO_NAMESPACES = """
        import asyncio, os
        import hrm_agent.environment.local.slots as slots
        from hrm_agent.environment import LocalEnvironment, Limits
        from hrm_agent.environment.isolation import Isolation
        class Denied(slots.ZygoteProcess):
            def __init__(self, place, imports):
                super().__init__(place, imports)
                self.denied = place.isolated
            def handshake(self):
                return super().handshake() or ("unshare: Operation not permitted" if self.denied else "")
        slots.ZygoteProcess = Denied
"""


def test_without_namespaces_the_rest_still_holds() -> None:
    code = f"""{NO_NAMESPACES}
        async def main():
            environment = LocalEnvironment(slots=2, isolation=Isolation.L1)
            result = await environment.execute("import os; os.getcwd()")
            print(result.isolation, os.path.exists(eval(result.value)))
            print((await environment.execute("import os; dict(os.environ), os.listdir('.')")).value)
            print((await environment.execute("open('/etc/passwd')")).stderr.splitlines()[-1])
            print((await environment.execute("import socket; socket.socket()")).stderr.splitlines()[-1])
            print((await environment.execute("import os; os.kill(os.getppid(), 9)")).stderr.splitlines()[-1])
            print((await environment.execute("while True: pass", limits=Limits(wall_seconds=0.5))).status)
            print((await environment.execute("[0] * 10**10")).status)
            await environment.execute("x = 7", session="s")
            print((await environment.execute("x", session="s")).value)
            await environment.close()
        asyncio.run(main())
    """
    assert run_as_ordinary_user(code) == [
        "L1 True",
        "({}, [])",
        "PermissionError: [Errno 13] Permission denied: '/etc/passwd'",
        "OSError: [Errno 97] Address family not supported by protocol",
        "PermissionError: [Errno 1] Operation not permitted",
        "timeout",
        "out_of_memory",
        "7",
    ]


def test_without_namespaces_a_snippet_ends_by_any_signal_and_nobody_else_does() -> None:
    code = f"""{NO_NAMESPACES}
        import signal
        from hrm_agent.environment.local.slot_files import signal_name
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # a shell's `nohup` and `&` have them ignored, here and below
        async def main():
            environment = LocalEnvironment(slots=2, isolation=Isolation.L1)
            others = set()
            for number in sorted(set(range(1, 65)) - set(range(19, 23)) - {{32, 33}}):  # those are of the C library
                die = f"import os, signal; number = {{number}}"
                die += "; number in (2, 13, 25) and signal.signal(number, signal.SIG_DFL); os.kill(os.getpid(), number)"
                for session in (None, "s"):
                    result = await environment.execute(die, limits=Limits(60, 60), session=session)
                    if (result.status, result.stderr) != ("error", f"Process ended by {{signal_name(number)}}\\n"):
                        others.add((number, str(result.status), result.stderr))
            print(sorted(others))
            print((await environment.execute("6 * 7")).value, await environment.check_health(60))
            metrics = await environment.metrics()
            print("environment_worker_faults 0" in metrics, "environment_slot_deaths 0" in metrics)
            await environment.close()
        asyncio.run(main())
    """
    ignored = [(number, "ok", "") for number in (17, 18, 23, 28)]
    assert run_as_ordinary_user(code) == [str(ignored), "42 ", "True True"]


MANY = """
import os, time
for _ in range(100):
    if os.fork() == 0:
        time.sleep(600)
time.sleep(600)
"""
ORPHANS = """
import os, time
for _ in range(100):  # each burns a little, and its parent, who waits for nobody, is gone
    if os.fork() == 0:
        if os.fork() == 0:
            began = time.process_time()
            while time.process_time() - began < 0.1:
                pass
        os._exit(0)
    os.wait()
    time.sleep(0.1)
"""


def test_without_namespaces_processes_are_counted_and_sessions_that_cannot_be_stopped_end() -> None:
    code = f"""{NO_NAMESPACES}
        from tests.environment.attacks.host import descendants, state_of
        def stopped():
            return [pid for pid in descendants(os.getpid()) if state_of(pid) == "T"]
        async def main():
            environment = LocalEnvironment(slots=2, isolation=Isolation.L1)
            long, short = Limits(wall_seconds=60, cpu_seconds=60), Limits(wall_seconds=60, cpu_seconds=0.5)
            result = await environment.execute({MANY!r}, limits=long)
            print(result.status, result.stderr.strip())
            print((await environment.execute({ORPHANS!r}, limits=short)).status)
            print((await environment.execute({CHAIN!r}, session="s", limits=long)).status)
            while len(stopped()) < 2:  # the session's own, and the one that goes on forking when its cell has ended
                await asyncio.sleep(0.05)
            print((await environment.execute("40 + 2", session="s")).value)
            await environment.close()
        asyncio.run(main())
    """
    assert run_as_ordinary_user(code) == [
        "error The snippet had more processes and threads than its limit.",
        "timeout",
        "ok",
        "42",
    ]


def test_what_is_less_than_asked_for_is_refused() -> None:
    code = f"""{NO_NAMESPACES}
        try:
            LocalEnvironment()
        except Exception as error:
            print(type(error).__name__, error)
    """
    (line,) = run_as_ordinary_user(code)
    assert re.fullmatch(
        r"HrmError .*cannot isolate.*unshare: Operation not permitted.*doctor.*--isolation"
        r" L1.*",
        line,
    )


async def test_using_environment_is_what_tools_find() -> None:
    environment = LocalEnvironment(slots=1)
    with using_environment(environment):
        assert active_environment() is environment
        assert await asyncio.to_thread(active_environment) is environment
    assert active_environment() is not environment
    assert active_environment() is active_environment()
    await environment.close()
