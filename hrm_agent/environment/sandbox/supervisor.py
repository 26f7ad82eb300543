"""What the filter tells the slot: counts what was refused, and decides what a number and its
arguments cannot.

The process that made the call waits until it is answered, and the slot answers between its other
looks. While a session is parked nobody answers: its processes cannot make others, and so can all be
stopped.

What is decided here cannot be changed after it was looked at: the arguments are in registers, and
the one structure that is read from memory, as the descriptor of a file to be locked, is of a
process that has one thread and shares neither with anybody.
"""

from __future__ import annotations

# ruff: noqa: TID252  the package is loaded under another name (see __init__)
import errno
import fcntl
import os
import re
import struct
import time
from contextlib import suppress
from signal import SIGCHLD, SIGCONT, SIGKILL

from .seccomp import X32_BIT, may_clone, may_open_socket, number_of
from .system_calls import ARCHITECTURES

__all__ = ["MAX_SOCKETS", "Supervisor"]

MAX_SOCKETS = 64
"""Of all processes of a slot, those in flight between them included: what lies in their buffers is
counted nowhere. Some more may be had by processes that ask at the same moment.
"""
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
"""struct seccomp_notif: id, pid, flags, number, architecture, instruction, six arguments. And
seccomp_notif_resp.
"""
_GO_ON = 1
_SIG_IGN, _SA_NOCLDWAIT = 1, 2
_SIGACTION = struct.Struct("=QQ")
"""The kernel's struct: handler, flags, ..."""
_SIGEVENT = struct.Struct("=Qi")
"""Value, signal, ..."""
_CLONE_VM, _CLONE_VFORK = 0x00000100, 0x00004000
_PF_FORKNOEXEC = 0x40
"""In a process's flags: it was forked, and has not begun another program."""
_USED = re.compile(rb"^sockets: used (\d+)", re.MULTILINE)
_OWN = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ...p [0-9a-f]+ [0-9a-f:]+ 0 ", re.MULTILINE)
"""Of a process's maps those that show no file: what stands in a file others can change, private as
the map may be.
"""
_MOST_READ = 1 << 20
"""Bytes. A snippet decides how many maps it has, and how long the paths in them are."""
_LOCKS = (5, 6, 7, 36, 37, 38)
"""Of fcntl: F_GETLK, F_SETLK, F_SETLKW, and these of open file descriptions."""


class Supervisor:
    """Of one slot."""

    __slots__ = (
        "_architecture",
        "_at_rest",
        "_clone",
        "_device",
        "_fcntl",
        "_flock",
        "_forks",
        "_lent_on",
        "_listener",
        "_proc",
        "_sigaction",
        "_socket",
        "_sockets",
        "_timer",
        "_vfork",
        "foreign",
        "refused",
        "seconds",
    )

    def __init__(self, listener: int, proc: int, folder: str, *, isolated: bool) -> None:
        """`proc`: a /proc that shows the slot's processes. `folder`: the slot's own. `isolated`: in
        namespaces, where it is asked for leave, and the folder is a device of its own.
        """
        self._listener, self._proc = listener, proc
        self._device = os.stat(folder).st_dev if isolated else None  # noqa: PTH116
        self._clone, self._socket, self._sigaction = map(
            number_of, ("clone", "socket", "rt_sigaction")
        )
        self._fcntl, self._flock, self._timer = map(number_of, ("fcntl", "flock", "timer_create"))
        self._vfork = next(iter(_numbers("vfork")), None)
        self._forks = _numbers("clone", "fork", "vfork") if isolated else set[int]()
        self._sockets = _numbers("socket", "socketpair") if isolated else set[int]()
        self._lent_on = False
        """Memory may be shared by processes of which none waits for another."""
        self._at_rest = self._open_sockets("self")
        self._architecture = ARCHITECTURES[os.uname().machine][0]
        self.foreign = False
        """A call of another architecture was made: it is not answered,
        and its tree is to be ended.
        """
        self.refused: dict[int, int] = {}
        """Number of a system call -> how often, since this was emptied."""
        self.seconds = 0.0
        """CPU time of all answers: the snippet's doing, and charged to it."""

    def begin(self) -> None:
        """Another call."""
        self.refused, self.seconds, self.foreign = {}, 0.0, False

    def answer(self) -> None:
        """One call that waits, if it still does."""
        began, told = time.thread_time(), bytearray(_NOTIFICATION.size)
        with suppress(OSError):  # who asked was killed
            fcntl.ioctl(self._listener, _RECEIVE, told, True)
            identity, pid, _, number, architecture, _, *arguments = _NOTIFICATION.unpack(told)
            if architecture != self._architecture or not 0 <= number < X32_BIT:
                self.foreign = True
            else:
                error = self._guarded_verdict(number, pid, arguments)
                if error == errno.EPERM:
                    self.refused[number] = self.refused.get(number, 0) + 1
                answer = _ANSWER.pack(identity, 0, -error, 0 if error else _GO_ON)
                fcntl.ioctl(self._listener, _SEND, bytearray(answer), True)
        self.seconds += time.thread_time() - began

    def end(self) -> bool:
        """All processes are gone. False if there are more sockets than before the first call: the
        kernel frees those that only hold each other when another is closed, whenever that is.
        """
        self._lent_on = False
        return self._device is None or self._open_sockets("self") <= self._at_rest

    def _guarded_verdict(self, number: int, pid: int, arguments: list[int]) -> int:
        try:
            return self._verdict(number, pid, arguments)
        except Exception:  # what cannot be made out is not allowed
            return errno.EPERM

    def _verdict(self, number: int, pid: int, arguments: list[int]) -> int:
        """0, or the error that the call fails with."""
        flags = (
            arguments[0]
            if number == self._clone
            else _CLONE_VM | _CLONE_VFORK
            if number == self._vfork
            else 0
        )
        if number in self._forks and may_clone(flags):
            self._lent_on = self._lent_on or (bool(flags & _CLONE_VM) and self._lends_on(pid))
            return errno.EAGAIN if self._ignores_children(pid) else 0
        if number in self._sockets and (number != self._socket or may_open_socket(*arguments[:3])):
            return errno.EMFILE if self._open_sockets(pid) >= MAX_SOCKETS else 0
        if number == self._sigaction and self._waits_for_children(pid, arguments[1]):
            return 0
        if number == self._timer and self._wakes_nobody(pid, arguments[1]):
            return 0
        locks = number == self._flock or (
            number == self._fcntl and arguments[1] & 0xFFFFFFFF in _LOCKS
        )
        return (
            0 if locks and self._is_in_own_folder(pid, arguments[0] & 0xFFFFFFFF) else errno.EPERM
        )

    def _ignores_children(self, pid: int) -> bool:
        """The CPU time of children that nobody waits for is counted nowhere."""
        ignored = re.search(rb"^SigIgn:\s*([0-9a-f]+)", self._read(pid, "status"), re.MULTILINE)
        return ignored is None or bool(int(ignored[1], 16) >> (SIGCHLD - 1) & 1)

    def _open_sockets(self, pid: int | str) -> int:
        """Of the slot's network."""
        used = _USED.search(self._read(pid, "net/sockstat"))
        return int(used[1]) if used is not None else MAX_SOCKETS

    def _waits_for_children(self, pid: int, address: int) -> bool:
        """Whether the requested SIGCHLD action keeps dead children as zombies, so that their CPU
        time is counted.
        """
        data = self._own_memory(pid, address, _SIGACTION.size)
        handler, flags = _SIGACTION.unpack(data) if data else (_SIG_IGN, 0)
        return handler != _SIG_IGN and not flags & _SA_NOCLDWAIT

    def _wakes_nobody(self, pid: int, address: int) -> bool:
        """Whether a timer's signal cannot resume or kill a stopped process."""
        data = self._own_memory(pid, address, _SIGEVENT.size)
        return bool(data) and _SIGEVENT.unpack(data)[1] not in (SIGKILL, SIGCONT)

    def _own_memory(self, pid: int, address: int, size: int) -> bytes:
        """What stands there, if nobody but the process can change it; else nothing."""
        maps = _OWN.findall(self._read(pid, "maps"))
        if not any(
            int(low, 16) <= address and address + size <= int(high, 16) for low, high in maps
        ):
            return b""
        if self._lent_on or self._has_company(pid):
            return b""
        with suppress(OSError, OverflowError):
            memory = os.open(f"{pid}/mem", os.O_RDONLY, dir_fd=self._proc)
            try:
                data = os.pread(memory, size, address)
            finally:
                os.close(memory)
            return data if len(data) == size else b""
        return b""

    def _is_in_own_folder(self, pid: int, descriptor: int) -> bool:
        """Whether a file is one that no other call sees, and that is gone, with its locks, when
        this one has ended.

        Only asked by a process of one thread: another could put another file in its place after it
        was looked at.
        """
        if self._device is None or b"\nThreads:\t1\n" not in self._read(pid, "status"):
            return False
        with suppress(OSError):
            return os.stat(f"{pid}/fd/{descriptor}", dir_fd=self._proc).st_dev == self._device
        return False

    def _lends_on(self, pid: int) -> bool:
        """Whether a process that makes another may live in memory lent by its parent (vfork): the
        parent would go on as soon as this one is dead, though the other still lived there.
        """
        parent, flags = self._parent_and_flags(pid)
        if not flags & _PF_FORKNOEXEC or parent == os.getpid():
            return False
        try:
            folder = os.open(f"{parent}/task", os.O_RDONLY, dir_fd=self._proc)
            try:
                names = os.listdir(folder)  # noqa: PTH208  a descriptor
            finally:
                os.close(folder)
        except OSError:  # the parent is gone
            return True
        states = (
            self._read(parent, f"task/{name}/stat").rpartition(b")")[2].split()[:1]
            for name in names
        )
        # who waits for memory is in none of these
        return any(state not in ([b"S"], [b"T"]) for state in states)

    def _parent_and_flags(self, pid: int) -> tuple[int, int]:
        """Of a process that is gone: no parent, and as if it had been forked."""
        fields = self._read(pid, "stat").rpartition(b")")[2].split()
        return (int(fields[1]), int(fields[6])) if len(fields) > 6 else (0, _PF_FORKNOEXEC)

    def _has_company(self, pid: int) -> bool:
        """Whether somebody else may write to its memory: a thread of its own; after a vfork, one of
        its parent's.
        """
        while b"\nThreads:\t1\n" in self._read(pid, "status"):
            parent, flags = self._parent_and_flags(pid)
            if not flags & _PF_FORKNOEXEC or parent == 1:
                return False
            pid = parent
        return True

    def _read(self, pid: int | str, name: str) -> bytes:
        with suppress(OSError):
            descriptor = os.open(f"{pid}/{name}", os.O_RDONLY, dir_fd=self._proc)
            try:
                parts, size = list[bytes](), 0
                while size < _MOST_READ and (part := os.read(descriptor, 1 << 16)):
                    parts.append(part)
                    size += len(part)
                return b"".join(parts) if size < _MOST_READ else b""
            finally:
                os.close(descriptor)
        return b""


def _numbers(*names: str) -> set[int]:
    found = set[int]()
    for name in names:
        with suppress(OSError):  # it has none on this machine
            found.add(number_of(name))
    return found
