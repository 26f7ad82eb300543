"""Memory files of a slot, and the outcome made from them and the slot's reply.

Code, stdout, stderr and value are memory files. The kernel limits their size by RLIMIT_FSIZE while
the snippet writes, and the host reads only the head and the tail that it keeps. So a flood of
output costs the host neither memory nor time.
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
"""Multiple of `Limits.output_bytes` that a snippet may write to one file before its writes fail
(`output_limit`).
"""
_CUT_NOTE_BYTES = 80
_MODE = 0o777
"""Mode of a new memory file. A snippet can change it if host and snippet are the same user."""
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
"""Status by end, for ends that the slot, or the kernel in the call's cgroup, has caused."""


class SlotFiles:
    """Four memory files that a slot keeps for all its calls."""

    def __init__(self) -> None:
        self.descriptors = [os.memfd_create(name) for name in ("code", "stdout", "stderr", "value")]
        """File descriptors in the order expected by the zygote."""
        self._code_bytes = 0

    def prepare(self, code: str) -> None:
        """Empty the files of the last call and write the code. The file offset is shared with the
        slot.
        """
        for descriptor in self.descriptors:
            what = os.fstat(descriptor)
            if what.st_size or what.st_blocks:  # pages may also exist beyond the end
                os.ftruncate(descriptor, 0)
            # the last call may have changed the mode, and the next call has to open the file
            if stat.S_IMODE(what.st_mode) != _MODE:
                os.fchmod(descriptor, _MODE)
            os.lseek(descriptor, 0, os.SEEK_SET)
        # The line end makes each snippet at least a byte long. Otherwise the file offset of an empty
        # snippet would be 0 whether or not it was read.
        data = code.encode("utf-8", "backslashreplace") + b"\n"
        self._code_bytes = len(data)
        os.pwrite(self.descriptors[0], data, 0)

    @property
    def started(self) -> bool:
        """True if the child has read its code, which is the last step before the snippet runs. The
        snippet cannot reset this, since the child closes the file first.

        A session's process keeps the file and could reset it. So for a call of a session, the
        slot's report counts instead.
        """
        return os.lseek(self.descriptors[0], 0, os.SEEK_CUR) == self._code_bytes

    def size(self, index: int) -> int:
        """Bytes written to file `index`."""
        return os.fstat(self.descriptors[index]).st_size

    def read(self, index: int, limit: int, size: int) -> str:
        """Content of a file. If it has more than `limit` bytes, a note with the size replaces the
        middle.
        """
        if size == 0:
            return ""
        descriptor = self.descriptors[index]
        if size <= limit:
            return os.pread(descriptor, limit, 0).decode("utf-8", "replace")
        head = os.pread(descriptor, limit // 2, 0)
        tail = os.pread(descriptor, limit // 2, size - limit // 2)
        note = f"\n[... {size - len(head) - len(tail)} of {size} bytes cut ...]\n"
        return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")

    def value(self, limit: int) -> tuple[str | None, str | None, bool]:
        """Tuple (repr of the value, its JSON, True if there was a MemoryError instead). All three
        are only claims of the snippet.
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
        shown = rest[: int(length)]
        encoded = rest[int(length) :]
        value = shown[: limit + _CUT_NOTE_BYTES].decode("utf-8", "replace") or None
        try:
            value_json = encoded.decode()
            _STRICT.decode(value_json)
        except (ValueError, RecursionError):
            return value, None, False
        return value, value_json, False

    def close(self) -> None:
        """Close the files; harmless a second time."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
"""Decoder that refuses NaN and infinity."""


def outcome(
    reply: Reply,
    files: SlotFiles,
    limits: Limits,
    isolation: str,
    *,
    started: bool,
    oom_killed: Callable[[], bool],
) -> ExecutionResult:
    """Typed outcome of a call, from the slot's reply and files.

    `oom_killed` returns True if the kernel has killed a process for lack of memory since the call
    began. It is called only if the result makes a difference.
    """
    stdout_bytes = files.size(1)
    stderr_bytes = files.size(2)
    full = max(stdout_bytes, stderr_bytes) >= limits.output_bytes * OUTPUT_FACTOR
    value, value_json, memory_error = files.value(limits.output_bytes)
    code = (
        -os.WTERMSIG(reply.status) if os.WIFSIGNALED(reply.status) else os.WEXITSTATUS(reply.status)
    )
    status = _status(reply, started=started, full=full)
    if status is None:
        status = _status_of_exit(
            code, reply, limits, memory_error=memory_error, oom_killed=oom_killed
        )
    ending = (  # a line by the host, since the dead snippet could not write it
        f"Process ended by {signal_name(-code)}\n"
        if reply.ended == Ended.EXITED and code < 0
        else _WORDS.get(Ended(reply.ended), "")
    )
    return ExecutionResult(
        status=status,
        stdout=files.read(1, limits.output_bytes, stdout_bytes),
        stderr=files.read(2, limits.output_bytes, stderr_bytes) + ending,
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
    """Outcome of a call that the infrastructure failed at."""
    return ExecutionResult(status=ToolStatus.INFRASTRUCTURE, stderr=reason, isolation=isolation)


def session_gone(isolation: str) -> ExecutionResult:
    """Outcome of a call whose session's process had already ended by itself (`Ended.GONE`)."""
    return ExecutionResult(status=ToolStatus.ERROR, stderr=_WORDS[Ended.GONE], isolation=isolation)


def signal_name(number: int) -> str:
    """Name of a signal, such as SIGKILL or SIGRTMIN+3, or its number, such as `signal 32`, if it
    has no name. A snippet can choose any of the kernel's 64 signals.
    """
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _status(reply: Reply, *, started: bool, full: bool) -> ToolStatus | None:
    """Status as seen by the slot (None if the exit status decides)."""
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
    """Status from the exit status. A snippet can kill itself by any signal, even as the first
    process of its namespace. So a signal that the kernel sends at a limit counts only with further
    evidence.
    """
    if code in (-signal.SIGXCPU, -signal.SIGKILL) and reply.cpu_seconds >= limits.cpu_seconds:
        return ToolStatus.TIMEOUT
    if (code == -signal.SIGKILL and oom_killed()) or (code == 1 and memory_error):
        return ToolStatus.OUT_OF_MEMORY
    return ToolStatus.OK if code == 0 else ToolStatus.ERROR
