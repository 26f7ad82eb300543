"""Threads that are to be run next, whose leases are taken together (`hrm_agent.store.leases`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

__all__ = ["AcquiredLease", "ComingThreads"]

_TOGETHER = 64
"""Leases that are taken in one transaction."""


class AcquiredLease(NamedTuple):
    """What has been taken, and may not be used yet."""

    epoch: int
    """How often the lease had changed hands."""
    new: bool
    """Nothing was on record of the thread."""
    generation: int
    """`HeldThreads.generation` before it was acquired."""
    at: float
    """Time by the monotonic clock."""


class ComingThreads:
    """Threads that are to be run, in their order. Not thread-safe."""

    def __init__(self, thread_ids: Sequence[str]) -> None:
        self._waiting = dict.fromkeys(thread_ids)
        self.asked_for: set[str] = set()
        """Those whose leases were asked for, and are not used yet."""

    def __contains__(self, thread_id: str) -> bool:
        return thread_id in self._waiting or thread_id in self.asked_for

    def ask_for(self, thread_id: str) -> list[str]:
        """The next ones, whose leases are to be taken with that of `thread_id`."""
        self._waiting.pop(thread_id, None)
        found = list(islice(self._waiting, _TOGETHER - 1))
        for name in found:
            del self._waiting[name]
        self.asked_for.update(found)
        return found
