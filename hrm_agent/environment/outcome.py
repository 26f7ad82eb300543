"""The files of one call, and what they and the zygote's reply come to.

Code, stdout, stderr and value are memory files. The kernel bounds them by RLIMIT_FSIZE while the snippet writes, so a
flood of output costs neither memory nor reading time here: only the head and the tail that are kept are ever read.
"""

from __future__ import annotations

import os
import signal

from hrm_agent.environment.result import ExecutionResult, Limits
from hrm_agent.environment.sandbox.protocol import OUT_OF_MEMORY_EXIT, Ended, Reply
from hrm_agent.trajectory import ToolStatus

__all__ = ["OUTPUT_FACTOR", "CallFiles", "infrastructure_failure", "outcome"]

OUTPUT_FACTOR = 64
"""A snippet may write this many times `Limits.output_bytes` to one file before its writes fail (`output_limit`)."""
_CUT_NOTE_BYTES = 80


class CallFiles:
    """Four memory files, open until `close`."""

    def __init__(self, code: str) -> None:
        self.descriptors: list[int] = []
        """code, stdout, stderr, value: the order in which the child expects them."""
        for name in ("code", "stdout", "stderr", "value"):
            self.descriptors.append(os.memfd_create(name))
        # The line end lets a child that read nothing be told from one that read an empty snippet.
        self._code_bytes = os.write(self.descriptors[0], code.encode("utf-8", "backslashreplace") + b"\n")
        os.lseek(self.descriptors[0], 0, os.SEEK_SET)

    @property
    def started(self) -> bool:
        """True if the child read its code: the last thing before the snippet runs, and nothing that it could undo."""
        return os.lseek(self.descriptors[0], 0, os.SEEK_CUR) == self._code_bytes

    def is_full(self, file_bytes: int) -> bool:
        """True if stdout or stderr reached the limit."""
        return any(os.fstat(descriptor).st_size >= file_bytes for descriptor in self.descriptors[1:3])

    def read(self, index: int, limit: int) -> str:
        """At most `limit` bytes of a file, the middle cut out and its size told."""
        descriptor = self.descriptors[index]
        size = os.fstat(descriptor).st_size
        if size <= limit:
            return os.pread(descriptor, limit, 0).decode("utf-8", "replace")
        head, tail = os.pread(descriptor, limit // 2, 0), os.pread(descriptor, limit // 2, size - limit // 2)
        note = f"\n[... {size - len(head) - len(tail)} of {size} bytes cut ...]\n"
        return head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")

    def close(self) -> None:
        """Free the files; harmless a second time."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def outcome(reply: Reply, files: CallFiles, limits: Limits, isolation: str) -> ExecutionResult:
    """The typed outcome of a call that ended as `reply` says."""
    status = _status(reply, files, limits)
    stderr = files.read(2, limits.output_bytes)
    code = os.waitstatus_to_exitcode(reply.status) if reply.ended == Ended.EXITED else 0
    if code < 0:
        stderr += f"Process ended by {signal.Signals(-code).name}\n"
    return ExecutionResult(
        status=status,
        stdout=files.read(1, limits.output_bytes),
        stderr=stderr,
        value=files.read(3, limits.output_bytes + _CUT_NOTE_BYTES) or None,
        duration_seconds=reply.duration_seconds,
        isolation=isolation,
    )


def infrastructure_failure(reason: str, isolation: str) -> ExecutionResult:
    """What a call comes to that no snippet is to blame for."""
    return ExecutionResult(status=ToolStatus.INFRASTRUCTURE, stderr=reason, isolation=isolation)


def _status(reply: Reply, files: CallFiles, limits: Limits) -> ToolStatus:
    if reply.ended == Ended.KILLED or not files.started:
        return ToolStatus.INFRASTRUCTURE
    if reply.ended == Ended.TIMEOUT:
        return ToolStatus.TIMEOUT
    if files.is_full(limits.output_bytes * OUTPUT_FACTOR):
        return ToolStatus.OUTPUT_LIMIT
    code = os.waitstatus_to_exitcode(reply.status)
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and reply.cpu_seconds >= limits.cpu_seconds):
        return ToolStatus.TIMEOUT
    if code in (OUT_OF_MEMORY_EXIT, -signal.SIGKILL):  # nobody else kills: the kernel ran out of memory
        return ToolStatus.OUT_OF_MEMORY
    return ToolStatus.OK if code == 0 else ToolStatus.ERROR
