"""Short writes within an event loop that is watched: `langgraph dev` raises in code that blocks it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["may_block"]


@contextmanager
def may_block() -> Generator[None]:
    """Let the code inside block for the time of a commit, where a watch on this thread would raise."""
    skip: Any = getattr(sys.modules.get("blockbuster.blockbuster"), "_skip", None)
    if skip is None or skip.value:
        yield
        return
    skip.value = True
    try:
        yield
    finally:
        skip.value = False
