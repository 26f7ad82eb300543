"""Answers the filter's notifications: counts refused system calls, and decides calls that depend on
more than numbers and arguments.

The calling process waits for the answer, and the slot answers between its other checks. While a
session is parked (stopped), no call is answered. So its processes cannot make others, and all of
them can be stopped.

Data cannot change after it was checked. Arguments are in registers. A structure in memory, or the
descriptor of a file to be locked, is only accepted from a process that has one thread and shares
neither memory nor descriptors with another process.
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
"""Maximum number of sockets of all processes of a slot, including those in flight between the
processes. They are limited because the memory of their buffers is not counted. Processes that ask
at the same moment may get some more.
"""
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
"""Structs seccomp_notif (id, pid, flags, number, architecture, instruction, six arguments) and
seccomp_notif_resp.
"""
_GO_ON = 1
_SIG_IGN, _SA_NOCLDWAIT = 1, 2
_SIGACTION = struct.Struct("=QQ")
"""Kernel's struct: handler, flags, ..."""
_SIGEVENT = struct.Struct("=Qi")
"""Kernel's struct: value, signal, ..."""
_CLONE_VM, _CLONE_VFORK = 0x00000100, 0x00004000
_PF_FORKNOEXEC = 0x40
"""Process flag: it was forked, and has not executed another program."""
_USED = re.compile(rb"^sockets: used (\d+)", re.MULTILINE)
_OWN = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ...p [0-9a-f]+ [0-9a-f:]+ 0 ", re.MULTILINE)
"""Entries of a process's maps without a file. A file's content can be changed by others, even if
the map is private.
"""
_MOST_READ = 1 << 20
"""Size limit of a file of /proc: a snippet determines the number of its maps, and the length of
paths in them.
"""
_LOCKS = (5, 6, 7, 36, 37, 38)
"""Commands of fcntl: F_GETLK, F_SETLK, F_SETLKW, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW."""


class Supervisor:
    """Supervisor of one slot."""

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
        """Make a supervisor. `proc`: descriptor of a /proc that shows the slot's processes.
        `folder`: the slot's working folder. `isolated`: the slot is in namespaces, where new
        processes and sockets need permission and the folder is a separate device.
        """
        self._listener = listener
        self._proc = proc
        self._device = os.stat(folder).st_dev if isolated else None  # noqa: PTH116
        self._clone, self._socket, self._sigaction = map(
            number_of, ("clone", "socket", "rt_sigaction")
        )
        self._fcntl, self._flock, self._timer = map(number_of, ("fcntl", "flock", "timer_create"))
        self._vfork = next(iter(_numbers("vfork")), None)
        self._forks = _numbers("clone", "fork", "vfork") if isolated else set[int]()
        self._sockets = _numbers("socket", "socketpair") if isolated else set[int]()
        self._lent_on = False
        """True if two processes may share memory while neither waits for the other."""
        self._at_rest = self._open_sockets("self")
        self._architecture = ARCHITECTURES[os.uname().machine][0]
        self.foreign = False
        """True if a call of another architecture was made. The call is not answered, and the
        snippet's process tree has to be killed.
        """
        self.refused: dict[int, int] = {}
        """Refused system calls since the last reset: number -> count."""
        self.seconds = 0.0
        """CPU time of all answers, which is charged to the snippet."""

    def begin(self) -> None:
        """Reset the counts for another call."""
        self.refused = {}
        self.seconds = 0.0
        self.foreign = False

    def answer(self) -> None:
        """Answer one waiting call, if it still waits."""
        began = time.thread_time()
        told = bytearray(_NOTIFICATION.size)
        with suppress(OSError):  # the process was killed
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
        """Reset after all processes are gone. False if there are more sockets than before the first
        call: sockets that only hold each other are freed by the kernel at some later close.
        """
        self._lent_on = False
        return self._device is None or self._open_sockets("self") <= self._at_rest

    def _guarded_verdict(self, number: int, pid: int, arguments: list[int]) -> int:
        try:
            return self._verdict(number, pid, arguments)
        except Exception:  # a call that cannot be checked is refused
            return errno.EPERM

    def _verdict(self, number: int, pid: int, arguments: list[int]) -> int:
        """Error that the call fails with, or 0."""
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
        """True if a process ignores the death of its children, whose CPU time would then not be
        counted.
        """
        ignored = re.search(rb"^SigIgn:\s*([0-9a-f]+)", self._read(pid, "status"), re.MULTILINE)
        return ignored is None or bool(int(ignored[1], 16) >> (SIGCHLD - 1) & 1)

    def _open_sockets(self, pid: int | str) -> int:
        """Number of open sockets in the slot's network."""
        used = _USED.search(self._read(pid, "net/sockstat"))
        return int(used[1]) if used is not None else MAX_SOCKETS

    def _waits_for_children(self, pid: int, address: int) -> bool:
        """True if the requested SIGCHLD action keeps dead children as zombies, so that their CPU
        time is counted.
        """
        data = self._own_memory(pid, address, _SIGACTION.size)
        handler, flags = _SIGACTION.unpack(data) if data else (_SIG_IGN, 0)
        return handler != _SIG_IGN and not flags & _SA_NOCLDWAIT

    def _wakes_nobody(self, pid: int, address: int) -> bool:
        """True if a timer's signal cannot resume or kill a stopped process."""
        data = self._own_memory(pid, address, _SIGEVENT.size)
        return bool(data) and _SIGEVENT.unpack(data)[1] not in (SIGKILL, SIGCONT)

    def _own_memory(self, pid: int, address: int, size: int) -> bytes:
        """Memory of a process at an address, if only the process itself can change it (empty
        otherwise).
        """
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
        """True if a file is not visible to other calls, and is gone with its locks when this call
        has ended.

        The answer is only true for a process with one thread: another thread could replace the
        descriptor after the check.
        """
        if self._device is None or b"\nThreads:\t1\n" not in self._read(pid, "status"):
            return False
        with suppress(OSError):
            return os.stat(f"{pid}/fd/{descriptor}", dir_fd=self._proc).st_dev == self._device
        return False

    def _lends_on(self, pid: int) -> bool:
        """True if a process that makes another may live in memory lent by its parent (vfork). The
        parent would continue as soon as this process is dead, while the new process still uses the
        same memory.
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
        # a parent that waits after a vfork is in none of these states
        return any(state not in ([b"S"], [b"T"]) for state in states)

    def _parent_and_flags(self, pid: int) -> tuple[int, int]:
        """Pair (parent, flags) of a process. For a process that is gone: 0, and the flag of a
        forked process.
        """
        fields = self._read(pid, "stat").rpartition(b")")[2].split()
        return (int(fields[1]), int(fields[6])) if len(fields) > 6 else (0, _PF_FORKNOEXEC)

    def _has_company(self, pid: int) -> bool:
        """True if another thread may write to the memory of a process: a thread of the process or,
        after a vfork, of its parent.
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
                parts = list[bytes]()
                size = 0
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
        with suppress(OSError):  # this machine does not have the call
            found.add(number_of(name))
    return found
