"""What a person who interrupts a command is told."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["resumed_by"]


@contextmanager
def resumed_by(command: str) -> Generator[None]:
    """An interrupt inside the block names the command that resumes what is under way."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.args = (command,)
        raise
