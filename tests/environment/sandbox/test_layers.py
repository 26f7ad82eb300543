"""The layers that a process puts on itself, each tried from within; in processes of their own, for
they stay on.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from errno import EACCES, EAFNOSUPPORT, ENOMEM, ENOSYS, EPERM, EXDEV
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.environment.sandbox import landlock, seccomp
from hrm_agent.environment.sandbox.system_calls import ARCHITECTURES, FIRST_UNKNOWN, NUMBERS

SANDBOX = Path(seccomp.__file__).parents[1]
PRELUDE = f"""
import ctypes, json, os, socket, sys
sys.path.insert(0, {str(SANDBOX)!r})
from sandbox import landlock, seccomp
libc = ctypes.CDLL(None, use_errno=True)
syscall = libc.syscall
def tried(call, *arguments):
    ctypes.set_errno(0)
    try:
        return ctypes.get_errno() if call(*arguments) in (-1, ctypes.c_void_p(-1).value) else 0
    except OSError as error:
        return error.errno
def said(value):
    print(json.dumps(value), flush=True)
"""
READABLE = [
    *{
        sys.prefix,
        sys.base_prefix,
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc",
        "/proc",
        "/dev",
        str(SANDBOX),
    }
]


def child(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return python([sys.executable, "-c", PRELUDE + code, *words])


def python(
    command: list[str], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=env
    )


def seen(code: str, *words: str) -> Any:
    """Last line that the code printed, read as JSON."""
    done = child(code, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# the filter of system calls

BY_NAME = {
    "unshare": "0",
    "setns": "-1, 0",
    "mount": "None, b'/', None, 0, None",
    "umount2": "b'/nothing', 0",
    "pivot_root": "b'/nothing', b'/nothing'",
    "chroot": "b'/'",
    "ptrace": "0, 0, 0, 0",
    "process_vm_readv": "os.getpid(), None, 0, None, 0, 0",
    "process_vm_writev": "os.getpid(), None, 0, None, 0, 0",
    "name_to_handle_at": "-100, b'/', None, None, 0",
    "open_by_handle_at": "-1, None, 0",
    "fanotify_init": "0, 0",
    "init_module": "None, 0, None",
    "delete_module": "b'nothing', 0",
    "quotactl": "0, None, 0, None",
    "swapon": "b'/nothing', 0",
    "swapoff": "b'/nothing'",
    "klogctl": "10, None, 0",
    "clock_settime": "99, bytes(16)",
    "adjtimex": "bytes(208)",
    "clock_adjtime": "99, bytes(208)",
    "sethostname": "None, -1",
    "setdomainname": "None, -1",
    "memfd_create": "b'x', 0",
    "shmget": "12345, 4096, 0",
    "shmat": "12345, None, 0",
    "semget": "12345, 1, 0",
    "msgget": "12345, 0",
    "mq_open": "b'/nothing', 0",
    "personality": "8",
    "prctl": "22, 2, None",
}
"""Function of the C library -> arguments for which, without a filter, it would not answer EPERM to
root.
"""


@pytest.fixture(scope="module")
def refused() -> dict[str, int]:
    calls = ", ".join(
        f"{name!r}: tried(libc.{name}, {arguments})" for name, arguments in BY_NAME.items()
    )
    return seen(f"seccomp.install()\nsaid({{{calls}}})")


@pytest.mark.parametrize("name", BY_NAME)
def test_refused_by_name(name: str, refused: dict[str, int]) -> None:
    assert refused[name] == EPERM


def test_refused_by_number() -> None:
    found = seen(
        "column = os.uname().machine == 'aarch64'\nnames = seccomp._ALLOWED, seccomp._METADATA,"
        " seccomp._PRETENDED, seccomp._UNKNOWN, seccomp._LOOKED_AT\nspared = set('"
        " '.join(names).split())\ncalls = {name: numbers[column] for name, numbers in"
        " seccomp.NUMBERS.items() if name not in spared}\nseccomp.install()\nsaid({name:"
        " tried(syscall, number, 0, 0, 0, 0, 0) for name, number in calls.items() if number is not"
        " None})"
    )
    assert len(found) > 120
    assert {name for name, error in found.items() if error != EPERM} == set()


def test_flags_of_clone() -> None:
    found = seen(
        "seccomp.install()\nnumber = seccomp.number_of('clone')\nflags = dict(mount=0x20000,"
        " cgroup=0x2000000, uts=0x4000000, ipc=0x8000000, user=0x10000000, net=0x40000000,"
        " parent=0x8000)\nfound = {name: tried(syscall, number, flag | 17, 0, 0, 0, 0) for name,"
        " flag in flags.items()}\nsaid(found | {'hidden': tried(syscall, number,"
        " ctypes.c_long(0x1_1000_0011), 0, 0, 0, 0)})"
    )
    assert set(found.values()) == {EPERM}


def test_what_is_newer_than_the_filter_is_not_there() -> None:
    found = seen(
        "seccomp.install()\nsaid([tried(syscall, n, 0, 0, 0, 0, 0) for n in (435, 457, 462, 600,"
        " 4000)])"
    )
    assert found == [ENOSYS] * 5


def test_sockets() -> None:
    code = """
seccomp.install(isolated='offline' not in sys.argv)
unix, inet, inet6, stream, dgram = socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 1, 2
asked = {
    "unix": (unix, stream, 0), "unix dgram": (unix, dgram, 0), "seqpacket": (unix, 5 | 0o2000000, 0),
    "tcp": (inet, stream, 6), "udp": (inet, dgram | 0o4000, 17), "tcp6": (inet6, stream, 0), "udp6": (inet6, dgram, 0),
    "raw": (inet, 3, 1), "ping": (inet, dgram, 1), "mptcp": (inet, stream, 262), "sctp": (inet, stream, 132),
    "packets": (inet, 5, 0), "udp stream": (inet, stream, 17), "tcp datagram": (inet6, dgram, 6), "own": (unix, 1, 6),
    "netlink": (16, 3, 0), "packet": (17, 3, 0), "vsock": (40, stream, 0), "alg": (38, 5, 0), "tipc": (30, stream, 0),
}
found = {name: tried(libc.socket, *arguments) for name, arguments in asked.items()}
said(found | {'pair': tried(socket.socketpair), 'tipc pair': tried(libc.socketpair, 30, 1, 0, (ctypes.c_int * 2)())})
"""
    expected = dict.fromkeys(
        ("unix", "unix dgram", "seqpacket", "tcp", "udp", "tcp6", "udp6", "pair"), 0
    )
    expected |= dict.fromkeys(
        ("raw", "ping", "mptcp", "sctp", "packets", "udp stream", "tcp datagram", "own"), EPERM
    )
    expected |= dict.fromkeys(
        ("netlink", "packet", "vsock", "alg", "tipc", "tipc pair"), EAFNOSUPPORT
    )
    assert seen(code) == expected
    assert seen(code, "offline") == dict.fromkeys(expected, EAFNOSUPPORT) | {"pair": 0}


def test_characters_are_not_pushed_into_a_terminal() -> None:
    code = """
import fcntl, pty, termios
_, terminal = pty.openpty()
seccomp.install()
said([tried(fcntl.ioctl, terminal, number, b'x') for number in (termios.TIOCSTI, termios.TIOCLINUX)]
     + [tried(libc.ioctl, terminal, ctypes.c_long(0x1_0000_0000 | termios.TIOCSTI), b'x'), tried(os.isatty, terminal)])
"""
    assert seen(code) == [EPERM, EPERM, EPERM, 0]


def test_shared_memory_has_a_file() -> None:
    """Shared memory without a file is refused. It would stay after no process maps it any more, and
    be counted nowhere.
    """
    code = """
import mmap, tempfile
seccomp.install()
shared, private = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
with tempfile.TemporaryFile() as file:
    file.truncate(4096)
    said([
        tried(mmap.mmap, -1, 4096, shared), tried(mmap.mmap, -1, 4096, shared | 2), tried(mmap.mmap, -1, 4096, private),
        tried(mmap.mmap, file.fileno(), 4096, mmap.MAP_SHARED),
    ])
"""
    assert seen(code) == [ENOMEM, ENOMEM, 0, 0]


def test_python_works() -> None:
    code = """
import asyncio, multiprocessing, subprocess, tempfile, threading, time
seccomp.install()
import numpy
found = []
thread = threading.Thread(target=found.append, args=('thread',))
thread.start(), thread.join()
found.append(subprocess.run(['/bin/true']).returncode)
found.append(subprocess.run('exit 3', shell=True, start_new_session=True).returncode)
with multiprocessing.Pool(2) as pool:
    found.append(pool.map(abs, [-1, 2]))
async def slept():
    await asyncio.sleep(0.01)
    return await asyncio.to_thread(len, 'abc')
found.append(asyncio.run(slept()))
found.append(float((numpy.ones((64, 64)) @ numpy.ones((64, 64))).sum()))
with tempfile.TemporaryFile() as file:
    file.write(b'x')
found.append(libc.personality(ctypes.c_ulong(0xffffffff)))
pid = os.fork() or os._exit(5)
found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
said(found)
"""
    assert seen(code) == ["thread", 0, 3, [1, 2], 3, 262144.0, 0, 5]


def test_outside_namespaces_nothing_of_other_processes_and_files_is_changed(tmp_path: Path) -> None:
    """The kernel asks for no more than the same user, and Landlock is not asked at all."""
    code = """
import resource
path, parent, cores = sys.argv[1], os.getppid(), os.sched_getaffinity(0)
seccomp.install(isolated=False)
others = {
    "limit": (resource.prlimit, parent, resource.RLIMIT_CORE, (0, 0)), "cores": (os.sched_setaffinity, parent, cores),
    "priority": (os.setpriority, os.PRIO_PROCESS, parent, 1), "all": (os.setpriority, os.PRIO_USER, 0, 1),
    "datagrams": (socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM), "raw": (socket.socketpair, 1, 3),
    "closed folder": (os.mkdir, path + "/new", 0o577), "closed folders": (os.umask, 0o100),
}
own = {
    "limit": (resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64)), "cores": (os.sched_setaffinity, 0, cores),
    "priority": (os.nice, 1), "pair": (socket.socketpair,), "packets": (socket.socketpair, 1, 5),
    "folder": (os.mkdir, path + "/new"), "mask": (os.umask, 0o77), "mode": (os.chmod, path, 0),
    "time": (os.utime, path, (1, 1)),
}
for calls in (others, own):
    said({name: tried(*call) for name, call in calls.items()})
"""
    found = [json.loads(line) for line in child(code, str(tmp_path)).stdout.splitlines()]
    assert [set(each.values()) for each in found] == [{EPERM}, {0}]
    assert tmp_path.stat().st_mode & 0o777 != 0 and tmp_path.stat().st_mtime > 1


def test_a_core_file_stays_as_small_as_it_was() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
seccomp.install()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
hidden = tried(syscall, seccomp.number_of("prlimit64"), 0, 4, ctypes.c_void_p(1 << 32), 0)
said([tried(resource.prlimit, 0, resource.RLIMIT_CORE, (0, 0)), hidden, resource.getrlimit(resource.RLIMIT_CORE)])
"""
    assert seen(code) == [EPERM, 0, [1, 1]]


def test_timers_send_no_signal_of_the_callers_choice() -> None:
    found = seen(
        "import struct\nseccomp.install()\ndef create(event): return"
        " libc.syscall(seccomp.number_of('timer_create'), 1, event, bytes(8))\nasked = [None,"
        " struct.pack('Pii48x', 0, 18, 0), struct.pack('Pii48x', 0, 9, 0), ctypes.c_void_p(1 <<"
        " 32)]\nsaid([tried(create, event) for event in asked])"
    )
    assert found == [0, EPERM, EPERM, EPERM]


def test_a_slot_can_still_do_its_work() -> None:
    """Clone into a new pid namespace, limit, give up capabilities, restrict further, signal,
    reap.
    """
    code = """
import resource, signal, threading
uid = os.getuid()
assert libc.unshare(0x10000000) == 0
landlock.restrict(sys.argv[1:], [])
seccomp.install()
child_libc = ctypes.PyDLL(None, use_errno=True)
pidfd = ctypes.c_int(-1)
number = seccomp.number_of('clone')
pid = child_libc.syscall(number, ctypes.c_long(0x20000000 | 0x1000 | 17), 0, ctypes.byref(pidfd), 0, 0)
if pid == 0:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    landlock.scope()
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    done = libc.capset(header, (ctypes.c_uint32 * 6)())
    if os.getpid() != 1 or done or tried(syscall, number, 0x20000000 | 17, 0, 0, 0, 0) != 1:
        os._exit(1)
    signal.pause()
assert pid > 0, ctypes.get_errno()
import select, time
time.sleep(0.2)
poll = select.epoll()
poll.register(pidfd.value, select.EPOLLIN)
early = poll.poll(0)
signal.pidfd_send_signal(pidfd.value, signal.SIGKILL)
assert poll.poll(60)
said([early, os.waitstatus_to_exitcode(os.wait4(pid, 0)[1])])
"""
    assert seen(code, *READABLE) == [[], -signal.SIGKILL]


def test_numbers_of_another_architecture_kill() -> None:
    x86 = platform.machine() == "x86_64"
    done = child("seccomp.install()\nsyscall(0x40000000 | 39)")
    assert done.returncode == (-signal.SIGSYS if x86 else 0)
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # getpid by the 32-bit gate
    done = child(
        "import mmap\nseccomp.install()\nmemory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE |"
        f" mmap.MAP_ANONYMOUS, prot=7)\nmemory.write({code!r})\ncall ="
        " ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))\n"
        + ("call()" if x86 else "")
    )
    assert done.returncode == (-signal.SIGSYS if x86 else 0)


def test_every_thread_is_filtered() -> None:
    code = """
import threading
ready, go, found = threading.Event(), threading.Event(), []
def work():
    ready.set(), go.wait()
    found.append(tried(libc.unshare, 0))
thread = threading.Thread(target=work)
thread.start(), ready.wait()
seccomp.install()
go.set(), thread.join()
said(found)
"""
    assert seen(code) == [EPERM]


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Verdict of a filter program on a system call, by an interpreter of the instructions that it
    uses.
    """
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("=HBBI", program))
    place, held = 0, 0
    while True:
        code, yes, no, operand = lines[place]
        place += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (held,) = struct.unpack_from("=I", data, operand)
        elif code == 0x54:
            held &= operand
        elif code == 0x05:
            place += operand
        else:
            place += (
                yes
                if {0x15: held == operand, 0x35: held >= operand, 0x45: held & operand > 0}[code]
                else no
            )


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_number_finds_its_answer(machine: str) -> None:
    program, (architecture, column) = seccomp.filter_program(machine), ARCHITECTURES[machine]
    told = seccomp.filter_program(machine, listener=True)
    names = {numbers[column]: name for name, numbers in NUMBERS.items()}
    allowed, pretended = (
        set((seccomp._ALLOWED + seccomp._METADATA).split()),
        set(seccomp._PRETENDED.split()),
    )
    for number in {*range(700), 2**30 - 1} - {
        NUMBERS[name][column] for name in seccomp._LOOKED_AT.split()
    }:
        name = names.get(number)
        expected = (
            0x7FFF0000 if name in allowed else 0x50000 if name in pretended else 0x50000 | EPERM
        )
        expected = 0x50000 | ENOSYS if name == "clone3" or number >= FIRST_UNKNOWN else expected
        assert verdict(program, architecture, number) == expected, number
        assert verdict(told, architecture, number) == (
            0x7FC00000 if expected == 0x50000 | EPERM else expected
        ), number
    assert len(program) // 8 < 340
    assert verdict(program, 0x40000003, 20) == 0x80000000


def test_an_unknown_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.filter_program("riscv64")


# Landlock


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str, str]:
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("there")
    return str(tmp_path / "read"), str(tmp_path / "write"), str(tmp_path / "other")


FILES = f"""
import shutil
read, write, other = sys.argv[1:4]
def write_to(path):
    with open(path, 'w') as file: file.write('x')
def read_of(path):
    with open(path) as file: return file.read()
def tries():
    return dict(
        read=[tried(read_of, f'{{place}}/file') for place in (read, write, other)],
        listed=[tried(os.listdir, place) for place in (read, write, other)],
        written=[tried(write_to, f'{{place}}/file') for place in (read, write, other)],
        made=[tried(os.mkdir, f'{{place}}/new') for place in (read, write, other)],
        removed=[tried(os.unlink, f'{{place}}/file') for place in (read, write, other)],
    )
READABLE = {READABLE!r}
"""


def test_files(folders: tuple[str, str, str]) -> None:
    found = seen(FILES + "landlock.restrict([*READABLE, read], [write])\nsaid(tries())", *folders)
    assert found == {
        "read": [0, 0, EACCES],
        "listed": [0, 0, EACCES],
        "written": [EACCES, 0, EACCES],
        "made": [EACCES, 0, EACCES],
        "removed": [EACCES, 0, EACCES],
    }
    assert (Path(folders[2]) / "file").read_text() == "there"


def test_descriptors_single_files_and_what_is_missing(folders: tuple[str, str, str]) -> None:
    code = """
given = [os.open(read, os.O_PATH), write + '/file', '/nothing/here']
landlock.restrict([*READABLE, *given], [os.open(other + '/file', os.O_PATH)])
said(tries())
"""
    found = seen(FILES + code, *folders)
    assert found["read"] == [0, 0, 0]
    assert found["listed"] == [0, EACCES, EACCES]
    assert found["written"] == [EACCES, EACCES, 0]


def test_a_domain_within_a_domain_is_no_wider(folders: tuple[str, str, str]) -> None:
    code = """
landlock.restrict([*READABLE, read], [write])
landlock.restrict([*READABLE], [read, write, other])
said(tries())
"""
    found = seen(FILES + code, *folders)
    assert found["read"] == [0, 0, EACCES]
    assert found["written"] == [EACCES, 0, EACCES]


def test_no_devices_and_no_truncation(folders: tuple[str, str, str]) -> None:
    code = """
import stat
landlock.restrict([*READABLE, read], [write])
null = os.makedev(1, 3)
said([
    tried(os.mknod, write + '/null', stat.S_IFCHR | 0o600, null),
    tried(os.mknod, write + '/disk', stat.S_IFBLK | 0o600, null),
    tried(os.mkfifo, write + '/pipe'),
    tried(os.truncate, read + '/file', 0),
    tried(os.truncate, write + '/file', 0),
    tried(os.link, read + '/file', write + '/link'),
])
"""
    found = seen(FILES + code, *folders)
    assert found[0] in (EACCES, EPERM)  # to an ordinary user it is EPERM before Landlock is asked
    assert found[1] in (EACCES, EPERM)
    assert found[2:] == [0, EACCES, 0, EXDEV]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


NETWORK = """
port, name, scoped = int(sys.argv[1]), '\\0' + sys.argv[2], sys.argv[3] == 'scoped'
landlock.restrict(sys.argv[4:], [], scoped=scoped)
def connect(kind, address):
    with socket.socket(kind) as sock: sock.connect(address)
def bind():
    with socket.socket() as sock: sock.bind(('127.0.0.1', 0))
within = socket.socket(socket.AF_UNIX)
within.bind(name + '.within')
within.listen()
pid = os.fork() or os._exit(tried(os.kill, os.getppid(), 0))
said([
    tried(connect, socket.AF_INET, ('127.0.0.1', port)), tried(bind),
    tried(connect, socket.AF_UNIX, name), tried(os.kill, os.getppid(), 0),
    tried(connect, socket.AF_UNIX, name + '.within'), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
])
"""


@pytest.mark.parametrize(("scoped", "outside"), [("scoped", EPERM), ("not", 0)])
def test_tcp_abstract_sockets_and_signals(
    listener: socket.socket, scoped: str, outside: int
) -> None:
    with socket.socket(socket.AF_UNIX) as abstract:
        name = f"layers-{os.getpid()}-{scoped}"
        abstract.bind("\0" + name)
        abstract.listen()
        found = seen(NETWORK, str(listener.getsockname()[1]), name, scoped, *READABLE)
    assert found == [EACCES, EACCES, outside, outside, 0, 0]


@pytest.mark.parametrize("version", range(1, 8))
def test_older_kernels(version: int, folders: tuple[str, str, str]) -> None:
    """Rights that an older kernel does not know are not requested: it would refuse all of them."""
    code = f"""
landlock._version = lambda: {version}
found = landlock.restrict([*READABLE, read], [write])
said([found, tries(), tried(os.kill, os.getppid(), 0)])
"""
    found, tries, signalled = seen(FILES + code, *folders)
    assert found == version
    assert tries["written"] == [EACCES, 0, EACCES]
    assert signalled == (EPERM if version >= 6 else 0)


def test_without_landlock_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert landlock.abi() >= 1
    monkeypatch.setattr(landlock, "_CREATE_RULESET", 4000)  # a call that no kernel has
    assert landlock.abi() == 0
    with pytest.raises(OSError, match="landlock: Function not implemented"):
        landlock.restrict([], [])


def test_both_under_a_bare_interpreter() -> None:
    """Layers load in an interpreter like that of the sandbox's own processes: no site, no packages,
    no environment.
    """
    code = (
        "landlock.restrict(['/usr'], [])\nseccomp.install()\nsaid(sorted(set(sys.modules) &"
        " {'site', 'hrm_agent'}))"
    )
    interpreter = str(getattr(sys, "_base_executable", sys.executable))
    done = python([interpreter, "-s", "-S", "-P", "-B", "-c", PRELUDE + code], env={})
    assert (done.stdout, done.stderr) == ("[]\n", "")
