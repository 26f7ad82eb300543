"""The files of a slot, and what they and the slot's reply come to.

Code, stdout, stderr and value are memory files. The kernel bounds them by RLIMIT_FSIZE while the
snippet writes, so a flood of output costs neither memory nor reading time here: only the head and
the tail that are kept are ever read.
"""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable

from hrm_agent.environment.base import ExecutionResult, Limits
from hrm_agent.environment.sandbox.protocol import MEMORY_ERROR, Ended, Reply
from hrm_agent.trajectory import ToolStatus

__all__ = [
    "OUTPUT_FACTOR",
    "SlotFiles",
    "infrastructure_failure",
    "outcome",
    "session_gone",
    "signal_name",
]

OUTPUT_FACTOR = 64
"""A snippet may write this many times `Limits.output_bytes` to one file before its writes fail
(`output_limit`).
"""
_CUT_NOTE_BYTES = 80
_MODE = 0o777
"""Mode of a new memory file. A snippet can change it where host and snippet are the same user."""
_WORDS = {
    Ended.OUT_OF_MEMORY: "The processes of the snippet held more memory than their limit.\n",
    Ended.TOO_MANY: "The snippet had more processes and threads than its limit.\n",
    Ended.GONE: "The session's process had ended by itself.\n",
    Ended.BROKEN: "The session's process answered without being asked.\n",
    Ended.DENIED: "The snippet made system calls of another architecture.\n",
    Ended.UNWATCHED: "The processes of the snippet could not be looked at, and were ended.\n",
}


_SEEN = {
    Ended.TIMEOUT: ToolStatus.TIMEOUT,
    Ended.OUT_OF_MEMORY: ToolStatus.OUT_OF_MEMORY,
    Ended.DENIED: ToolStatus.DENIED,
}
"""Ends that the slot itself, or the kernel in the call's cgroup, has brought about."""


class SlotFiles:
    """Four memory files that a slot keeps through its calls."""

    def __init__(self) -> None:
        self.descriptors = [os.memfd_create(name) for name in ("code", "stdout", "stderr", "value")]
        """In the order in which the zygote expects them."""
        self._code_bytes = 0

    def prepare(self, code: str) -> None:
        """Empty what the last call wrote, and put the code in. Where in a file one stands is shared
        with the slot.
        """
        for descriptor in self.descriptors:
            what = os.fstat(descriptor)
            if what.st_size or what.st_blocks:  # pages may lie beyond the end, too
                os.ftruncate(descriptor, 0)
            # changed by the last call; the next one has to open them
            if stat.S_IMODE(what.st_mode) != _MODE:
                os.fchmod(descriptor, _MODE)
            os.lseek(descriptor, 0, os.SEEK_SET)
        # The line end lets a child that read nothing be told from one that read an empty snippet.
        data = code.encode("utf-8", "backslashreplace") + b"\n"
        self._code_bytes = len(data)
        os.pwrite(self.descriptors[0], data, 0)

    @property
    def started(self) -> bool:
        """True if the child read its code: the last thing before the snippet runs, and nothing that
        it could undo.

        A session's process keeps the file, and could: of its calls the slot's word counts.
        """
        return os.lseek(self.descriptors[0], 0, os.SEEK_CUR) == self._code_bytes

    def size(self, index: int) -> int:
        """Bytes written to file `index`."""
        return os.fstat(self.descriptors[index]).st_size

    def read(self, index: int, limit: int, size: int) -> str:
        """At most `limit` bytes of a file, the middle cut out and its size told."""
        if size == 0:
            return ""
        descriptor = self.descriptors[index]
        if size <= limit:
            return os.pread(descriptor, limit, 0).decode("utf-8", "replace")
        head, tail = (
            os.pread(descriptor, limit // 2, 0),
            os.pread(descriptor, limit // 2, size - limit // 2),
        )
        note = f"\n[... {size - len(head) - len(tail)} of {size} bytes cut ...]\n"
        return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")

    def value(self, limit: int) -> tuple[str | None, str | None, bool]:
        """Repr and JSON of the value, and whether there is a MemoryError instead. All of it is the
        snippet's claim.
        """
        size = self.size(3)
        if size == 0:
            return None, None, False
        data = os.pread(self.descriptors[3], 2 * limit + 4 * _CUT_NOTE_BYTES, 0)
        if data == MEMORY_ERROR:
            return None, None, True
        length, found, rest = data.partition(b"\n")
        if not found or len(length) > 9 or not length.isdigit():
            return data[:limit].decode("utf-8", "replace"), None, False
        shown, encoded = rest[: int(length)], rest[int(length) :]
        return (
            shown[: limit + _CUT_NOTE_BYTES].decode("utf-8", "replace") or None,
            _json(encoded),
            False,
        )

    def close(self) -> None:
        """Free the files; harmless a second time."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def _json(encoded: bytes) -> str | None:
    try:
        text = encoded.decode()
        _STRICT.decode(text)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
"""Reads no NaN and no infinity."""


def outcome(
    reply: Reply,
    files: SlotFiles,
    limits: Limits,
    isolation: str,
    *,
    started: bool,
    oom_killed: Callable[[], bool],
) -> ExecutionResult:
    """The typed outcome of a call that ended as `reply` says.

    `oom_killed`: whether the kernel has killed for want of memory meanwhile; asked only where that
    makes a difference.
    """
    stdout_bytes, stderr_bytes = files.size(1), files.size(2)
    full = max(stdout_bytes, stderr_bytes) >= limits.output_bytes * OUTPUT_FACTOR
    value, value_json, memory_error = files.value(limits.output_bytes)
    status = _status(reply, started=started, full=full)
    if status is None:
        status = _status_of_exit(
            _exit_code(reply), reply, limits, memory_error=memory_error, oom_killed=oom_killed
        )
    return ExecutionResult(
        status=status,
        stdout=files.read(1, limits.output_bytes, stdout_bytes),
        stderr=files.read(2, limits.output_bytes, stderr_bytes) + _ending(reply),
        value=value,
        value_json=value_json,
        duration_seconds=reply.duration_seconds,
        cpu_seconds=reply.cpu_seconds,
        peak_memory_bytes=reply.peak_bytes,
        stdout_bytes=stdout_bytes,
        stderr_bytes=stderr_bytes,
        isolation=isolation,
    )


def infrastructure_failure(reason: str, isolation: str) -> ExecutionResult:
    """What a call comes to that no snippet is to blame for."""
    return ExecutionResult(status=ToolStatus.INFRASTRUCTURE, stderr=reason, isolation=isolation)


def session_gone(isolation: str) -> ExecutionResult:
    """The outcome of a call whose session's process has ended by itself before it: as of
    `Ended.GONE`.
    """
    return ExecutionResult(status=ToolStatus.ERROR, stderr=_WORDS[Ended.GONE], isolation=isolation)


def _ending(reply: Reply) -> str:
    """What the snippet could not say itself."""
    code = _exit_code(reply) if reply.ended == Ended.EXITED else 0
    return (
        f"Process ended by {signal_name(-code)}\n"
        if code < 0
        else _WORDS.get(Ended(reply.ended), "")
    )


def signal_name(number: int) -> str:
    """SIGKILL, SIGRTMIN+3; `signal 32` of those that have no name: the kernel has 64, of which a
    snippet chooses.
    """
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit_code(reply: Reply) -> int:
    """Exit code, or minus the number of the signal that ended the process."""
    if os.WIFSIGNALED(reply.status):
        return -os.WTERMSIG(reply.status)
    return os.WEXITSTATUS(reply.status)


def _status(reply: Reply, *, started: bool, full: bool) -> ToolStatus | None:
    """The end as the slot has seen it (None: the exit status decides)."""
    if reply.ended == Ended.GONE:
        return ToolStatus.ERROR
    if reply.ended in (Ended.KILLED, Ended.NOT_STARTED) or not started:
        return ToolStatus.INFRASTRUCTURE
    if (seen := _SEEN.get(Ended(reply.ended))) is not None:
        return seen
    if full:
        return ToolStatus.OUTPUT_LIMIT
    return (
        ToolStatus.ERROR if reply.ended in (Ended.BROKEN, Ended.TOO_MANY, Ended.UNWATCHED) else None
    )


def _status_of_exit(
    code: int, reply: Reply, limits: Limits, *, memory_error: bool, oom_killed: Callable[[], bool]
) -> ToolStatus:
    """A snippet can end by any signal that it chooses, also as the first process of its namespace:
    what the signals of the kernel's own limits mean has to be seen by something else, too.
    """
    if code in (-signal.SIGXCPU, -signal.SIGKILL) and reply.cpu_seconds >= limits.cpu_seconds:
        return ToolStatus.TIMEOUT
    if (code == -signal.SIGKILL and oom_killed()) or (code == 1 and memory_error):
        return ToolStatus.OUT_OF_MEMORY
    return ToolStatus.OK if code == 0 else ToolStatus.ERROR
