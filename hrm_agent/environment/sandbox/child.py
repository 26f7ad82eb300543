"""The process of a call or of a session, as its slot sees it; and what a session's process does between calls."""

from __future__ import annotations

# The package is loaded under another name (see __init__).
# ruff: noqa: TID252
import fcntl
import os
import time
from types import ModuleType

from . import kernel, snippet
from .memory import Tree
from .protocol import REQUEST, Request

__all__ = ["CHANNEL", "CODE", "REQUESTS", "Child", "reserve_channel", "serve_session"]

CODE, CHANNEL, REQUESTS = 4, 7, 9
"""Descriptors of a slot. On CHANNEL a session's process says that a call has ended; the next is written to REQUESTS."""


class Child:
    """The process of a call, or of a session."""

    __slots__ = ("is_session", "memory_bytes", "pid", "pidfd", "seen_seconds", "tree")

    def __init__(self, pid: int, pidfd: int, memory_bytes: int, tree: Tree) -> None:
        self.pid, self.pidfd, self.memory_bytes, self.tree = pid, pidfd, memory_bytes, tree
        self.seen_seconds = 0.0
        """CPU time of its tree when it was last looked at."""
        self.is_session = False

    def cpu_seconds(self) -> float:
        """CPU time so far, without that of processes which it started: the kernel's clock id is made of the pid."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def used_seconds(self, until: float) -> float:
        """CPU time of its whole tree so far, where that is more than one process."""
        own = self.cpu_seconds()
        return max(own, self.tree.look(until)[1]) if self.tree.several else own

    def has_spoken(self) -> bool:
        """True if a session's process has said something before it was asked, or cannot be asked any more."""
        try:
            os.read(CHANNEL, 1)
        except BlockingIOError:
            return False
        return True


def reserve_channel() -> None:
    """Close a session's descriptors, and keep their numbers from being given to others."""
    os.dup2(0, CHANNEL)
    os.dup2(0, REQUESTS)


def serve_session(channel: tuple[int, ...], module: ModuleType) -> None:
    """Run one call after the other in one module, until the slot closes the pipe."""
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, REQUESTS + 1) for descriptor in channel]
    answers, requests = (os.dup2(descriptor, CODE + 1 + place) for place, descriptor in enumerate(aside))
    os.closerange(requests + 1, kernel.MAX_DESCRIPTORS)
    while True:
        data = os.read(requests, REQUEST.size)
        if len(data) < REQUEST.size:
            return
        for descriptor in (1, 2, snippet.VALUE_DESCRIPTOR, CODE):  # the host has emptied these files
            os.lseek(descriptor, 0, os.SEEK_SET)
        snippet.open_streams()
        source = snippet.read_code(CODE)
        os.write(answers, bytes([snippet.run(source, module, Request(*REQUEST.unpack(data)).value_bytes)]))
