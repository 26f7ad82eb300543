"""The few Linux calls that Python 3.11 has no function for, and the two steps of isolation made of them.

`enter_namespaces` and `build_root` run once, in the zygote: a network namespace without any interface, a root of
read-only binds (the interpreter and the shared libraries, nothing else of the machine), and a user without privileges.
`enter_cell` runs in each child, after a clone into new user, pid, mount and ipc namespaces: a private /tmp, resource
limits, no capabilities. The user namespace per call is what makes RLIMIT_NPROC count the processes of this call only;
the pid namespace is what makes the death of the child the death of everything that it started.
"""

from __future__ import annotations

# pathlib would cost the zygote memory that every child pays for; /tmp is the cell's own.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH115, PTH120, PTH211, S108
import ctypes
import os
import resource
import socket
import sys
from ctypes import pythonapi

__all__ = [
    "build_root",
    "clone",
    "die_with_parent",
    "drop_root",
    "enter_cell",
    "enter_namespaces",
    "prefer_as_victim",
    "set_limits",
]

UNPRIVILEGED_ID = 65533
"""User and group of snippets when the host is root: an id that no account owns."""
INSIDE_ID = 1000
MAX_PROCESSES = 32
TMP_OPTIONS = b"size=64m,nr_inodes=4096,mode=0700"

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_PIDFD = 0x10000000, 0x20000000, 0x40000000, 0x00001000
CELL_NAMESPACES = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC
ZYGOTE_NAMESPACES = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 0x1, 0x2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_CLONE3, SYS_MOUNT_SETATTR = 435, 442
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
SIGKILL, SIGCHLD = 9, 17
CAPABILITY_VERSION_3 = 0x20080522

# PyDLL keeps the interpreter lock: a clone with the lock released would leave the child without it.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 6
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


class _CloneArgs(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ]


def clone(*, isolated: bool) -> tuple[int, int]:
    """Fork into a cell's namespaces: (pid, pidfd) in the parent, (0, -1) in the child."""
    if not isolated:
        pid = os.fork()
        return (pid, os.pidfd_open(pid)) if pid else (0, -1)
    pidfd = ctypes.c_int(-1)
    arguments = _CloneArgs(flags=CELL_NAMESPACES | CLONE_PIDFD, pidfd=ctypes.addressof(pidfd), exit_signal=SIGCHLD)
    pythonapi.PyOS_BeforeFork()
    pid = int(_libc.syscall(SYS_CLONE3, ctypes.addressof(arguments), ctypes.sizeof(arguments), 0, 0, 0))
    if pid == 0:
        pythonapi.PyOS_AfterFork_Child()
        return 0, -1
    error = ctypes.get_errno()
    pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, f"clone3: {os.strerror(error)}")
    return pid, pidfd.value


def enter_namespaces() -> None:
    """Leave the host's mounts, network, ipc, host name and, for the next fork, process ids."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        _check(_libc.unshare(ZYGOTE_NAMESPACES), "unshare")
    else:
        _check(_libc.unshare(ZYGOTE_NAMESPACES | CLONE_NEWUSER), "unshare (user namespaces)")
        _map_ids("/proc/self", None, (INSIDE_ID, uid), (INSIDE_ID, gid))
    socket.sethostname("sandbox")


def build_root() -> int:
    """Replace / by read-only binds of what the interpreter needs. Returns a descriptor of /proc, which is not there."""
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    root = "/proc"  # any folder that surely exists and that nothing is bound from
    _mount("tmpfs", root, "tmpfs", MS_NOSUID, b"mode=0755")
    for path in ("/usr", "/lib", "/lib64", "/bin", sys.base_prefix, "/dev/null", "/dev/urandom"):
        _bind(path, root)
    os.mkdir(f"{root}/tmp")
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    path = ctypes.c_char_p(root.encode())
    pointer, size = ctypes.addressof(attributes), ctypes.sizeof(attributes)
    address = ctypes.cast(path, ctypes.c_void_p).value or 0
    _check(_libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, address, AT_RECURSIVE, pointer, size), "mount_setattr")
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")
    return proc


def _bind(path: str, root: str) -> None:
    target = root + path
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path) and not os.path.exists(target):
        os.makedirs(target)
        _mount(path, target, None, MS_BIND | MS_REC)
    elif os.path.exists(path) and not os.path.isdir(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT, 0o600))
        _mount(path, target, None, MS_BIND)


def drop_root() -> None:
    """Become a user without privileges, if root. Stays dumpable, so that children can write their own id maps."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def prefer_as_victim() -> None:
    """When memory runs out, the kernel kills this process and its children before others."""
    _write("/proc/self/oom_score_adj", None, "800")


def die_with_parent() -> None:
    """SIGKILL when the thread that started this process ends. To be called after the last change of user."""
    _libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def enter_cell(proc: int, outside: tuple[int, int]) -> None:
    """In a fresh child: own ids, no user namespaces of its own, a private /tmp, no capabilities.

    `outside` is the zygote's uid and gid; `proc` a descriptor of /proc.
    """
    _map_ids("self", proc, (INSIDE_ID, outside[0]), (INSIDE_ID, outside[1]))
    _write("sys/user/max_user_namespaces", proc, "0")
    _mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, TMP_OPTIONS)
    os.chdir("/tmp")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def set_limits(memory_bytes: int, cpu_seconds: float, file_bytes: int, *, isolated: bool) -> None:
    """Hard limits: this process cannot raise them again."""
    seconds = int(cpu_seconds) + 1  # the zygote kills at the exact time; this holds if the zygote is late
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_CORE: 0,
    }
    if isolated:  # otherwise it would count every process of this user
        limits[resource.RLIMIT_NPROC] = MAX_PROCESSES
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _map_ids(folder: str, proc: int | None, uid: tuple[int, int], gid: tuple[int, int]) -> None:
    _write(f"{folder}/setgroups", proc, "deny")
    _write(f"{folder}/uid_map", proc, f"{uid[0]} {uid[1]} 1")
    _write(f"{folder}/gid_map", proc, f"{gid[0]} {gid[1]} 1")


def _write(path: str, folder: int | None, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY, dir_fd=folder)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: bytes | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), options)
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
