"""The processes that a test's own process has started."""

from __future__ import annotations

import psutil

__all__ = ["children_that_run"]


def children_that_run(word: str, of: psutil.Process | None = None) -> list[psutil.Process]:
    """Live children with this word in their command line.

    Ended children that nobody has waited for have no command line, and are not found. Other tests
    of the process may have left such children.
    """
    found: list[psutil.Process] = []
    for child in (of or psutil.Process()).children():
        try:
            if word in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
