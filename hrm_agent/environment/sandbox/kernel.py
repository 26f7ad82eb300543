"""Linux calls that Python 3.11 has no function for, and the steps of isolation made of them.

`enter_namespaces` and `build_root` run once, in the zygote. They give it its own mounts and process
ids, and a root of read-only binds (the interpreter, the system's libraries and programs, the
packages that snippets may import).

`enter_slot` runs once in each slot. It gives the slot an empty network, its own IPC and host name,
a /tmp in memory and its own user id. Last comes a user namespace: privileges that a child might
gain in it do not count in the other namespaces.

Each call only needs `clone` into a new pid namespace, where the death of the child kills everything
that the child has started.
"""

from __future__ import annotations

# pathlib would cost the zygote memory that every child pays for; /tmp is private to the slot.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH115, PTH120, PTH211, S108
import ctypes
import os
import resource
import socket
import sys

__all__ = [
    "SLOT_ID",
    "address_space",
    "as_subreaper",
    "build_root",
    "clone",
    "die_with_parent",
    "drop_capabilities",
    "enter_namespaces",
    "enter_slot",
    "gather_pages",
    "give_up_root",
    "limit_child",
    "limit_slot",
    "own_descriptors",
    "prefer_as_victim",
    "seal",
]

SLOT_ID = 0x70000000
"""Base of the user and group ids of slots if the host is root: the ids of slot n are this number
plus n. No account has such ids.
"""
INSIDE_ID = 1000
MAX_PROCESSES = 32
MAX_DESCRIPTORS = 128
"""Maximum number of descriptors of a process. They are limited because data in sockets between
processes is memory that no other limit counts.
"""
MAX_SIGNALS = 1024
"""Maximum number of pending signals, including timers. They are limited because they count against
the kernel's limit for the user, which is the host's user if the host is not root.
"""
NO_CORE = 1
"""Limit of core dumps in bytes. With 0 the kernel would still send a dump to the host's dump
program, if there is one.
"""
TMP_OPTIONS = b"size=64m,nr_inodes=4096,mode=1777"
DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
)
CLONE_NEWPID, CLONE_NEWNET, CLONE_PIDFD = 0x20000000, 0x40000000, 0x00001000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_INTO_CGROUP = 0x00200000, 0x01000000, 0x200000000
SLOT_NAMESPACES = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
MADV_COLLAPSE, HUGE_PAGE = 25, 1 << 21
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 0x1, 0x2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
_MACHINE = os.uname().machine
SYS_CLONE, SYS_CLONE3, SYS_MOUNT_SETATTR = (220 if _MACHINE == "aarch64" else 56), 435, 442
(
    PR_SET_PDEATHSIG,
    PR_SET_DUMPABLE,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NO_NEW_PRIVS,
    PR_GET_TID_ADDRESS,
) = (1, 4, 36, 38, 40)
SIGKILL, SIGCHLD = 9, 17
CAPABILITY_VERSION_3 = 0x20080522

# PyDLL keeps the interpreter lock. A child that is cloned without the lock would lack it.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 6
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_NO_CAPABILITIES = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
_pidfd = ctypes.c_int(-1)
_tid = ctypes.c_void_p(0)


def clone(*, isolated: bool, into: int = -1) -> tuple[int, int]:
    """Fork, into a new pid namespace if isolated. Returns (pid, pidfd) in the parent and (0, -1) in
    the child.

    `into`: descriptor of the cgroup that the child starts in (-1 for this process's).

    `os.fork` is not used, because its hooks would touch many shared pages of memory. A process with
    one thread, such as a slot, needs only one step of libc's fork, which the flags below request:
    the child's thread id is stored where libc reads it.
    """
    flags = SIGCHLD | CLONE_PIDFD | (CLONE_NEWPID if isolated else 0)
    if not _tid.value:
        _libc.prctl(PR_GET_TID_ADDRESS, ctypes.addressof(_tid), 0, 0, 0)
    tid = _tid.value or 0
    if tid:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    if into >= 0:
        flags = flags - SIGCHLD | CLONE_INTO_CGROUP
        given = (ctypes.c_uint64 * 11)(
            flags, ctypes.addressof(_pidfd), tid, 0, SIGCHLD, 0, 0, 0, 0, 0, into
        )
        pid = int(_libc.syscall(SYS_CLONE3, ctypes.addressof(given), ctypes.sizeof(given), 0, 0, 0))
    else:
        last = (0, tid) if _MACHINE == "aarch64" else (tid, 0)
        pid = int(_libc.syscall(SYS_CLONE, flags, 0, ctypes.addressof(_pidfd), *last))
    if pid == 0:
        return 0, -1
    _check(pid, "clone")
    return pid, _pidfd.value


def enter_namespaces() -> None:
    """Enter a new mount namespace and, from the next fork on, a new one of process ids. An ordinary
    user also enters a new user namespace.
    """
    uid = os.getuid()
    gid = os.getgid()
    if uid == 0:
        _check(_libc.unshare(CLONE_NEWPID | CLONE_NEWNS), "unshare")
    else:
        _check(
            _libc.unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUSER), "unshare (user namespaces)"
        )
        _map_ids("/proc/self", None, (INSIDE_ID, uid), (INSIDE_ID, gid))


def build_root(packages: dict[str, str]) -> tuple[int, bool]:
    """Replace / by read-only binds. `packages`: path -> name under /site.

    Returns a descriptor of a /proc, which is not mounted in the new root, and whether this /proc
    shows the new pid namespace.
    """
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    proc, fresh = _open_proc()
    root = "/proc"  # any folder that surely exists and that is not the source of a bind
    _mount("tmpfs", root, "tmpfs", MS_NOSUID, b"mode=0755")
    for path in ("/usr", "/lib", "/lib64", "/bin", sys.base_prefix, *DEVICES):
        _bind(path, root + path)
    for path, name in packages.items():
        _bind(path, f"{root}/site/{name}")
    os.mkdir(f"{root}/tmp")
    # the C library keeps semaphores in /dev/shm: the link makes them emptied and limited as in /tmp
    os.symlink("/tmp", f"{root}/dev/shm")
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    path = ctypes.c_char_p(root.encode())
    pointer = ctypes.addressof(attributes)
    size = ctypes.sizeof(attributes)
    address = ctypes.cast(path, ctypes.c_void_p).value or 0
    _check(
        _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, address, AT_RECURSIVE, pointer, size),
        "mount_setattr",
    )
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")
    return proc, fresh


def _open_proc() -> tuple[int, bool]:
    """Pair (descriptor of a /proc, True if it shows the new pid namespace). If a new /proc cannot
    be mounted, as in a container with a masked /proc, the old /proc is used.
    """
    fresh = True
    try:
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        fresh = False
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    if fresh:
        _check(_libc.umount2(b"/proc", MNT_DETACH), "umount2 /proc")
    return proc, fresh


def _bind(path: str, target: str) -> None:
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path) and not os.path.exists(target):
        os.makedirs(target)
        _mount(path, target, None, MS_BIND | MS_REC)
    elif os.path.exists(path) and not os.path.isdir(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT, 0o600))
        _mount(path, target, None, MS_BIND)


def enter_slot(proc: int, number: int) -> None:
    """Enter the slot's namespaces, once per slot: its own network, IPC, host name, mounts, /tmp and
    user. Last comes a user namespace inside which no further ones can be made.
    """
    _check(_libc.unshare(SLOT_NAMESPACES), "unshare")
    socket.sethostname("sandbox")
    _mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, TMP_OPTIONS)
    os.chdir("/tmp")
    give_up_root(number)
    ids = os.getuid(), os.getgid()
    _check(_libc.unshare(CLONE_NEWUSER), "unshare (user namespaces)")
    _map_ids("self", proc, (INSIDE_ID, ids[0]), (INSIDE_ID, ids[1]))
    _write("sys/user/max_user_namespaces", proc, "0")


def give_up_root(number: int) -> None:
    """Become the user of slot `number` if this process is root. It stays dumpable, so that it can
    write its id map.
    """
    if os.getuid() == 0:
        own = SLOT_ID + number
        os.setgroups([])
        os.setresgid(own, own, own)
        os.setresuid(own, own, own)
        _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def seal() -> None:
    """Set no_new_privs: programs that this process starts from now on gain no privileges."""
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def drop_capabilities() -> None:
    """Drop all capabilities, which the slot has in its user namespace."""
    _check(_libc.capset(*_NO_CAPABILITIES), "capset")


def prefer_as_victim() -> None:
    """Raise the OOM score: when memory runs out, the kernel kills this process and its children
    before others.
    """
    _write("/proc/self/oom_score_adj", None, "800")


def address_space(proc: int) -> int:
    """Size of this process's address space, in bytes."""
    descriptor = os.open("self/statm", os.O_RDONLY, dir_fd=proc)
    pages = int(os.read(descriptor, 256).split()[0])
    os.close(descriptor)
    return pages * os.sysconf("SC_PAGE_SIZE")


def gather_pages(proc: int) -> None:
    """Move the private memory of this process into huge pages, if the kernel can (Linux 6.1). Forks
    become faster, since a fork copies an entry per page.

    The zygote calls this function, so that its slots share the huge pages. A slot that writes to
    one gets a small page of its own, as it would without them.
    """
    descriptor = os.open("self/maps", os.O_RDONLY, dir_fd=proc)
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as maps:
        mappings = [line.split() for line in maps]
    for place, access, _, _, inode, *name in mappings:
        if access.startswith("rw") and inode == "0" and name in ([], ["[heap]"]):
            start, end = (int(text, 16) for text in place.split("-"))
            start = -(-start // HUGE_PAGE) * HUGE_PAGE
            end = end // HUGE_PAGE * HUGE_PAGE
            if start < end:
                _libc.madvise(start, end - start, MADV_COLLAPSE)


def own_descriptors(proc: int, descriptors: list[int]) -> None:
    """Open these files again, and /dev/null as stdin. Locks, flags and offsets of open files shared
    with the slot would outlive a call.
    """
    for descriptor in descriptors:
        _replace(descriptor, os.open(f"self/fd/{descriptor}", os.O_RDWR, dir_fd=proc))
    _replace(0, os.open("/dev/null", os.O_RDONLY))


def _replace(descriptor: int, by: int) -> None:
    os.dup2(by, descriptor)
    os.close(by)


def die_with_parent() -> None:
    """Have this process killed when the thread that started it ends. Must be called after the last
    change of user.
    """
    _libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def as_subreaper() -> None:
    """Make orphans below this process its children. It is needed where no pid namespace kills
    them.
    """
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")


def limit_slot(*, count_processes: bool) -> None:
    """Set hard limits that are the same for every call. `count_processes`: also limit the processes
    of the user, which only this slot uses.
    """
    limits = {
        resource.RLIMIT_NOFILE: MAX_DESCRIPTORS,
        resource.RLIMIT_CORE: NO_CORE,
        resource.RLIMIT_SIGPENDING: MAX_SIGNALS,
    }
    if count_processes:
        limits[resource.RLIMIT_NPROC] = MAX_PROCESSES + 1
    for kind, limit in limits.items():
        _set_limit(kind, limit)


def limit_child(memory_bytes: int, file_bytes: int, cpu_seconds: float | None) -> None:
    """Set the hard limits of one call, which the process cannot raise. The limit of CPU time is
    rounded up to whole seconds: the slot measures it more exactly.
    """
    _set_limit(resource.RLIMIT_AS, memory_bytes)
    _set_limit(resource.RLIMIT_FSIZE, file_bytes)
    if cpu_seconds is not None:
        _set_limit(resource.RLIMIT_CPU, int(cpu_seconds) + 1)


def _set_limit(kind: int, limit: int) -> None:
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


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: bytes | None = None
) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), options)
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
