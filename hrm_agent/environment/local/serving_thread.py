"""Wakes a thread that serves all calls, and checks that it responds."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

__all__ = ["Wake"]


class Wake:
    """Eventfd that the thread polls. Thread-safe; harmless once it is closed."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """File descriptor, readable from `ring` until `answer`."""
        self._lock = threading.Lock()
        self._asked: list[threading.Event] = []
        self._closed = False

    def ring(self) -> None:
        """Wake the thread."""
        with self._lock, suppress(BlockingIOError):  # its counter is full: it is readable
            if not self._closed:
                os.eventfd_write(self.descriptor, 1)

    def answer(self) -> None:
        """Reset the eventfd and notify the threads that wait in `is_answered`. Called by the
        serving thread.
        """
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        with self._lock:
            asked, self._asked = self._asked, []
        for event in asked:
            event.set()

    def is_answered(self, seconds: float) -> bool:
        """True if the thread calls `answer` within `seconds`; blocks until then."""
        event = threading.Event()
        with self._lock:
            if self._closed:
                return False
            self._asked.append(event)
        self.ring()
        answered = event.wait(seconds)
        if not answered:
            with self._lock, suppress(ValueError):
                self._asked.remove(event)
        return answered

    def close(self) -> None:
        """Close the eventfd. Harmless a second time."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
