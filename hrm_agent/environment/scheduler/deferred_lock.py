"""Lock with deferred actions.

The state of a scheduler is plain data under one lock. Actions that follow from a change (start a
call, kill it, notify a caller) run after the lock is released, on the same thread and in order. So
a slow start delays no other call, a callback may call the scheduler, and no two locks are ever held
together.
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
    """Lock with deferred actions. The lock must not be held when `change` or `wait` is called, and
    must be held when `later` is called.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        """Make a lock. `settle`: called at the end of each change."""
        self._settle = settle
        self._owner = os.getpid()
        self._condition = threading.Condition(threading.Lock())
        self._todo: list[Callable[[], object]] = []
        self._thread = threading.local()
        self._guard = LoopGuard("environment-queue", rests=False)

    @property
    def is_ours(self) -> bool:
        """False in a forked child, where the lock may be held forever."""
        return self._owner == os.getpid()

    def change(self, function: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Call `function` with the lock held, then run the deferred actions. Raises HrmError in a
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
                    todo = self._todo
                    self._todo = []
        finally:
            if todo:
                self._do(todo)

    def later(self, function: Callable[_P, object], *args: _P.args, **options: _P.kwargs) -> None:
        """Call `function` after the lock is released."""
        self._todo.append(partial(function, *args, **options))

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait until `until` returns true, which is checked after each `wake`. False if this takes
        longer than `seconds`.
        """
        with self._condition:
            return self._condition.wait_for(until, seconds)

    def wake(self) -> None:
        self._condition.notify_all()

    def caught(self, error: BaseException) -> None:
        """Log and count an error that was raised under the lock and became the outcome of a
        call.
        """
        self._guard.caught(error)

    def responds(self, seconds: float) -> bool:
        """True if the lock can be acquired within `seconds`."""
        if taken := self._condition.acquire(timeout=seconds):
            self._condition.release()
        return taken

    def _do(self, todo: list[Callable[[], object]]) -> None:
        """Run actions. Further actions that an action adds run after it, not inside it."""
        under_way: deque[Callable[[], object]] | None = getattr(self._thread, "todo", None)
        if under_way is not None:
            under_way.extend(todo)
            return
        self._thread.todo = under_way = deque(todo)
        interrupts: list[BaseException] = []
        while under_way:
            try:
                # errors are not raised here: most actions concern other callers than this thread's
                with self._guard:
                    under_way.popleft()()
            except BaseException as error:  # an interrupt waits until the other actions have run
                interrupts.append(error)
        self._thread.todo = None
        if interrupts:
            raise interrupts[0]


def cannot_run(why: str) -> HrmError:
    return HrmError(f"The environment cannot run code: {why}.", "Make a new LocalEnvironment.")
