"""One lock, and what follows from a change made under it.

All that a scheduler knows is plain data under one lock. What a change decides (start this, kill
that, tell a caller) is done after the lock is let go, on the same thread and in the order decided.
So a slow start delays nobody else, whoever is called may call back at once, and no two locks are
ever held together.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.errors import HrmError

__all__ = ["DeferredLock", "cannot_run"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DeferredLock:
    """`change` and `wait` are called without the lock, `later` with it."""

    def __init__(self, settle: Callable[[], None]) -> None:
        """`settle` is called at the end of each change."""
        self._settle = settle
        self._owner = os.getpid()
        self._condition = threading.Condition(threading.Lock())
        self._todo: list[Callable[[], object]] = []
        self._thread = threading.local()
        self._guard = LoopGuard("environment-queue", rests=False)

    @property
    def is_ours(self) -> bool:
        """False in a fork of the process that made it, where the lock may be held for ever."""
        return self._owner == os.getpid()

    def change(self, function: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Call `function` with the lock held, then do what it left for later. Raises HrmError in a
        forked process.
        """
        if not self.is_ours:
            raise cannot_run("it belongs to the process that this one was forked from")
        todo: list[Callable[[], object]] = []
        try:
            with self._condition:
                try:
                    return function(*args, **options)
                finally:
                    with self._guard:
                        self._settle()
                    todo, self._todo = self._todo, []
        finally:
            if todo:
                self._do(todo)

    def later(self, function: Callable[_P, object], *args: _P.args, **options: _P.kwargs) -> None:
        """Have `function` called when the lock is let go."""
        self._todo.append(partial(function, *args, **options))

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait for `until`, which is looked at after each `wake`; False if it does not hold after
        `seconds`.
        """
        with self._condition:
            return self._condition.wait_for(until, seconds)

    def wake(self) -> None:
        self._condition.notify_all()

    def caught(self, error: BaseException) -> None:
        """Log and count what was raised under the lock, and has become a call's outcome."""
        self._guard.caught(error)

    def responds(self, seconds: float) -> bool:
        """True if the lock can be had within `seconds`."""
        if taken := self._condition.acquire(timeout=seconds):
            self._condition.release()
        return taken

    def _do(self, todo: list[Callable[[], object]]) -> None:
        """What is decided by something done here comes after it,
        rather than on top of its stack.
        """
        under_way: deque[Callable[[], object]] | None = getattr(self._thread, "todo", None)
        if under_way is not None:
            under_way.extend(todo)
            return
        self._thread.todo = under_way = deque(todo)
        interrupts: list[BaseException] = []
        while under_way:
            try:
                # whose thread this is has mostly nothing to do with what is done here
                with self._guard:
                    under_way.popleft()()
            except BaseException as error:  # nobody else's call may hang for it
                interrupts.append(error)
        self._thread.todo = None
        if interrupts:
            raise interrupts[0]


def cannot_run(why: str) -> HrmError:
    return HrmError(f"The environment cannot run code: {why}.", "Make a new LocalEnvironment.")
