"""Block that records every graph that the program inside invokes: `with record("runs/x.db"):`.

    from hrm_agent import record

    with record("runs/x.db"):
        graph.invoke({"messages": [("user", "What is 6 times 7?")]})

The block applies to the context that opened it and to no other: its thread and its task, tasks that
are made inside it, and threads that receive a copy of the context, as from `asyncio.to_thread` and
the executors of LangChain and LangGraph. A plain `ThreadPoolExecutor.submit` or `threading.Thread`
passes no context: run its work under `contextvars.copy_context().run`, or open a block inside it.
So a server that opens a block for each request records the requests separately, and a server with
one block around its start records all of them. Blocks on one path share one store. `async with`
does the same, and so does `@record("runs/x.db")` over a function. A generator has no context of its
own: a block that is open at its `yield` applies to its caller, and not to its next step in another
thread.

Graph invocations are intercepted at `Pregel.stream` and `Pregel.astream`, which all other entry
points use. Outside of a recording the wrappers return LangGraph's result. Inside one, the recording
is active while the graph takes a step, and never while the consumer of its stream runs.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from hrm_agent.draws import record_draws
from hrm_agent.runtime.execution.conversation import ABORTED
from hrm_agent.runtime.recording.recorder import Invocation, Recorder
from hrm_agent.trajectory import open_recording

__all__ = ["RecordingBlock", "current_recorder", "intercept", "record", "record_process"]

P = ParamSpec("P")
R = TypeVar("R")

_own: ContextVar[tuple[Recorder, ...]] = ContextVar("hrm_agent_recorder", default=())
"""Recorders of the blocks around this code, the innermost last. A task may outlive the inner
blocks.
"""
_lock = threading.RLock()
_open: list[tuple[str, Recorder]] = []
"""Open blocks as (location, recorder), oldest first."""
_of_process: Recorder | None = None
"""Recorder of a process that is recorded as a whole."""


def current_recorder() -> Recorder | None:
    """Recorder of the innermost open block around this code, else of the process."""
    for own in reversed(_own.get()):
        if not own.closed:
            return own
    return _of_process


def record(
    where: str | Path,
    *,
    key: str | bytes | None = None,
    allow: tuple[str, ...] = (),
    draws: bool = False,
) -> RecordingBlock:
    """Record all graphs that are invoked inside the block into a store. `where`, `key`, `allow`: as
    for `open_store`.

    `draws`: also record values that nodes draw from the clock, `uuid4` and `random`, so that a
    replay can return them. From then on this process's nodes draw `random` from generators of their
    own, and every read of the clock takes a microsecond.
    """
    if draws:
        record_draws()
    return RecordingBlock(where, {"key": key, "allow": allow})


def record_process(where: str, allow: tuple[str, ...] = (), *, draws: bool = False) -> None:
    """Record all invocations until the process exits, in any thread or task.

    The options are those of `record`. Raises `StoreError`.
    """
    global _of_process
    block = record(where, allow=allow, draws=draws).__enter__()
    _of_process = current_recorder()
    atexit.register(block.__exit__, None, None, None)


class RecordingBlock:
    """Recording block, for `with` and `async with`. As a decorator it opens a block for each
    call.
    """

    def __init__(self, where: str | Path, options: dict[str, Any]) -> None:
        self._where = where
        self._options = options
        self._entered: list[tuple[str, Recorder]] = []

    def __enter__(self) -> Self:
        place = str(self._where) if "://" in str(self._where) else str(Path(self._where).resolve())
        with _lock:
            shared = next((recorder for opened, recorder in _open if opened == place), None)
            recorder = shared or Recorder(place, **self._options)
            _open.append((place, recorder))
        intercept(current_recorder)
        _own.set((*_own.get(), recorder))
        self._entered.append((place, recorder))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        place, recorder = self._entered.pop()
        around = [*_own.get()]
        # missing if the block is left in another context, as by a notebook's cells
        if recorder in around:
            del around[len(around) - 1 - around[::-1].index(recorder)]
            _own.set(tuple(around))
        with _lock:
            _open.remove((place, recorder))
            if all(opened is not recorder for _, opened in _open):
                recorder.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        where = self._where
        options = self._options
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"A record block over the generator {function.__name__!r} would end before its"
                " first step. Open it inside, around each invocation of a graph, or around the"
                " code that runs the generator to its end."
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def recorded_async(*args: P.args, **named: P.kwargs) -> Any:
                async with RecordingBlock(where, options):
                    return await function(*args, **named)

            return cast("Callable[P, R]", recorded_async)

        @functools.wraps(function)
        def recorded(*args: P.args, **named: P.kwargs) -> R:
            with RecordingBlock(where, options):
                return function(*args, **named)

        return recorded


Current = Callable[[], Recorder | None]
"""Function that returns the active recorder (None if there is none)."""


@functools.cache
def intercept(current: Current) -> None:
    """Wrap the entry points of graphs, once per process. An invocation is recorded while a `record`
    block is open.
    """
    pregel: Any = Pregel
    pregel.stream = _observed(pregel.stream, current)
    pregel.astream = _observed_async(pregel.astream, current)


def _recorder(current: Current) -> Recorder | None:
    """Active recorder (None inside of a run that is already recorded: a subgraph's steps, or a run
    of this project).
    """
    recorder = current()
    return None if recorder is None or open_recording() is not None else recorder


def _observed(entry: Any, current: Current) -> Any:
    @functools.wraps(entry)
    def stream(self: Any, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002  # part of the interface
        recorder = _recorder(current)
        if recorder is None:
            return entry(self, input, config, **options)
        return _steps(recorder, entry, self, input, config, options)

    return stream


def _observed_async(entry: Any, current: Current) -> Any:
    @functools.wraps(entry)
    def astream(self: Any, input: Any, config: Any = None, **options: Any) -> Any:  # noqa: A002
        recorder = _recorder(current)
        if recorder is None:
            return entry(self, input, config, **options)
        return _steps_async(recorder, entry, self, input, config, options)

    return astream


def _steps(
    recorder: Recorder, entry: Any, graph: Any, given: Any, config: Any, options: dict[str, Any]
) -> Generator[Any]:
    run = recorder.begin(
        graph, given, config, options.get("context"), recorder.find_own(graph, config)
    )
    if run is None:
        yield from entry(graph, given, config, **options)
        return
    steps = entry(graph, given, run.config, **options)
    try:
        while True:
            with run.in_force():
                try:
                    step = next(steps)
                except StopIteration:
                    break
            yield step
    except GeneratorExit:
        run.end(ABORTED)
        steps.close()
        raise
    except BaseException as error:
        run.failed(error)
        raise
    run.finished(_state(run, recorder))


async def _steps_async(
    recorder: Recorder, entry: Any, graph: Any, given: Any, config: Any, options: dict[str, Any]
) -> AsyncGenerator[Any]:
    own = await recorder.find_own_async(graph, config)
    run = recorder.begin(graph, given, config, options.get("context"), own)
    if run is None:
        async for step in entry(graph, given, config, **options):
            yield step
        return
    steps = entry(graph, given, run.config, **options)
    try:
        while True:
            with run.in_force():
                try:
                    step = await anext(steps)
                except StopAsyncIteration:
                    break
            yield step
    except GeneratorExit:
        run.end(ABORTED)
        await steps.aclose()
        raise
    except BaseException as error:
        run.failed(error)
        raise
    run.finished(await _state_async(run, recorder))


def _state(run: Invocation, recorder: Recorder) -> StateSnapshot | None:
    place = run.place
    try:
        return run.graph.get_state(place) if place is not None else None
    except Exception as error:  # of the program's checkpointer
        return recorder.lose(error)


async def _state_async(run: Invocation, recorder: Recorder) -> StateSnapshot | None:
    place = run.place
    try:
        return await run.graph.aget_state(place) if place is not None else None
    except Exception as error:
        return recorder.lose(error)
