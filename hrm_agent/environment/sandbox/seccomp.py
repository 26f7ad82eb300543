"""System call filter: allows the calls that snippets, numpy, sympy and common programs make, and
refuses all others.

The allowed calls were recorded with the standard library's tests, typical uses of numpy and sympy,
and a shell and its programs (`docs/environment.md`). If the number of a call does not suffice for a
decision, its arguments are checked. A refused call fails with EPERM, as if the process lacked the
privilege, and the snippet goes on. A call that is newer than this file fails with ENOSYS, as if the
kernel did not have it. A call with the numbers of another architecture kills the snippet, since
only an attack uses them.

With a listener, the slot's `supervisor` counts and answers every refused call. It also decides
these calls:

* a new process, since an idle session may make none
* a new socket, since its buffers are memory that no limit counts
* the handling of a child's death, since a child's CPU time is only counted if it is waited for
* a lock on a file, since most files are shared with other slots and the host
* the signal of a timer, since it could wake an idle session

The slot is under its own filter, and no supervisor answers its calls: they have to be allowed
outright.

The filter is installed once, in a slot's process, and inherited by its children. Numbers are found
by binary search in about seven comparisons. The kernel caches the result of calls that are always
allowed: read or write do not run the filter at all. The filter compares the lower 32 bits of an
argument. The kernel uses no others, except of pointers.
"""

from __future__ import annotations

# ruff: noqa: TID252  the package is loaded under another name (see __init__)
import ctypes
import errno
import os
import struct
from functools import cache

from .bpf import (
    AND,
    ARCHITECTURE,
    ARGUMENT,
    IF_ANY_BIT,
    IF_AT_LEAST,
    IF_EQUAL,
    LOAD,
    NUMBER,
    Program,
)
from .system_calls import ARCHITECTURES, FIRST_UNKNOWN, NUMBERS

__all__ = [
    "X32_BIT",
    "filter_program",
    "give_up_spawning",
    "install",
    "may_clone",
    "may_open_socket",
    "number_of",
    "without_spawning",
]

_ALLOWED = """
# files
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close close_range
lseek stat fstat lstat newfstatat statx access faccessat faccessat2 getcwd chdir fchdir rename renameat renameat2
rmdir unlink unlinkat link linkat symlink symlinkat readlink readlinkat truncate ftruncate fallocate getdents getdents64
statfs fstatfs dup dup2 dup3 pipe pipe2 sendfile copy_file_range mknod mknodat getxattr lgetxattr fgetxattr listxattr
llistxattr flistxattr
# waiting
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
timerfd_create timerfd_settime timerfd_gettime signalfd signalfd4 nanosleep clock_nanosleep alarm pause setitimer
getitimer timer_settime timer_gettime timer_getoverrun timer_delete restart_syscall
# memory
munmap mremap mprotect brk msync mincore membarrier
# processes and threads
execve execveat exit exit_group wait4 waitid kill tkill tgkill rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend
rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack pidfd_open pidfd_send_signal set_tid_address
set_robust_list get_robust_list rseq futex futex_waitv getrandom arch_prctl sched_yield sched_getaffinity
sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_getattr
getpriority getcpu
# identity and state of the process
getpid gettid getppid getpgid setpgid getpgrp getsid setsid getuid geteuid getgid getegid getresuid getresgid
getgroups capget capset getrlimit getrusage times uname gettimeofday time clock_gettime
clock_getres get_mempolicy
# sockets
bind listen accept accept4 connect getsockname getpeername shutdown sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg
# giving up more
landlock_create_ruleset landlock_restrict_self
"""
"""System calls that are allowed with any arguments. capset is needed by a child to drop its
capabilities. arch_prctl sets only the caller's registers. sysinfo is refused: free memory and the
number of processes would be a channel between calls. landlock_add_rule is refused: tens of
thousands of rules fit into each descriptor, and they are memory that no limit counts.
"""
_PRETENDED = "sync syncfs fsync fdatasync sync_file_range mlock mlock2 munlock munlockall fadvise64"
"""Calls that do nothing and succeed. A snippet has no disk, and by a real call it would make the
host write to the host's disk or read from it again.
"""
_METADATA = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat
"""
"""Calls that are allowed in namespaces. Without namespaces they do nothing and succeed, since
nothing else would protect the user's files on the host from them. The slot, under the same filter,
could then not open a folder that lacks its owner's permissions, so mkdir and umask are refused if
they would lead to such a folder.
"""
_UNKNOWN = "clone3"
"""Call that does not exist for snippets: its flags are in memory, where filters cannot see them.
The C library falls back to `clone`.
"""
_SPAWNING = "clone3 seccomp"
"""Calls allowed to a slot that clones into a cgroup, which takes clone3. The slot's child gives up
both calls by a second filter.
"""
_LOOKED_AT = """
clone fork vfork socket socketpair setsockopt getsockopt ioctl fcntl prctl personality mmap madvise rt_sigaction
timer_create setrlimit prlimit64 setpriority sched_setaffinity mkdir mkdirat umask
"""
X32_BIT = 0x40000000

_ALLOW, _ERROR, _TELL, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000

_CLONE_VM, _CLONE_FILES, _CLONE_VFORK = 0x00000100, 0x00000400, 0x00004000
"""Flags of shared memory, shared descriptors and a waiting parent (vfork). Processes may not share
descriptors, so in a process with one thread nothing else changes them.
"""
_CLONE_PARENT, _CLONE_THREAD = 0x00008000, 0x00010000
"""Flags of a sibling and of a thread. A sibling of the snippet would be a child of the slot, and
the slot would not kill it.
"""
_CLONE_NEWPID = 0x20000000
"""Flag that only the slot uses. The kernel refuses it to a snippet, which lacks the capability."""
_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x40000000
"""Flags for mount, cgroup, uts, ipc, user and network namespaces."""
_IOCTLS = (
    0x5401,
    0x802C542A,
    0x5413,
    0x540F,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
    0xC0502100,
    0xC0182101,
)
"""TCGETS, TCGETS2 (by which isatty() asks from glibc 2.42 on), TIOCGWINSZ, TIOCGPGRP, FIONREAD,
FIONBIO, FIONCLEX, FIOCLEX. The last two are for the slot, to receive and answer the filter's
notifications; a snippet has no descriptor for them.
"""
_FCNTLS = (0, 1, 2, 3, 4, 9, 1030, 1032, 1034)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETOWN, F_DUPFD_CLOEXEC, F_GETPIPE_SZ,
F_GET_SEALS. Locks need permission (`supervisor`): most files, and so the locks on them, are shared
with all slots and the host.
"""
_PRCTLS = (1, 2, 3, 4, 15, 16, 21, 23, 29, 30, 36, 37, 38, 39, 40, 41, 42, 47, 0x53564D41)
"""PDEATHSIG, DUMPABLE, NAME, GET_SECCOMP, CAPBSET_READ, TIMERSLACK, CHILD_SUBREAPER, NO_NEW_PRIVS,
GET_TID_ADDRESS, THP_DISABLE, CAP_AMBIENT, SET_VMA.
"""
_ADVICES = (0, 1, 2, 3, 4, 8, 10, 11, 15, 16, 17, 18, 19, 22, 23)
"""Advice values except REMOVE, MERGEABLE, COLLAPSE and the poisons."""
_IDLE_ADVICES = (14, 20, 21)
"""Advice values that do nothing and succeed. HUGEPAGE would make a pipe hold a whole huge page;
numpy asks for huge pages, but does not depend on them. COLD and PAGEOUT would drop pages of a file,
which other readers of the file would notice.
"""
_SOL_SOCKET, _BUFFER_SIZES, _SOCKET_PROGRAMS = 1, (7, 8), (26, 27)
"""SNDBUF, RCVBUF; ATTACH_FILTER, DETACH_FILTER."""
_SOCKET_OPTIONS = {_SOL_SOCKET: 30, 6: 9}
"""First option number that may not be set, by level (sockets and TCP). Programs, groups, congestion
controls and pinned pages are refused: the kernel's memory for them is not counted.
"""
_COOKIES = (57, 71)
"""COOKIE and NETNS_COOKIE, which come from one counter for all sockets of the machine."""
_SIGCHLD = 17
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCKET_TYPE_MASK, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET = 0xF, 1, 2, 5
_UNIX_KINDS = {_SOCK_STREAM: (0,), _SOCK_DGRAM: (0,), _SOCK_SEQPACKET: (0,)}
_INTERNET_KINDS = {_SOCK_STREAM: (0, 6), _SOCK_DGRAM: (0, 17)}
"""Allowed protocols by socket type: the family's default (0), TCP (6) and UDP (17). For a protocol
that is not loaded, the kernel would start a program of the host, as root, to load it. The CPU time
of this program is not counted.
"""
_MAP_ANONYMOUS, _MAP_TYPE, _MAP_SHARED, _MAP_SHARED_VALIDATE = 0x20, 0xF, 0x1, 0x3
"""Flags of shared memory without a file. Such memory stays in use after it was removed from the
page tables of every process, where it would be counted.
"""
_MAP_HUGETLB = 0x40000
"""Flag of huge pages, which the host has reserved for other purposes and which do not count as
memory of a process.
"""
_OWNERS_MODE = 0o700
_RLIMIT_CORE = 4
"""Limit of core dumps. With 0 a dump would be sent to a program of the host (see
`kernel.NO_CORE`).
"""
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _ALL_THREADS, _NEW_LISTENER = 1, 1, 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def install(*, listener: bool = False, isolated: bool = True, spawning: bool = False) -> int:
    """Filter this process with all its threads and future children; sets no_new_privs.

    `listener`: report refused calls and calls that need permission; returns the descriptor for
    these reports, else -1. With a listener, the process may have only one thread. `isolated`: the
    process is in its own namespaces. If it is not, it can make no sockets but pairs, and new
    processes need no permission: the slot, which forks too, has no supervisor that could permit it.
    `spawning`: this process clones into cgroups, and its children call `give_up_spawning`. Raises
    OSError.
    """
    program = filter_program(
        os.uname().machine, listener=listener, isolated=isolated, spawning=spawning
    )
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    descriptor = _add(program, _NEW_LISTENER if listener else _ALL_THREADS)
    return descriptor if listener else -1


def give_up_spawning() -> None:
    """Give up the calls that a slot's filter allows only to the slot. Called in a child, which has
    inherited no_new_privs. Raises OSError.
    """
    _add(without_spawning(), 0)


@cache
def without_spawning() -> bytes:
    """Filter in addition to the slot's: clone3 and further filters are refused."""
    program = Program(
        {"unknown": _ERROR | errno.ENOSYS, "refuse": _ERROR | errno.EPERM, "allow": _ALLOW}
    )
    program.add(LOAD, NUMBER)
    program.add(IF_EQUAL, number_of("clone3"), yes="unknown")
    program.add(IF_EQUAL, number_of("seccomp"), yes="refuse", no="allow")
    for label in ("unknown", "refuse", "allow"):
        program.give(label)
    return program.assemble()


def _add(program: bytes, flags: int) -> int:
    header = struct.pack(
        "HP", len(program) // 8, ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value
    )
    arguments = map(ctypes.c_long, (number_of("seccomp"), _SET_MODE_FILTER, flags))
    return _check(_libc.syscall(*arguments, header), "seccomp")


@cache
def filter_program(
    machine: str, *, listener: bool = False, isolated: bool = True, spawning: bool = False
) -> bytes:
    """Classic BPF program for `machine` (as in `os.uname`). It is cached, so that a fork server
    makes it once for all its slots.

    Raises OSError for an unknown machine.
    """
    architecture, column = _architecture(machine)
    verdicts = {
        "allow": _ALLOW,
        "refuse": _TELL if listener else _ERROR | errno.EPERM,
        "ask": _TELL if listener else _ALLOW,
        "gate": _TELL if listener and isolated else _ALLOW,
        "unknown": _ERROR | errno.ENOSYS,
        "family": _ERROR | errno.EAFNOSUPPORT,
        "no memory": _ERROR | errno.ENOMEM,
        "done": _ERROR,
        "kill": _TELL if listener else _KILL,
    }
    program = Program(verdicts)
    program.add(LOAD, ARCHITECTURE)
    program.add(IF_EQUAL, architecture, yes="known")
    program.give("kill")
    program.mark("known")
    program.add(LOAD, NUMBER)
    if machine == "x86_64":
        program.add(IF_AT_LEAST, X32_BIT, no="64 bits")
        program.give("kill")
        program.mark("64 bits")
    program.search(_ranges(column, isolated=isolated, allowed_too=_SPAWNING if spawning else ""))
    _look_at_memory(program)
    _look_at_processes(program)
    _look_at_controls(program)
    _look_at_limits(program, isolated=isolated)
    _look_at_sockets(program, isolated=isolated)
    for label in verdicts:
        program.give(label)
    return program.assemble()


def number_of(name: str) -> int:
    """Number of a system call on this machine. Raises OSError for an unknown machine, or a call
    that it lacks.
    """
    number = NUMBERS[name][_architecture(os.uname().machine)[1]]
    if number is None:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    return number


def may_clone(flags: int) -> bool:
    """True if the filter lets a snippet request a process with these flags."""
    return (
        not flags & (_NEW_NAMESPACES | _CLONE_PARENT | _CLONE_FILES)
        and flags & (_CLONE_VM | _CLONE_VFORK) != _CLONE_VM
    )


def may_open_socket(family: int, kind: int, protocol: int) -> bool:
    """True if the filter lets a snippet request a socket of this kind."""
    kinds = _UNIX_KINDS if family & 0xFFFFFFFF == _AF_UNIX else _INTERNET_KINDS
    return protocol & 0xFFFFFFFF in kinds.get(kind & _SOCKET_TYPE_MASK, ())


def _architecture(machine: str) -> tuple[int, int]:
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is written for {machine}")
    return ARCHITECTURES[machine]


def _ranges(column: int, *, isolated: bool, allowed_too: str) -> list[tuple[int, str]]:
    """First number of each range with one result, and the label of the result."""
    named = [line for line in _ALLOWED.splitlines() if not line.startswith("#")]
    answers = dict.fromkeys(" ".join(named).split(), "allow") | dict.fromkeys(
        _PRETENDED.split(), "done"
    )
    answers |= dict.fromkeys(_METADATA.split(), "allow" if isolated else "done")
    answers |= dict.fromkeys(_UNKNOWN.split(), "unknown") | {
        name: name for name in _LOOKED_AT.split()
    }
    answers |= dict.fromkeys(allowed_too.split(), "allow")
    by_number = {NUMBERS[name][column]: answer for name, answer in answers.items()}
    ranges = list[tuple[int, str]]()
    for number in range(FIRST_UNKNOWN):
        answer = by_number.get(number, "refuse")
        if not ranges or answer != ranges[-1][1]:
            ranges.append((number, answer))
    return [*ranges, (FIRST_UNKNOWN, "unknown")]


def _look_at_memory(program: Program) -> None:
    program.mark("mmap")
    program.add(LOAD, ARGUMENT[3])
    program.add(IF_ANY_BIT, _MAP_HUGETLB, yes="no memory")
    program.add(AND, _MAP_ANONYMOUS | _MAP_TYPE)
    program.one_of(
        (_MAP_ANONYMOUS | _MAP_SHARED, _MAP_ANONYMOUS | _MAP_SHARED_VALIDATE),
        yes="no memory",
        no="allow",
    )
    program.mark("madvise")
    program.add(LOAD, ARGUMENT[2])
    program.one_of(_IDLE_ADVICES, yes="done", no="")
    program.one_of(_ADVICES, yes="allow", no="refuse")


def _look_at_processes(program: Program) -> None:
    program.mark("clone")
    program.add(LOAD, ARGUMENT[0])
    program.add(IF_ANY_BIT, _NEW_NAMESPACES | _CLONE_PARENT, yes="refuse")
    program.add(IF_ANY_BIT, _CLONE_NEWPID | _CLONE_THREAD, yes="allow")
    program.add(IF_ANY_BIT, _CLONE_FILES, yes="refuse")
    program.add(AND, _CLONE_VM | _CLONE_VFORK)
    program.add(IF_EQUAL, _CLONE_VM, yes="refuse", no="gate")
    program.mark("fork")
    program.mark("vfork")
    program.add(IF_EQUAL, 0, yes="gate", no="gate")
    program.mark("rt_sigaction")
    program.add(LOAD, ARGUMENT[0])
    program.add(IF_EQUAL, _SIGCHLD, no="allow")
    program.no_pointer(1, yes="allow", no="ask")
    program.mark("timer_create")  # a timer's signal may wake a stopped process: see `supervisor`
    program.no_pointer(1, yes="allow", no="refuse")
    program.mark("personality")
    program.add(LOAD, ARGUMENT[0])
    program.one_of((0, 0xFFFFFFFF), yes="allow", no="refuse")


def _look_at_controls(program: Program) -> None:
    program.mark("ioctl")
    program.add(LOAD, ARGUMENT[1])
    program.one_of(_IOCTLS, yes="allow", no="refuse")
    program.mark("fcntl")
    program.add(LOAD, ARGUMENT[1])
    program.one_of(_FCNTLS, yes="allow", no="refuse")
    program.mark("prctl")
    program.add(LOAD, ARGUMENT[0])
    program.one_of(_PRCTLS, yes="allow", no="refuse")


def _look_at_limits(program: Program, *, isolated: bool) -> None:
    """Check calls that set limits. Without namespaces other processes are visible, and the kernel
    would let a process change all those of its user. So it may change only itself.
    """
    for name in ("prlimit64", "sched_setaffinity"):
        program.mark(name)
        if not isolated:
            program.add(LOAD, ARGUMENT[0])
            program.add(IF_EQUAL, 0, no="refuse")
        program.give("limit" if name == "prlimit64" else "allow")
    program.mark("setpriority")
    for place in () if isolated else (0, 1):
        program.add(LOAD, ARGUMENT[place])
        program.add(IF_EQUAL, 0, no="refuse")
    program.give("allow")
    program.mark("limit")
    program.add(LOAD, ARGUMENT[1])
    program.add(IF_EQUAL, _RLIMIT_CORE, no="allow")
    program.no_pointer(2, yes="allow", no="dump")
    program.mark("dump")
    # refused if the caller also asks for the old limit: a call that is not made cannot return it
    program.no_pointer(3, yes="done", no="refuse")
    program.mark("setrlimit")
    program.add(LOAD, ARGUMENT[0])
    program.add(IF_EQUAL, _RLIMIT_CORE, yes="done", no="allow")
    for name, place in (("mkdir", 1), ("mkdirat", 2)):
        program.mark(name)
        if not isolated:
            program.add(LOAD, ARGUMENT[place])
            program.add(AND, _OWNERS_MODE)
            program.add(IF_EQUAL, _OWNERS_MODE, no="refuse")
        program.give("allow")
    program.mark("umask")
    if not isolated:
        program.add(LOAD, ARGUMENT[0])
        program.add(IF_ANY_BIT, _OWNERS_MODE, yes="refuse")
    program.give("allow")


def _look_at_sockets(program: Program, *, isolated: bool) -> None:
    program.mark("setsockopt")
    program.add(LOAD, ARGUMENT[1])
    for level in _SOCKET_OPTIONS:
        program.add(IF_EQUAL, level, yes=f"options of {level}")
    program.give("refuse")
    for level, end in _SOCKET_OPTIONS.items():
        program.mark(f"options of {level}")
        program.add(LOAD, ARGUMENT[2])
        if level == _SOL_SOCKET:
            program.one_of(_BUFFER_SIZES, yes="done", no="")
            program.one_of(_SOCKET_PROGRAMS, yes="refuse", no="")
        program.add(IF_AT_LEAST, end, yes="refuse", no="allow")
    program.mark("getsockopt")
    program.add(LOAD, ARGUMENT[2])
    program.one_of(_COOKIES, yes="refuse", no="allow")
    program.mark("socketpair")
    program.add(LOAD, ARGUMENT[0])
    program.add(IF_EQUAL, _AF_UNIX, no="family")
    if not isolated:  # a pair of datagram sockets can still send to any path
        program.add(LOAD, ARGUMENT[1])
        program.add(AND, _SOCKET_TYPE_MASK)
        program.one_of((_SOCK_STREAM, _SOCK_SEQPACKET), yes="gate", no="refuse")
    program.give("gate")
    program.mark("socket")
    if not isolated:
        program.give("family")
        return
    program.add(LOAD, ARGUMENT[0])
    program.add(IF_EQUAL, _AF_UNIX, yes="unix")
    program.one_of((_AF_INET, _AF_INET6), yes="internet", no="family")
    for family, kinds in (("unix", _UNIX_KINDS), ("internet", _INTERNET_KINDS)):
        program.mark(family)
        program.add(LOAD, ARGUMENT[1])
        program.add(AND, _SOCKET_TYPE_MASK)
        for kind in kinds:
            program.add(IF_EQUAL, kind, yes=f"{family} {kind}")
        program.give("refuse")
        for kind, protocols in kinds.items():
            program.mark(f"{family} {kind}")
            program.add(LOAD, ARGUMENT[2])
            program.one_of(protocols, yes="gate", no="refuse")


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result
