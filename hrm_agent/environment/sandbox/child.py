"""Process of a call or session: what its slot knows about it, and the code that runs in it before
the snippet does.
"""

from __future__ import annotations

# The package is loaded under another name (see __init__).
# ruff: noqa: TID252
import fcntl
import os
import time
from contextlib import suppress
from types import ModuleType
from typing import NoReturn

from . import kernel, landlock, seccomp, snippet
from .memory import Tree
from .protocol import REQUEST, Request

__all__ = [
    "CHANNEL",
    "CODE",
    "PROC",
    "REQUESTS",
    "Child",
    "Inside",
    "reserve_channel",
    "serve_session",
]

CODE, PROC, CHANNEL, REQUESTS = 4, 6, 7, 9
"""File descriptors of a slot. From CHANNEL the slot reads the report of a session's process that a
call has ended. To REQUESTS it writes the next request.
"""
_ANSWERS, _ASKED = CODE + 1, CODE + 2
"""Other ends of CHANNEL and REQUESTS, in a session's process."""


class Child:
    """Process of a call or session, as seen by its slot."""

    __slots__ = ("is_session", "memory_bytes", "pid", "pidfd", "seen_seconds", "tree")

    def __init__(self, pid: int, pidfd: int, memory_bytes: int, tree: Tree) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.memory_bytes = memory_bytes
        self.tree = tree
        self.seen_seconds = 0.0
        """CPU time of the process tree at the last check."""
        self.is_session = False

    def cpu_seconds(self) -> float:
        """CPU time so far, without child processes. The kernel's clock id is computed from the
        pid.
        """
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    def used_seconds(self, until: float) -> float:
        """CPU time so far of the whole process tree, or of the process if it is alone."""
        own = self.cpu_seconds()
        return max(own, self.tree.look(until)[1]) if self.tree.several else own

    def has_spoken(self) -> bool:
        """True if a session's process has sent data without a request, or has closed its end of the
        pipe.
        """
        try:
            os.read(CHANNEL, 1)
        except BlockingIOError:
            return False
        return True


def reserve_channel() -> None:
    """Close a session's descriptors, and keep their numbers reserved."""
    os.dup2(0, CHANNEL)
    os.dup2(0, REQUESTS)


class Inside:
    """Code of a child of the slot."""

    __slots__ = ("_base_bytes", "_grouped", "_isolated", "_module")

    def __init__(self, *, isolated: bool, grouped: bool) -> None:
        self._isolated = isolated
        self._grouped = grouped
        self._module = snippet.new_module()
        self._base_bytes = kernel.address_space(PROC)
        """Address space of the warm interpreter, in bytes."""

    @property
    def base_bytes(self) -> int:
        return self._base_bytes

    def begin(self, request: Request, channel: tuple[int, ...]) -> NoReturn:
        """Give up the slot's rights and descriptors, then run the code. Never returns into the
        slot's frames.
        """
        try:
            kernel.die_with_parent()
            if self._isolated:
                kernel.drop_capabilities()
                if self._grouped:
                    seccomp.give_up_spawning()
            else:  # the child shares a pid namespace with the slot, and could signal the slot
                with suppress(OSError):
                    landlock.scope()
            os.setsid()
            kernel.own_descriptors(
                PROC, [1, 2, snippet.VALUE_DESCRIPTOR, *([CODE] if channel else [])]
            )
            seconds = None if channel else request.cpu_seconds
            kernel.limit_child(self._base_bytes + request.memory_bytes, request.file_bytes, seconds)
            source = snippet.read_code(CODE)
            if channel:
                _keep_channel(channel)
                self.run_session(source, request.seed, request.value_bytes)
            os.closerange(CODE, kernel.MAX_DESCRIPTORS)
            self.run_alone(source, request.seed, request.value_bytes)
        finally:
            os._exit(1)

    def run_alone(self, source: str, seed: int, value_bytes: int) -> NoReturn:
        """Run a stateless call, after the slot's rights and descriptors were given up and the code
        was read.
        """
        code = 1
        try:
            if snippet.may_draw(source):
                snippet.reseed(seed)
            code = snippet.run(source, self._module, value_bytes)
        finally:
            os._exit(code)

    def run_session(self, source: str, seed: int, value_bytes: int) -> NoReturn:
        """Run a session, after its pipe ends were set up and the code of its first call was
        read.
        """
        try:
            snippet.reseed(seed)
            serve_session(source, self._module, value_bytes)
        finally:
            os._exit(1)


def _keep_channel(channel: tuple[int, ...]) -> None:
    """Close all descriptors but the files of a session's process and its pipe ends."""
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, REQUESTS + 1) for descriptor in channel]
    for target, descriptor in zip((_ANSWERS, _ASKED), aside, strict=True):
        os.dup2(descriptor, target)
    os.closerange(_ASKED + 1, kernel.MAX_DESCRIPTORS)


def serve_session(source: str, module: ModuleType, value_bytes: int) -> None:
    """Run calls one after the other in one module until the slot closes the pipe. `source`: code of
    the first call.
    """
    while True:
        os.write(_ANSWERS, bytes([snippet.run(source, module, value_bytes)]))
        data = os.read(_ASKED, REQUEST.size)
        if len(data) < REQUEST.size:
            return
        value_bytes = Request(*REQUEST.unpack(data)).value_bytes
        # the host has emptied these files
        for descriptor in (1, 2, snippet.VALUE_DESCRIPTOR, CODE):
            os.lseek(descriptor, 0, os.SEEK_SET)
        snippet.open_streams()
        source = snippet.read_code(CODE)
