"""The kernel's count of processes that it killed for want of memory, on the whole machine.

A process that was killed does not say by whom: SIGKILL may be its own, or that of another process
of its call.
"""

from __future__ import annotations

import os
import time

from hrm_agent.environment.sandbox.memory import figure

__all__ = ["OomKills"]

RECENT_SECONDS = 1.0
"""A count this old is good enough for what begins now: the kernel adds up a figure for each
processor.
"""


class OomKills:
    """Reads /proc/vmstat; where that has no such figure, nothing is ever known of any kill."""

    def __init__(self, path: str = "/proc/vmstat") -> None:
        self._path = path
        self._count, self._counted_at = 0, float("-inf")

    def recent(self) -> int:
        """Number of kills so far, as it was at most `RECENT_SECONDS` ago."""
        now = time.monotonic()
        if now - self._counted_at >= RECENT_SECONDS:
            self._count, self._counted_at = self._now(), now
        return self._count

    def since(self, count: int) -> bool:
        """True if there were kills since they were `count`."""
        return self._now() > count

    def _now(self) -> int:
        try:
            file = os.open(self._path, os.O_RDONLY)
        except OSError:
            return 0
        try:
            return figure(os.pread(file, 1 << 16, 0), b"oom_kill ")
        except OSError:
            return 0
        finally:
            os.close(file)
