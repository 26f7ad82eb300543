"""Interception of graph invocations at `Pregel.stream` and `Pregel.astream`, which all other entry
points use.

Outside of a recording the wrappers return LangGraph's result. Inside one, the recording is active
while the graph takes a step, and never while the consumer of its stream runs.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from hrm_agent.runtime.execution.conversation import ABORTED
from hrm_agent.runtime.recording.invocation import Invocation
from hrm_agent.runtime.recording.recorder import Recorder
from hrm_agent.trajectory import open_recording

__all__ = ["intercept"]

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
    except Exception as error:  # of a checkpointer that is not ours
        return recorder.lose(error)


async def _state_async(run: Invocation, recorder: Recorder) -> StateSnapshot | None:
    place = run.place
    try:
        return await run.graph.aget_state(place) if place is not None else None
    except Exception as error:
        return recorder.lose(error)
