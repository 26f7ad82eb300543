"""Event loop of all connections to wikis.

A connection and a queue for it belong to the event loop on which they were created. On one loop,
threads and other event loops share both. A cancelled caller leaves the queue at once.
"""

from __future__ import annotations

import os
import threading

from hrm_agent.basics.async_bridge import BackgroundLoop

__all__ = ["the_loop"]

_lock = threading.Lock()
_loop: BackgroundLoop | None = None


def the_loop() -> BackgroundLoop:
    """Event loop for wikis, started on first use."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = BackgroundLoop("wikis")
        return _loop


def _forget() -> None:
    """Reset the loop in a forked child, which has only its own thread."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
