"""Recording of tool calls: a call is written to the journal before it runs, and again when it has
ended. A finished call is never run twice.

A node that runs again after a crash asks for the same tool calls. A finished call is answered from
its record. An unfinished call runs again under the same record. So a tool runs at least once, and
never again once its outcome is on record. A stored `status` of None means that the process died or
was cancelled during the call.

A call with an idempotency key must have its effect only once per thread, whatever task or branch it
is in. If an earlier call with the key ended well, its record answers the call. Of two calls with
the key at the same time, the second waits for the first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from hrm_agent.basics.unicode import text_of
from hrm_agent.environment import ExecutionResult
from hrm_agent.errors import HrmError
from hrm_agent.models.call_recording import ENDED_AT, STARTED_AT, THREAD_ID
from hrm_agent.tools.graph_effects import repeat_effects
from hrm_agent.tools.idempotency import under_way
from hrm_agent.tools.output_codec import OutputCodec
from hrm_agent.trajectory import (
    GraphIdentity,
    Recording,
    ToolCall,
    ToolStatus,
    active_recording,
    tool_record_id,
)
from hrm_agent.trajectory.identity import graph_identity

__all__ = [
    "ToolOutcome",
    "acquire",
    "as_message",
    "begin_tool_call",
    "finish_tool_call",
    "holding",
    "new_tool_call",
    "record_tool_call",
]

_MEASURED = tuple(
    each.name for each in fields(ExecutionResult) if each.name in ToolCall.model_fields
)
"""Fields that `ExecutionResult` and `ToolCall` share. Other fields of a result are not stored."""
SECONDS_BETWEEN_LOOKS = 0.01
"""Interval in seconds between checks whether another call with the same key has ended."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Outcome of running a tool."""

    status: ToolStatus
    """Status with which the call ended."""
    content: str
    """Text for the model."""
    output: dict[str, Any] | None = None
    """Whole answer of an external tool (`ToolCall.output`)."""
    execution: ExecutionResult | None = None
    """Result of the environment that ran the call's code (None if it ran no code)."""
    stderr: str = ""
    """Error text of a tool that runs no code."""
    duration_seconds: float | None = None
    """Duration in seconds of a tool that runs no code (None: it is measured around the call)."""
    graph_effects: tuple[dict[str, Any], ...] = ()
    """Effects on the graph (`ToolCall.graph_effects`)."""


async def record_tool_call(
    *,
    tool_call_id: str,
    name: str,
    arguments: dict[str, Any] | str,
    config: RunnableConfig,
    execute: Callable[..., Awaitable[ToolOutcome]],
    key: str | None = None,
    repeatable: bool = False,
) -> ToolCall:
    """Run `execute` under a record. If the same call has finished before, return its record
    instead.

    The effects of a finished call on the graph are repeated (`hrm_agent.tools.graph_effects`). If
    they cannot be repeated, the call is run again, and `execute` gets the numbers of the questions
    that the call has asked.

    Cancellation, LangGraph's control flow and `HrmError` pass through and leave the record
    unfinished. Any other exception of `execute` is recorded as an infrastructure failure. For
    `repeatable` see `Journal.write_tool_call`.
    """
    identity = graph_identity(config.get("metadata"), run_id=tool_call_id)
    started = new_tool_call(identity, tool_call_id, name, arguments, key)
    recording = active_recording()
    while not acquire(recording, started):  # noqa: ASYNC110  # the key's holder may run on another loop
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
    with holding(recording, started):
        begun = await recording.apart(begin_tool_call, recording, started, repeatable)
        drawn: tuple[int, ...] | None = ()
        if begun.status is not None:
            drawn = repeat_effects(
                begun, started, recording, config, OutputCodec(recording.journal)
            )
            if drawn is None:
                return begun
            begun = await recording.apart(partial(recording.write_tool_call, again=True), started)
        clock = time.perf_counter()
        with under_way(begun):
            try:
                outcome = await (execute(drawn) if drawn else execute())
            except (GraphBubbleUp, HrmError):
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {text_of(error)}"
                outcome = ToolOutcome(
                    ToolStatus.INFRASTRUCTURE, "The tool could not be run.", stderr=reason
                )
        elapsed = time.perf_counter() - clock
        return await recording.apart(
            finish_tool_call, recording, begun, outcome, elapsed, repeatable
        )


def as_message(record: ToolCall) -> ToolMessage:
    """Message that answers a finished call. The tool's own artifact, if any, is under `artifact` in
    the message's artifact.

    Its metadata has the start and end time of the tool's work, as the metadata of a model's answer
    has the times of the model's work.
    """
    times: dict[str, Any] = {}
    if record.ended_at is not None:
        started_at = record.ended_at - record.duration_seconds
        times = {STARTED_AT: started_at, ENDED_AT: record.ended_at}
        thread = record.identity.thread_id
        # a call without a thread has its own id in place of the thread's
        if record.identity.checkpoint_ns and thread != record.tool_call_id:
            times[THREAD_ID] = thread
    told = {"status": str(record.status), "record": record.id}
    given = ((record.output or {}).get("message") or {}).get("artifact")
    return ToolMessage(
        record.content,
        id=record.id,
        name=record.name,
        tool_call_id=record.tool_call_id,
        status="success" if record.status is ToolStatus.OK else "error",
        artifact=told if given is None else told | {"artifact": given},
        response_metadata=times,
    )


def new_tool_call(
    identity: GraphIdentity,
    tool_call_id: str,
    name: str,
    arguments: dict[str, Any] | str,
    key: str | None,
) -> ToolCall:
    """Record of a call that has not started."""
    return ToolCall(
        id=tool_record_id(identity.thread_id, identity.task_id, tool_call_id),
        identity=identity,
        tool_call_id=tool_call_id,
        name=name,
        arguments=arguments,
        idempotency_key=key,
        started_at=time.time(),
    )


def acquire(recording: Recording, started: ToolCall) -> bool:
    """Take the idempotency key of a call, if it has one. False while another call holds it."""
    key = started.idempotency_key
    return key is None or recording.hold_key(started.identity.thread_id, key)


@contextmanager
def holding(recording: Recording, started: ToolCall) -> Generator[None]:
    """Release the key of a call at the end of the block."""
    try:
        yield
    finally:
        if started.idempotency_key is not None:
            recording.release_key(started.identity.thread_id, started.idempotency_key)


def begin_tool_call(recording: Recording, started: ToolCall, repeatable: bool = False) -> ToolCall:
    """Finished record that answers this call. If there is none, the call is written as running, and
    its new record is returned.
    """
    earlier = recording.claim_tool_call(started)
    if earlier is not None:
        return earlier
    journal = recording.journal
    thread = started.identity.thread_id
    repeated = journal.find_repeat(thread, started.name, started.arguments)
    started = started.model_copy(
        update={"repeated_of": None if repeated == started.id else repeated}
    )
    key = started.idempotency_key
    done = journal.find_by_key(thread, key) if key is not None else None
    if done is not None and done.status is ToolStatus.OK:
        answer = done.model_dump(
            include={"status", "content", "stdout", "stderr", "value", "output"}
        )
        started = started.model_copy(update=answer)
    return _written(recording, started, repeatable)


def finish_tool_call(
    recording: Recording,
    begun: ToolCall,
    outcome: ToolOutcome,
    elapsed: float,
    repeatable: bool = False,
) -> ToolCall:
    """Write the outcome of a call. Returns the stored record, which may have the outcome of another
    run that ended the call first.
    """
    measured: dict[str, Any] = {"stderr": outcome.stderr, "duration_seconds": elapsed}
    if outcome.execution is not None:
        measured = {name: getattr(outcome.execution, name) for name in _MEASURED}
    elif outcome.duration_seconds is not None:
        measured["duration_seconds"] = outcome.duration_seconds
    came_to = {
        name: getattr(outcome, name) for name in ("status", "content", "output", "graph_effects")
    }
    ended = begun.model_copy(update=measured | came_to | {"ended_at": time.time()})
    return _written(recording, ended, repeatable)


def _written(recording: Recording, tool_call: ToolCall, repeatable: bool) -> ToolCall:
    standing = recording.write_tool_call(tool_call, repeatable=repeatable)
    if (standing.name, standing.arguments) == (tool_call.name, tool_call.arguments):
        return standing
    # the stored record belongs to another call, to which the model gave the same id
    return recording.write_tool_call(tool_call, again=True)
