"""Clock, `uuid` and `random` as a node reads them: recorded with its task, and given back when the
task runs again.

Inside a recording, what the code of a node takes from these is written to the record. A task that
is resumed or replayed gets the same values again, so that a prompt with the time in it is the
prompt that was answered. Nothing has to be changed in the code:

* The clock: `time.time`, `datetime.now`, `date.today` and their kin, wherever their names were
  bound (time-machine exchanges them in C). Live they say what they always say.
* `uuid.uuid4`, wherever its name was bound.
* `random`: a task has a generator of its own, whose seed is drawn from the global one and recorded;
  a `random.Random()` without a seed gets a recorded one.

Not reached: monotonic clocks, `secrets`, `os.urandom` and `random.SystemRandom` (they make keys,
which no record should hold), numpy's and torch's generators, compiled libraries that ask the system
themselves (UUIDs of version 7 made in Rust), child processes, threads that a node starts by itself,
and `from random import random, seed, getrandbits` of a module that was imported before the first
recording. Wrap those in `drawn`, which records any value.

What LangChain, LangGraph and this project draw for themselves is left alone; so is everything
outside of a node, and what a model or a tool draws while it answers, since its answer is recorded
as a whole.

Which task asks is found in the context of the caller, so that tasks side by side, in one event loop
or in threads, do not get in each other's way. Installed once per process, when the first recording
is opened.
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
"""Packages whose own draws are not the node's: what they draw depends on tracing and levels of
logs, say.
"""
_frame = sys._getframe  # pyright: ignore[reportPrivateUsage]
_urandom = os.urandom
_seed = random.Random.seed
_log = logging.getLogger("hrm_agent.record")
_resolving = threading.local()
"""Its `now` is True in a thread that looks for its task:
what that itself draws belongs to nobody.
"""


def drawn(draw: Callable[[], T]) -> T:
    """What `draw` returns, recorded with the running task: a task that runs again gets the first
    value back.

    For what is not recorded by itself, such as `drawn(lambda: float(generator.normal()))`. The
    value has to be JSON: text, numbers, None, and lists and dicts of them; anything else is a
    `GraphError`. Outside of a recorded node it is just drawn.
    """
    task = _task_of(_frame(1))
    return draw() if task is None else task.value(lambda: _as_json(draw))


def _as_json(draw: Callable[[], T]) -> T:
    with while_answered(_namespace()):  # what it draws on the way is part of its value
        value = draw()
    try:
        same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        same = False
    if not same:
        raise GraphError(
            f"A value of type {type(value).__name__} cannot be recorded: JSON does not give it back"
            " as it is.",
            "Return text, numbers, lists or dicts from what `drawn` calls, and build the rest"
            " outside.",
        )
    return value


@functools.cache
def record_draws() -> None:
    """From now on, what nodes draw inside a recording is recorded. Once per process."""
    os.urandom = _uuid_bytes
    _route_random()
    _route_clock()


def _namespace() -> str:
    """Of the running task; empty outside of a graph."""
    config = var_child_runnable_config.get() or {}
    return str((config.get("metadata") or {}).get("langgraph_checkpoint_ns", ""))


def _task_of(frame: FrameType | None) -> OpenDraws | None:
    """The draws of the task whose node runs the code of `frame`; None where nothing is recorded."""
    recording = open_recording()
    if recording is None or frame is None or getattr(_resolving, "now", False):
        return None
    config = var_child_runnable_config.get()
    if config is None or str(frame.f_globals.get("__name__", "")).partition(".")[0] in _FRAMEWORK:
        return None
    metadata = cast("Mapping[str, Any]", config.get("metadata") or {})
    namespace, thread = metadata.get("langgraph_checkpoint_ns"), metadata.get("thread_id")
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
    """The innermost frame from `frame` on whose code is not the module's."""
    while frame is not None and frame.f_globals.get("__name__") == module:
        frame = frame.f_back
    return frame


# uuid


def _uuid_bytes(size: int, /) -> bytes:
    """`os.urandom`, which `uuid.uuid4` looks up in each call."""
    frame = _frame(1)
    if frame.f_globals.get("__name__") != "uuid":
        return _urandom(size)
    task = _task_of(_caller(frame, "uuid"))
    return _urandom(size) if task is None else task.uuid_bytes(lambda: _urandom(size))


# random


class _TaskRandom(random.Random):
    """The class of the generator behind the functions of `random`:
    in a node it is the task's own.
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
        """The second of two numbers that `gauss` draws at a time."""
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
    """`Random.seed`: in a node, none from the system, and that of the global generator is the
    task's, too.
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
    """Those of the functions that time-machine exchanges which are no longer C's."""
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
    """By time-machine, whose destination is the task's own time, and for everybody else the
    present.

    It writes into the functions of C, so where a program has put others in their place the process
    would end there.
    """
    if replaced := [*_replaced_clocks()]:
        _log.warning(
            "The program has replaced %s: what nodes take from the clock is not recorded, and a"
            " replay takes it anew.",
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
    time_machine.traveller_stack.insert(0, Clock())  # below those of a test that travels itself
