"""The event loop that all connections to wikis live on.

A connection belongs to the event loop it was opened on, and so does a queue for it. On one loop,
threads and other event loops share both, and a caller that is cancelled gives its place in the
queue back at once.
"""

from __future__ import annotations

import os
import threading

from hrm_agent.basics.async_bridge import BackgroundLoop

__all__ = ["the_loop"]

_lock = threading.Lock()
_loop: BackgroundLoop | None = None


def the_loop() -> BackgroundLoop:
    """The loop, which is started when it is first asked for."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = BackgroundLoop("wikis")
        return _loop


def _forget() -> None:
    """A child of a fork has no thread but its own."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
