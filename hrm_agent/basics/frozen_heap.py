"""Keeps Python's garbage collector from what a long piece of work finds there when it begins, and
from imports.

Torch, transformers and LangGraph leave several hundred thousand objects behind when they are
imported, and each full collection walks through all of them; LangGraph's tasks make cycles enough
for a collection every few rollouts. That is a fifth of the CPU of the thread that runs the graphs
(docs/performance.md). What is left comes of collections that follow each other closely: rollouts
are made of many small objects, most of which go without a collector.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["begin_program", "frozen_heap"]

_OBJECTS = 50_000
"""New objects between two collections inside the block: some 10 MB at most of what only a collector
frees.
"""
_OF_IMPORTS = 200_000
"""New objects between two collections of a program: torch and transformers make seven times as
many.
"""
_lock = threading.Lock()
_inside = 0
_before = gc.get_threshold()


@contextmanager
def frozen_heap() -> Generator[None]:
    """What is alive now is left out of all collections inside the block, which are rarer, and
    looked at again after it.

    Of blocks that overlap the first one's beginning counts, and the last one's end. Who has frozen
    a heap by `gc.freeze`, or made collections rarer yet, before the block, keeps it so.
    """
    global _inside, _before
    with _lock:
        ours = _inside > 0 or gc.get_freeze_count() == 0
        if ours:
            _inside += 1
            if _inside == 1:
                _before = gc.get_threshold()
                if 0 < _before[0] < _OBJECTS:
                    gc.set_threshold(_OBJECTS, *_before[1:])
                gc.freeze()
    try:
        yield
    finally:
        with _lock:
            if ours:
                _inside -= 1
                if _inside == 0:
                    gc.unfreeze()
                    gc.set_threshold(*_before)


def begin_program() -> None:
    """For a process that is ours alone: few collections while it imports, and none of all that is
    alive at its end.

    A third of the CPU that a training takes to begin and to end is saved by that.
    """
    gc.set_threshold(_OF_IMPORTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
