"""Number of processes that the kernel killed for lack of memory, on the whole machine.

The exit status of a killed process does not identify the killer: SIGKILL may have been sent by
itself, or by another process of its call.
"""

from __future__ import annotations

import os
import time

from hrm_agent.environment.sandbox.memory import figure

__all__ = ["OomKills"]

RECENT_SECONDS = 1.0
"""Age in seconds up to which a count is reused for new calls: the kernel adds up a figure per
processor.
"""


class OomKills:
    """Reader of /proc/vmstat. If that has no such figure, no kill is ever detected."""

    def __init__(self, path: str = "/proc/vmstat") -> None:
        self._path = path
        self._count, self._counted_at = 0, float("-inf")

    def recent(self) -> int:
        """Number of kills so far, at most `RECENT_SECONDS` old."""
        now = time.monotonic()
        if now - self._counted_at >= RECENT_SECONDS:
            self._count, self._counted_at = self._now(), now
        return self._count

    def since(self, count: int) -> bool:
        """True if there were more kills than `count`."""
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
