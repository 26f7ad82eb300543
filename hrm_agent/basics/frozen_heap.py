"""Keeps Python's garbage collector from walking through all objects that exist when a long job
begins.

When torch, transformers and LangGraph are imported, they leave several hundred thousand objects,
and each full collection walks through all of them. LangGraph's tasks make enough reference cycles
for a full collection every few rollouts. These take a fifth of the CPU time of the thread that runs
the graphs (docs/performance.md). Small collections cost time too: rollouts make many small objects,
most of which are freed without a collector, so collections are also made less frequent.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["begin_program", "frozen_heap"]

_OBJECTS = 50_000
"""Number of new objects between two collections inside the block. So at most some 10 MB wait for a
collection.
"""
_OF_IMPORTS = 200_000
"""Number of new objects between two collections of a program. Importing torch and transformers
makes seven times as many.
"""
_lock = threading.Lock()
_inside = 0
_before = gc.get_threshold()


@contextmanager
def frozen_heap() -> Generator[None]:
    """Exclude objects that are alive now from all collections inside the block, and collect less
    often. Both are undone at the end of the block.

    Overlapping blocks count as one, from the first start to the last end. A heap that was frozen by
    `gc.freeze` before the block stays frozen, and a higher threshold stays in force.
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
    """Set up the garbage collector for a process that runs only this program: few collections
    during imports, and no collection of live objects at exit.

    That saves a third of the CPU time that a training takes to start and to end.
    """
    gc.set_threshold(_OF_IMPORTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
