"""Files that are whole at any moment: written beside, then renamed over what was there.

Whoever is killed half-way, or runs out of disk, leaves the old file as it was.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path to write to, renamed to `path` at the end and removed on failure. Makes the folder where it is missing."""
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
