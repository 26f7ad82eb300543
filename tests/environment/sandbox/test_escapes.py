"""Attempts of hostile code to see more, to reach further, to live longer, and to decide its own
outcome.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hrm_agent.environment import Environment, LocalEnvironment
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import LONG, SHORT
from tests.support.environment.held import HOLD, let_go, until_held


async def value(environment: Environment, code: str) -> str | None:
    result = await environment.execute(code, limits=LONG)
    assert result.status is ToolStatus.OK, result.stderr
    return result.value


async def test_no_variable_of_the_environment(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    fresh = LocalEnvironment(slots=1)
    code = """
import ctypes, os
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
dict(os.environ), getenv(b'SECRET_TOKEN')
"""
    assert await value(fresh, code) == "({}, None)"
    await fresh.close()


async def test_no_inherited_descriptor(environment: Environment) -> None:
    code = """
import os
def is_open(descriptor):
    try: os.fstat(descriptor)
    except OSError: return False
    return True
[descriptor for descriptor in range(256) if is_open(descriptor)]
"""
    assert await value(environment, code) == "[0, 1, 2, 3]"


@pytest.mark.parametrize(
    "address",
    ["('1.1.1.1', 53)", "('127.0.0.1', PORT)", "('169.254.169.254', 80)"],
    ids=["internet", "loopback", "metadata"],
)
async def test_no_network(environment: Environment, address: str) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = (
        f"import socket\nsocket.create_connection({address.replace('PORT', str(port))}, timeout=1)"
    )
    result = await environment.execute(code)
    server.close()
    assert result.status is ToolStatus.ERROR
    # Landlock is asked before the network that has no interface
    assert "Permission denied" in result.stderr


async def test_abstract_sockets_of_the_host_are_out_of_reach(environment: Environment) -> None:
    name = f"hrm-agent-test-{os.getpid()}"
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), f"\0{name}")
    result = await environment.execute(
        f"import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{name}')"
    )
    server.close()
    assert "ConnectionRefusedError" in result.stderr


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/etc/shadow", "/proc/1/environ", "/root/.ssh", "/home", "/var", "/sys"]
)
async def test_no_file_of_the_host(environment: Environment, path: str) -> None:
    assert await value(environment, f"import os\nos.path.exists({path!r})") == "False"


async def test_no_file_of_ours(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for path in (tmp_path / "secret", Path(__file__)):
        assert await value(environment, f"import os\nos.path.exists({str(path)!r})") == "False"


@pytest.mark.parametrize("folder", ["/", "/usr", "/usr/lib", "/dev", "/bin"])
async def test_no_writing_outside_its_folder(environment: Environment, folder: str) -> None:
    result = await environment.execute(f"open({folder!r} + '/mark', 'w')")
    assert result.status is ToolStatus.ERROR
    assert "Read-only file system" in result.stderr or "Permission denied" in result.stderr


async def test_each_call_has_an_empty_folder_of_its_own(environment: Environment) -> None:
    code = """
import os, tempfile
before = os.listdir('.')
open('mark', 'w').write('x')
before, os.getcwd(), tempfile.gettempdir()
"""
    for _ in range(2):
        assert await value(environment, code) == "([], '/tmp', '/tmp')"
    assert not Path("/tmp/mark").exists()


async def test_the_folder_is_bounded(environment: Environment) -> None:
    code = "for i in range(10_000): open(f'f{i}', 'wb').write(bytes(500_000))"
    assert "No space left on device" in (await environment.execute(code)).stderr


async def test_nothing_of_another_call_in_memory(environment: Environment) -> None:
    mark = "mark of another call"
    code = f"""
import gc
needle = {mark[::-1]!r}[::-1]
own = globals()
sum(needle in repr(o) for o in gc.get_objects() if isinstance(o, (list, dict, tuple, set)) and o is not own)
"""
    talk = f"x = [{mark!r}]\nprint(x)\n{HOLD}x"
    before = await environment.execute(f"x = [{mark!r}]\nprint(x)\nx")
    talks = [
        asyncio.create_task(environment.execute(talk, session=name, limits=LONG))
        for name in (None, "s")
    ]
    meanwhile = await until_held(2)
    hunt = await environment.execute(code, limits=LONG)
    let_go(meanwhile)
    assert [mark in result.stdout for result in (before, *await asyncio.gather(*talks))] == [
        True
    ] * 3
    assert hunt.value == "0", hunt.stderr


async def test_no_other_process_to_be_seen_or_killed(environment: Environment) -> None:
    code = """
import os, signal
def alive(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    return True
os.getpid(), os.getppid(), [pid for pid in range(1, 40_000) if alive(pid)]
"""
    assert await value(environment, code) == "(1, 0, [1])"


async def test_no_privileges_and_no_way_to_them(environment: Environment) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(result): return result == -1
(os.getuid(), refused(libc.unshare(0x10000000)), refused(libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)),
 refused(libc.setuid(0)), refused(libc.ptrace(16, os.getppid(), 0, 0)), refused(libc.sethostname(b'x', 1)))
"""
    assert await value(environment, code) == "(1000, True, True, True, True, True)"


async def test_limits_cannot_be_raised(environment: Environment) -> None:
    code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))"
    assert "not allowed to raise maximum limit" in (await environment.execute(code)).stderr


async def test_a_switched_off_alarm_changes_nothing(environment: Environment) -> None:
    code = """
import os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        while True: pass
    except BaseException: pass
"""
    result = await environment.execute(code, limits=SHORT)
    assert result.status is ToolStatus.TIMEOUT


async def test_a_detached_daemon_does_not_survive(environment: Environment) -> None:
    """A daemon would hold the write end of a pipe to us open; through /usr/bin it can be seen by
    its name.
    """
    name = f"snippet-daemon-{os.getpid()}"
    code = f"""
import ctypes, os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, {name[:15].encode()!r}, 0, 0, 0)
        os.write(writer, b'x')
        time.sleep(300)
    os._exit(0)
os.read(reader, 1)
'done'
"""
    assert await value(environment, code) == "'done'"
    assert not any(_comm(process) == name[:15] for process in Path("/proc").glob("[0-9]*"))


def _comm(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return ""


async def test_a_fork_bomb_stays_small_and_ends(environment: Environment) -> None:
    code = """
import os
n = 0
try:
    while True:
        if os.fork() == 0:
            import time; time.sleep(300)
        n += 1
except OSError: pass
n
"""
    count = await value(environment, code)
    assert count is not None
    assert 8 <= int(count) <= 32
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert (await environment.execute(bomb, limits=SHORT)).status is ToolStatus.TIMEOUT
    assert await value(environment, "1") == "1"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os\nos.write(3, b'forged')\nos._exit(1)", ToolStatus.ERROR),
        ('import os\nprint(\'{"status": "ok"}\', flush=True)\nos.abort()', ToolStatus.ERROR),
        ("import os\nos.closerange(0, 100)\n1 / 0", ToolStatus.ERROR),
        ("import os\nos.lseek(3, 0, 0)\nos.ftruncate(1, 0)\nwhile True: pass", ToolStatus.TIMEOUT),
        (
            (
                "import os\nfor fd in range(4, 100):\n    try: os.write(fd, bytes(64))\n    except"
                " OSError: pass\n1 / 0"
            ),
            ToolStatus.ERROR,
        ),
        (
            (
                "import os, sys\nsys.settrace(None)\nsys._getframe(1).f_globals['run'] ="
                " None\nos._exit(5)"
            ),
            ToolStatus.ERROR,
        ),
    ],
)
async def test_a_failure_cannot_be_passed_off_as_something_else(
    environment: Environment, code: str, status: ToolStatus
) -> None:
    result = await environment.execute(code, limits=SHORT if status is ToolStatus.TIMEOUT else LONG)
    assert result.status is status


async def test_an_exit_code_claims_nothing_but_success_or_failure(environment: Environment) -> None:
    results = await asyncio.gather(
        *(environment.execute(f"import os\nos._exit({code})") for code in range(256))
    )
    statuses = [result.status for result in results]
    assert statuses[0] is ToolStatus.OK
    assert set(statuses[1:]) == {ToolStatus.ERROR}
