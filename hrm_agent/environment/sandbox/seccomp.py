"""The system calls that no snippet needs, refused by a filter that the kernel runs before each call.

What is refused is what a kernel's bugs are mostly found behind (namespaces, mounts, io_uring, bpf, keys, odd socket
families), what looks into other processes, and memory that no limit counts (memory files, System V segments). A
refused call fails with EPERM, as it would without the privilege, and the snippet goes on; a foreign architecture's
numbers kill, because only an attack uses them. Numbers newer than this file are unknown to the kernel, as far as a
snippet sees: what is added to Linux later is refused until somebody has looked at it.

The filter is installed once, in a slot's process, and inherited by all that it starts; so it leaves the slot what it
clones and limits its children with. Numbers are searched in halves, about seven comparisons, and the answer for those
that are always allowed is kept by the kernel: a call of read or write does not run the filter at all. Arguments are
looked at for seven numbers only. Compared are the lower 32 bits, which is all that the kernel takes of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache

__all__ = ["filter_program", "install", "number_of"]

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The kernel's name for it, and its column below."""

_REFUSED = {
    # namespaces, mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "sysfs": (139, None),
    "ustat": (136, None),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # the kernel's own machinery
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "seccomp": (317, 277),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "_sysctl": (156, None),
    "uselib": (134, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # files past their paths
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # the whole machine
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "sync": (162, 81),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # files that all slots see: what the host does with them, and notes to others
    "inotify_add_watch": (254, 27),
    "flock": (73, 32),
    # memory that no limit counts, and what outlives a process (the files of a slot's output outlive a call)
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
}
"""Name -> number on x86_64, on aarch64; None where it has none."""
_UNKNOWN = {"clone3": (435, 435)}
"""Its flags lie in memory, where no filter sees them; the C library falls back to `clone`."""
_LOOKED_AT = {
    "clone": (56, 220),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "ioctl": (16, 29),
    "prctl": (157, 167),
    "personality": (135, 92),
    "mmap": (9, 222),
}
_FIRST_UNKNOWN = 457
_X32_BIT = 0x40000000

_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, (16, 24, 32, 40)
"""Offsets in struct seccomp_data, of arguments the lower halves."""
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_VERDICTS = {
    "allow": 0x7FFF0000,
    "refuse": 0x00050000 | errno.EPERM,
    "unknown": 0x00050000 | errno.ENOSYS,
    "family": 0x00050000 | errno.EAFNOSUPPORT,
    "no memory": 0x00050000 | errno.ENOMEM,
    "kill": 0x80000000,
}

_CLONE_PARENT = 0x00008000
"""A sibling of the snippet would be the slot's child, and nobody's business to end."""
_NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x40000000
"""mount, cgroup, uts, ipc, user, net. Not pid: the slot's own; a snippet lacks the capability."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCKET_TYPE_MASK, _SOCKET_TYPES = 0xF, (1, 2, 5)
_PROTOCOLS = (0, 6, 17)
"""The family's own, TCP, UDP."""
_MAP_ANONYMOUS, _MAP_TYPE, _MAP_SHARED, _MAP_SHARED_VALIDATE = 0x20, 0xF, 0x1, 0x3
"""Shared memory without a file: what is in it stays when it is taken out of every process's tables."""
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def install(*, no_network: bool = False) -> None:
    """Filter this process, all its threads, and all that it starts from now on; sets no_new_privs.

    `no_network` leaves Unix sockets only: for machines without network namespaces. Raises OSError.
    """
    program = filter_program(os.uname().machine, no_network=no_network)
    header = struct.pack("HP", len(program) // 8, ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    arguments = map(ctypes.c_long, (number_of("seccomp"), _SET_MODE_FILTER, _ALL_THREADS))
    _check(_libc.syscall(*arguments, header), "seccomp")


@cache
def filter_program(machine: str, *, no_network: bool = False) -> bytes:
    """Classic BPF for `machine` as `os.uname` names it: kept, so a fork server makes it once for all its slots.

    Raises OSError for a machine that is not known here.
    """
    architecture, column = _architecture(machine)
    program = _Program()
    program.add(_LOAD, _ARCHITECTURE)
    program.add(_IF_EQUAL, architecture, no="kill")
    program.add(_LOAD, _NUMBER)
    if machine == "x86_64":
        program.add(_IF_AT_LEAST, _X32_BIT, yes="kill")
    program.search(_ranges(column))
    _look_at_arguments(program, (_AF_UNIX,) if no_network else (_AF_UNIX, _AF_INET, _AF_INET6))
    for label, verdict in _VERDICTS.items():
        program.mark(label)
        program.add(_RETURN, verdict)
    return program.assemble()


def number_of(name: str) -> int:
    """Of a call that the filter names, on this machine. Raises OSError for a machine that is not known here."""
    column = _architecture(os.uname().machine)[1]
    number = (_REFUSED | _UNKNOWN | _LOOKED_AT)[name][column]
    if number is None:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    return number


def _architecture(machine: str) -> tuple[int, int]:
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is written for {machine}")
    return _ARCHITECTURES[machine]


class _Program:
    """Instructions that jump forward to labels; an empty label is the next instruction."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, int, str, str]] = []
        self._labels: dict[str, int] = {}

    def mark(self, label: str) -> None:
        """The next instruction is `label`."""
        self._labels[label] = len(self._lines)

    def add(self, code: int, operand: int, *, yes: str = "", no: str = "") -> None:
        self._lines.append((code, operand, yes, no))

    def one_of(self, values: tuple[int, ...], *, yes: str, no: str) -> None:
        """Compare what was loaded last."""
        for value in values[:-1]:
            self.add(_IF_EQUAL, value, yes=yes)
        self.add(_IF_EQUAL, values[-1], yes=yes, no=no)

    def search(self, ranges: list[tuple[int, str]]) -> None:
        """Jump to the label of the last range that begins at or below what was loaded."""
        half = len(ranges) // 2
        low, high = ranges[:half], ranges[half:]
        self.add(_IF_AT_LEAST, high[0][0], yes=_label(high), no=_label(low))
        for part in (low, high):
            if len(part) > 1:
                self.mark(_label(part))
                self.search(part)

    def assemble(self) -> bytes:
        binary = b""
        for place, (code, operand, yes, no) in enumerate(self._lines):
            jumps = (self._labels[label] - place - 1 if label else 0 for label in (yes, no))
            binary += struct.pack("HBBI", code, *jumps, operand)
        return binary


def _label(ranges: list[tuple[int, str]]) -> str:
    return ranges[0][1] if len(ranges) == 1 else f"{ranges[0][0]} to {ranges[-1][0]}"


def _ranges(column: int) -> list[tuple[int, str]]:
    """First number of each range of equal answers, and the label of the answer."""
    answers: dict[int | None, str] = {numbers[column]: "refuse" for numbers in _REFUSED.values()}
    answers |= {numbers[column]: "unknown" for numbers in _UNKNOWN.values()}
    answers |= {numbers[column]: name for name, numbers in _LOOKED_AT.items()}
    ranges = [(0, answers.get(0, "allow"))]
    for number in range(1, _FIRST_UNKNOWN):
        answer = answers.get(number, "allow")
        if answer != ranges[-1][1]:
            ranges.append((number, answer))
    return [*ranges, (_FIRST_UNKNOWN, "unknown")]


def _look_at_arguments(program: _Program, families: tuple[int, ...]) -> None:
    first, second, third, fourth = _ARGUMENT
    program.mark("mmap")
    program.add(_LOAD, fourth)
    program.add(_AND, _MAP_ANONYMOUS | _MAP_TYPE)
    program.one_of((_MAP_ANONYMOUS | _MAP_SHARED, _MAP_ANONYMOUS | _MAP_SHARED_VALIDATE), yes="no memory", no="allow")
    program.mark("clone")
    program.add(_LOAD, first)
    program.add(_IF_ANY_BIT, _NEW_NAMESPACES | _CLONE_PARENT, yes="refuse", no="allow")
    program.mark("ioctl")
    program.add(_LOAD, second)
    program.one_of((_TIOCSTI, _TIOCLINUX), yes="refuse", no="allow")
    program.mark("prctl")
    program.add(_LOAD, first)
    program.add(_IF_EQUAL, _PR_SET_SECCOMP, yes="refuse", no="allow")
    program.mark("personality")
    program.add(_LOAD, first)
    program.one_of((0, 0xFFFFFFFF), yes="allow", no="refuse")
    program.mark("socketpair")
    program.add(_LOAD, first)
    program.add(_IF_EQUAL, _AF_UNIX, yes="allow", no="family")
    program.mark("socket")
    program.add(_LOAD, first)
    program.one_of(families, yes="type", no="family")
    program.mark("type")
    program.add(_LOAD, second)
    program.add(_AND, _SOCKET_TYPE_MASK)
    program.one_of(_SOCKET_TYPES, yes="protocol", no="refuse")
    program.mark("protocol")
    program.add(_LOAD, third)
    program.one_of(_PROTOCOLS, yes="allow", no="refuse")


def _check(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
