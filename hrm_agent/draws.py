"""Record what a node reads from the clock, `uuid` and `random`, and return the same values when its
task runs again.

Inside a recording, each value that a node's code reads from these sources is recorded. A task that
is resumed or replayed gets the same values again, so that a prompt with the time in it is
unchanged. The code needs no changes:

* The clock: `time.time`, `datetime.now`, `date.today` and their kin, wherever their names were
  bound (time-machine replaces them in C). In a live run they return the actual time.
* `uuid.uuid4`, wherever its name was bound.
* `random`: each task has its own generator, whose seed is drawn from the global one and recorded.
  A `random.Random()` without a seed gets a recorded seed.

These sources are not recorded:

* monotonic clocks
* `secrets`, `os.urandom` and `random.SystemRandom`, which make keys that no record should hold
* the generators of numpy and torch
* compiled libraries that call the system directly, such as UUIDs of version 7 made in Rust
* child processes, and threads that a node starts
* functions that a module took by `from random import random, seed, getrandbits` before the first
  recording

Read them inside `drawn`, which records any value.

Draws of LangChain, LangGraph and this project are not recorded, nor is any draw outside of a node.
Draws of a model or a tool while it answers are not recorded either: its answer is recorded as a
whole.

The task is found in the context of the caller, so parallel tasks in one event loop or in threads do
not mix. The sources are patched once per process, when the first recording is opened.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FrameType
from typing import Any, TypeVar, cast

from langchain_core.runnables.config import var_child_runnable_config

from hrm_agent.errors import GraphError
from hrm_agent.langgraph_format import RUNTIME
from hrm_agent.trajectory import OpenDraws, open_recording
from hrm_agent.trajectory.draws import is_answered, while_answered
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["drawn", "record_draws"]

T = TypeVar("T")
_FRAMEWORK = frozenset(
    (
        "asyncio",
        "concurrent",
        "hrm_agent",
        "langchain_core",
        "langgraph",
        "langsmith",
        "logging",
        "tempfile",
    )
)
"""Packages whose own draws are not recorded: these draws depend on settings such as tracing and log
levels.
"""
_frame = sys._getframe  # pyright: ignore[reportPrivateUsage]
_urandom = os.urandom
_seed = random.Random.seed
_log = logging.getLogger("hrm_agent.record")
_resolving = threading.local()
"""`now` is True in a thread that looks up its task. Draws of the lookup itself are not recorded."""


def drawn(draw: Callable[[], T]) -> T:
    """Return the value of `draw`, recorded with the running task: a task that runs again gets the
    first value back.

    Use it for values that are not recorded automatically, such as `drawn(lambda:
    float(generator.normal()))`. The value has to be JSON (text, numbers, None, and lists and dicts
    of them), else `GraphError` is raised. Outside of a recorded node, `draw` is just called.
    """
    task = _task_of(_frame(1))
    return draw() if task is None else task.value(lambda: _as_json(draw))


def _as_json(draw: Callable[[], T]) -> T:
    with while_answered(_namespace()):  # draws inside `draw` are part of its value
        value = draw()
    try:
        same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        same = False
    if not same:
        raise GraphError(
            f"A value of type {type(value).__name__} cannot be recorded: it is not equal after it"
            " was written and read as JSON.",
            "Let the function given to `drawn` return text, numbers, lists or dicts, and build"
            " other objects from its result.",
        )
    return value


@functools.cache
def record_draws() -> None:
    """Record, from now on, the draws of nodes inside a recording. Call once per process."""
    os.urandom = _uuid_bytes
    _route_random()
    _route_clock()


def _namespace() -> str:
    """Checkpoint namespace of the running task (empty outside of a graph)."""
    config = var_child_runnable_config.get() or {}
    return str((config.get("metadata") or {}).get("langgraph_checkpoint_ns", ""))


def _task_of(frame: FrameType | None) -> OpenDraws | None:
    """Draws of the task whose node runs the code of `frame` (None if nothing is recorded)."""
    recording = open_recording()
    if recording is None or frame is None or getattr(_resolving, "now", False):
        return None
    config = var_child_runnable_config.get()
    if config is None or str(frame.f_globals.get("__name__", "")).partition(".")[0] in _FRAMEWORK:
        return None
    metadata = cast("Mapping[str, Any]", config.get("metadata") or {})
    namespace = metadata.get("langgraph_checkpoint_ns")
    thread = metadata.get("thread_id")
    if not namespace or not thread or is_answered(namespace):
        return None
    _resolving.now = True
    try:
        attempt = _attempt(config.get("configurable") or {})
        return recording.draws(
            (str(thread), namespace, attempt), lambda: graph_identity(metadata, "")
        )
    finally:
        _resolving.now = False


def _attempt(configurable: Mapping[str, Any]) -> int:
    info = getattr(configurable.get(RUNTIME), "execution_info", None)
    return 1 if info is None else int(info.node_attempt)


def _caller(frame: FrameType | None, module: str) -> FrameType | None:
    """Innermost frame, from `frame` outwards, whose code is not in the module."""
    while frame is not None and frame.f_globals.get("__name__") == module:
        frame = frame.f_back
    return frame


# uuid


def _uuid_bytes(size: int, /) -> bytes:
    """Replacement for `os.urandom`, which `uuid.uuid4` looks up in each call."""
    frame = _frame(1)
    if frame.f_globals.get("__name__") != "uuid":
        return _urandom(size)
    task = _task_of(_caller(frame, "uuid"))
    return _urandom(size) if task is None else task.uuid_bytes(lambda: _urandom(size))


# random


class _TaskRandom(random.Random):
    """Class of the global generator behind the functions of `random`. In a node it draws from the
    task's generator.
    """

    def _own(self) -> random.Random | None:
        task = _task_of(_caller(_frame(2), "random"))
        return None if task is None else task.generator(lambda: random.Random.getrandbits(self, 64))

    def random(self) -> float:
        own = self._own()
        return super().random() if own is None else own.random()

    def getrandbits(self, k: int, /) -> int:
        own = self._own()
        return super().getrandbits(k) if own is None else own.getrandbits(k)

    @property
    def gauss_next(self) -> float | None:
        """Second of the two numbers that `gauss` draws at a time."""
        own = self._own()
        return self.__dict__.get("gauss_next") if own is None else cast("Any", own).gauss_next

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        own = self._own()
        if own is None:
            self.__dict__["gauss_next"] = value
        else:
            cast("Any", own).gauss_next = value


def _seeding(self: random.Random, a: Any = None, version: int = 2) -> None:
    """Replacement for `Random.seed`. In a node, a missing seed is drawn once and recorded, and
    seeding the global generator also seeds the task's.
    """
    task = _task_of(_caller(_frame(1), "random"))
    if task is not None and a is None:
        a = task.seed(lambda: int.from_bytes(_urandom(8)))
    if task is not None and isinstance(self, _TaskRandom):
        task.reseed(a, version)
    _seed(self, a, version)


def _route_random() -> None:
    functions = cast("Any", random)
    shared: random.Random = functions._inst
    shared.__class__ = _TaskRandom
    functions.Random.seed = _seeding
    for name in ("random", "getrandbits", "seed"):
        setattr(random, name, getattr(shared, name))


# the clock


def _replaced_clocks() -> Iterator[str]:
    """Names of clock functions that the program has replaced by functions not written in C."""
    of_time = (
        "clock_gettime",
        "clock_gettime_ns",
        "gmtime",
        "localtime",
        "strftime",
        "time",
        "time_ns",
    )
    for holder, names in ((time, of_time), (dt.datetime, ("now", "utcnow"))):
        for name in names:
            if not isinstance(getattr(holder, name), BuiltinFunctionType):
                yield f"{holder.__name__}.{name}"


def _route_clock() -> None:
    """Patch the clock through time-machine: recorded time for a task, actual time for all other
    code.

    time-machine writes into the C functions. If the program has replaced one of them, that would
    crash the process, so the clock is not patched then.
    """
    if replaced := [*_replaced_clocks()]:
        _log.warning(
            "The program has replaced %s: times that nodes read are not recorded, and a replay"
            " reads the clock again.",
            ", ".join(replaced),
        )
        return
    import _time_machine
    import time_machine

    class Clock(time_machine.Traveller):
        def __init__(self) -> None:
            super().__init__(0, None, tick=True)

        def time_ns(self) -> int:
            now = _time_machine.original_time_ns()
            task = _task_of(_frame(1))
            return now if task is None else task.time(now)

    if not time_machine.traveller_stack:
        _time_machine.patch()
    # at the bottom of the stack: a test's own travellers keep precedence
    time_machine.traveller_stack.insert(0, Clock())
