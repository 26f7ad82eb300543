"""Message on stderr if a large library takes long to import, as torch does on a cold disk."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["told_if_slow"]


@contextmanager
def told_if_slow(what: str, seconds: float = 4.0) -> Generator[None]:
    """Print `what` if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, lambda: sys.stderr.write(f"hrm-agent: {what}\n"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
