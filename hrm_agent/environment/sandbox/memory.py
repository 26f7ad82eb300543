"""Process tree below a process, from /proc: its memory, and how it is stopped and ended as a
whole.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

__all__ = ["Tree", "figure", "kill_orphans"]

SLOW_SECONDS = 0.05
"""Duration in seconds of a look beyond which the tree is stopped during the next look. A process
cannot be inspected while it forks, and other processes that run meanwhile prolong the wait.
"""
STOP_LOOKS = 20
"""Number of checks after SIGSTOP for processes that were forked meanwhile."""
_SHORTLY = 0.001
_KIB = 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Tree:
    """Process and its descendants. Without a /proc that shows the descendants, only the process."""

    __slots__ = (
        "_adopter",
        "_buried_seconds",
        "_confined",
        "_pid",
        "_proc",
        "_slow",
        "_status",
        "peak",
        "several",
        "stopped",
        "threads",
    )

    def __init__(
        self, proc: int | None, pid: int, adopter: int | None = None, *, confined: bool = False
    ) -> None:
        """Make a tree. `adopter`: pid of this process if orphans of the tree become its children
        and it has no other children. `confined`: signals of this process reach only the tree.
        """
        self._proc = proc
        self._pid = pid
        self._adopter = adopter
        self._confined = confined
        self._buried_seconds = 0.0
        self._status: int | None = None
        self.several = False
        """True once the tree was seen to have more than one process."""
        self._slow = False
        self.stopped = False
        self.peak = 0
        """Largest memory seen, in bytes."""
        self.threads = 0
        """Number of threads of all processes of the tree at the last look."""

    def members(self) -> list[int]:
        """Process ids, parents before children."""
        found = [self._pid]
        index = 0
        self.threads = 0
        if self._adopter is not None:
            found += [
                pid
                for pid in self._children_of(self._adopter)
                if pid != self._pid and not self._bury(pid)
            ]
        while index < len(found):
            threads = self._threads(found[index])
            found += [pid for pid in self._children_of(found[index], threads) if pid not in found]
            self.threads += len(threads)
            index += 1
        return found

    def children(self) -> list[int]:
        """Children of the first process."""
        return list(self._children_of(self._pid))

    def look(self, until: float) -> tuple[int, float]:
        """Pair (bytes, CPU seconds) of a tree of several processes. Shared memory counts once. CPU
        time of ended processes still counts.

        Returns 0 and 0 for a single process, which the kernel's limits suffice for. `until`: time,
        by the monotonic clock, at which the look ends; of a tree that takes longer, only a part is
        measured.
        """
        began = time.monotonic()
        members = self.members()
        if len(members) < 2 and not self._buried_seconds:
            return 0, 0.0
        held = 0
        seconds = self._buried_seconds
        self.several = True
        still = self._slow and not self.stopped
        if still:
            self.stop()
        for pid in members:
            if time.monotonic() >= until:  # a process that forks delays its inspection
                break
            held += self._held_bytes(pid)
            seconds += self._cpu_seconds(pid)
        if still:
            self.go_on()
        self._slow = time.monotonic() - began > SLOW_SECONDS
        self.peak = max(self.peak, held)
        return held, seconds

    def peak_bytes(self) -> int:
        """Largest resident memory so far in bytes: of the first process, or of the whole tree if
        the tree was seen to be larger.
        """
        if self._proc is None:
            return self.peak
        if self._status is None:
            with suppress(OSError):
                self._status = os.open(f"{self._pid}/status", os.O_RDONLY, dir_fd=self._proc)
        if self._status is not None:
            with suppress(OSError):
                self.peak = max(
                    self.peak, figure(os.pread(self._status, 4096, 0), b"VmHWM:") * _KIB
                )
        return self.peak

    def signal(self, number: int, *, itself: bool = True) -> None:
        """Send a signal to every process of the tree, including processes that are made while this
        method runs.
        """
        # pid -1 signals all processes at once: processes that fork and exit in a chain would be
        # faster than a list of them could be made
        if self._confined:
            with suppress(ProcessLookupError):
                os.kill(-1, number)
            return
        told: set[int] = set() if itself else {self._pid}
        while new := [pid for pid in self.members() if pid not in told]:
            for pid in new:
                with suppress(OSError):
                    os.kill(pid, number)
            told.update(new)

    def stop(self) -> None:
        """Stop the tree until `go_on`."""
        self.signal(signal.SIGSTOP)
        self.stopped = True

    def stays_stopped(self) -> bool:
        """True if the tree stays stopped after `stop`. For trees whose processes may still make
        others: a new process may be missed, since its parent can be gone when it is inspected.
        """
        for _ in range(STOP_LOOKS):
            time.sleep(_SHORTLY)
            if not self.is_still():
                self.stop()
                time.sleep(_SHORTLY)
                if not self.is_still():
                    return False
        return True

    def is_still(self) -> bool:
        """True if all threads of a stopped tree are stopped. All are looked at, since the first
        thread of a process may end before the others.

        A thread that waits in the kernel (D) for a stopped child after a vfork counts as stopped,
        since it stops as soon as it wakes.
        """
        threads = (
            f"{pid}/task/{thread}/stat" for pid in self.members() for thread in self._threads(pid)
        )
        states = (self._read(path).rpartition(b")")[2].split()[:1] for path in threads)
        return all(not state or state[0] in b"TtZXD" for state in states)

    def go_on(self) -> None:
        """Continue a stopped tree."""
        self.signal(signal.SIGCONT)
        self.stopped = False

    def close(self) -> None:
        """Close the status file; harmless a second time."""
        if self._status is not None:
            os.close(self._status)
            self._status = None

    def _bury(self, pid: int) -> bool:
        """Reap an adopted process if it has ended, and keep its CPU time. True if the process is
        gone.
        """
        try:
            ended, _, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return True
        self._buried_seconds += usage.ru_utime + usage.ru_stime if ended else 0.0
        return ended != 0

    def _children_of(self, pid: int, threads: list[str] | None = None) -> Iterator[int]:
        for thread in self._threads(pid) if threads is None else threads:
            yield from map(int, self._read(f"{pid}/task/{thread}/children").split())

    def _threads(self, pid: int) -> list[str]:
        if self._proc is None:
            return []
        with suppress(OSError):
            folder = os.open(f"{pid}/task", os.O_RDONLY, dir_fd=self._proc)
            try:
                return os.listdir(folder)  # noqa: PTH208  a descriptor
            finally:
                os.close(folder)
        return []

    def _held_bytes(self, pid: int) -> int:
        """Memory of a process in bytes, with its part of shared memory. If the process forbids
        inspection, its whole resident memory.

        The memory is read from the first thread that has any, since a process lives on when its
        main thread has ended.
        """
        if found := figure(self._read(f"{pid}/smaps_rollup"), b"Pss:"):
            return found * _KIB
        folders = [f"{pid}/task/{thread}" for thread in self._threads(pid)]
        shares = (
            figure(self._read(f"{folder}/smaps_rollup"), b"Pss:") * _KIB for folder in folders
        )
        return next(filter(None, shares), 0) or max(map(self._resident_bytes, folders), default=0)

    def _resident_bytes(self, folder: str) -> int:
        fields = self._read(f"{folder}/statm").split()
        return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0

    def _cpu_seconds(self, pid: int) -> float:
        """CPU seconds of a process and of children that it has waited for."""
        fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS_A_SECOND

    def _read(self, path: str) -> bytes:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY, dir_fd=self._proc)
            try:
                return os.read(descriptor, 1 << 16)
            finally:
                os.close(descriptor)
        return b""


def kill_orphans(proc: int | None, *, confined: bool) -> None:
    """Kill all descendants of this process, a subreaper. Without a pid namespace they would outlive
    the call.
    """
    below = Tree(proc, os.getpid(), confined=confined)
    for _ in range(100):
        below.signal(signal.SIGKILL, itself=False)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_SHORTLY)


def figure(text: bytes, name: bytes = b"") -> int:
    """Number on the line that begins with `name`, such as 12 in `usage_usec 12` (0 without such a
    line).

    The rest of a line may hold text chosen by a snippet: the kernel puts process names into its
    files.
    """
    line = (b"\n" + text).partition(b"\n" + name)[2].partition(b"\n")[0]
    words = line.split(maxsplit=1)
    return int(words[0]) if words and words[0].isdigit() else 0
