"""Writes a tool call to the journal before it runs and again when it has ended, and never runs a
finished one twice.

A node that runs again after a crash asks for the same tool calls. One that is on record as finished
gives that answer; one that was under way runs again under the same record. So a tool runs at least
once, and never again when its outcome is on record; `status` None in a stored record means that the
process died (or was cancelled) in the middle of it.

Where a call has an idempotency key, its effect is wanted once in the thread, whichever task or
branch asks for it: a call under a key that has ended well before is answered from that record, and
two at once wait for each other.
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
"""What an `ExecutionResult` and a record both have; the rest of it is not stored."""
SECONDS_BETWEEN_LOOKS = 0.01
"""How often a call looks whether another one under its key has ended."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What running a tool came to."""

    status: ToolStatus
    """How the tool call ended."""
    content: str
    """What the model is shown."""
    output: dict[str, Any] | None = None
    """The whole answer of a tool that is not ours (`ToolCall.output`)."""
    execution: ExecutionResult | None = None
    """What an environment measured of the code that it ran; None for a tool that runs none."""
    stderr: str = ""
    """What went wrong, of a tool that runs no code."""
    duration_seconds: float | None = None
    """Time in seconds, of a tool that runs no code; None: by the clock around the call."""
    graph_effects: tuple[dict[str, Any], ...] = ()
    """Its effects on the graph (`ToolCall.graph_effects`)."""


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
    """Run `execute` under a record, or give back the record of the same call if it has finished
    before.

    The effects of a finished call on the graph are repeated (`hrm_agent.tools.graph_effects`). If
    that is impossible, `execute` is given the numbers of the questions that the call has asked.

    Of the exceptions of `execute`, cancellation, LangGraph's control flow and errors that a person
    can mend pass through and leave the record unfinished. Any other is a fault of the
    infrastructure and recorded as such. `repeatable`: as for `Journal.write_tool_call`.
    """
    identity = graph_identity(config.get("metadata"), run_id=tool_call_id)
    started, recording = (
        new_tool_call(identity, tool_call_id, name, arguments, key),
        active_recording(),
    )
    while not acquire(recording, started):  # noqa: ASYNC110  # the other call may be another event loop's
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
            outcome = await _shielded(partial(execute, drawn) if drawn else execute)
        elapsed = time.perf_counter() - clock
        return await recording.apart(
            finish_tool_call, recording, begun, outcome, elapsed, repeatable
        )


def as_message(record: ToolCall) -> ToolMessage:
    """The message that answers a finished call. Under `artifact` in its own is that of the tool,
    where it gave one.

    Its metadata says when the tool was at work, as an answer's says when the model was.
    """
    told = {"status": str(record.status), "record": record.id}
    given = ((record.output or {}).get("message") or {}).get("artifact")
    return ToolMessage(
        record.content,
        id=record.id,
        name=record.name,
        tool_call_id=record.tool_call_id,
        status="success" if record.status is ToolStatus.OK else "error",
        artifact=told if given is None else told | {"artifact": given},
        response_metadata=_when(record),
    )


def _when(record: ToolCall) -> dict[str, Any]:
    if record.ended_at is None:
        return {}
    identity = record.identity
    # which stands in for one
    on_thread = identity.checkpoint_ns and identity.thread_id != record.tool_call_id
    thread = {THREAD_ID: identity.thread_id} if on_thread else {}
    return {
        STARTED_AT: record.ended_at - record.duration_seconds,
        ENDED_AT: record.ended_at,
        **thread,
    }


def new_tool_call(
    identity: GraphIdentity,
    tool_call_id: str,
    name: str,
    arguments: dict[str, Any] | str,
    key: str | None,
) -> ToolCall:
    """A call that has not begun."""
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
    """Take the idempotency key of a call, if it has one; False while another call is under way with
    it.
    """
    key = started.idempotency_key
    return key is None or recording.hold_key(started.identity.thread_id, key)


@contextmanager
def holding(recording: Recording, started: ToolCall) -> Generator[None]:
    """Give the key back at the end."""
    try:
        yield
    finally:
        if started.idempotency_key is not None:
            recording.release_key(started.identity.thread_id, started.idempotency_key)


def begin_tool_call(recording: Recording, started: ToolCall, repeatable: bool = False) -> ToolCall:
    """A finished record, where one answers this call; else the call, written as under way."""
    earlier = recording.claim_tool_call(started)
    if earlier is not None:
        return earlier
    journal, thread = recording.journal, started.identity.thread_id
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
    """Write a call's outcome. Returns the stored record: another run's, if that ended the call
    first.
    """
    ended = begun.model_copy(update=_came_to(outcome, elapsed) | {"ended_at": time.time()})
    return _written(recording, ended, repeatable)


def _written(recording: Recording, tool_call: ToolCall, repeatable: bool) -> ToolCall:
    standing = recording.write_tool_call(tool_call, repeatable=repeatable)
    if (standing.name, standing.arguments) == (tool_call.name, tool_call.arguments):
        return standing
    # of another call that the model gave the same id
    return recording.write_tool_call(tool_call, again=True)


def _came_to(outcome: ToolOutcome, elapsed: float) -> dict[str, Any]:
    """The fields of a `ToolCall` that say how it ended."""
    ended = {
        name: getattr(outcome, name) for name in ("status", "content", "output", "graph_effects")
    }
    if outcome.execution is not None:
        return {name: getattr(outcome.execution, name) for name in _MEASURED} | ended
    seconds = elapsed if outcome.duration_seconds is None else outcome.duration_seconds
    return ended | {"stderr": outcome.stderr, "duration_seconds": seconds}


async def _shielded(execute: Callable[[], Awaitable[ToolOutcome]]) -> ToolOutcome:
    try:
        return await execute()
    except (GraphBubbleUp, HrmError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {text_of(error)}"
        return ToolOutcome(ToolStatus.INFRASTRUCTURE, "The tool could not be run.", stderr=reason)
