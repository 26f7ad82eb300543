"""Writes a tool call to the journal before it runs and again when it has ended, and never runs a finished one twice.

A node that runs again after a crash asks for the same tool calls. One that had finished gives its recorded answer; one
that was under way runs again under the same record. So a tool runs at least once, and a finished call never again;
`status` None in a stored record means that the process died (or was cancelled) in the middle of it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from hrm_agent.errors import HrmError
from hrm_agent.trajectory import ToolCall, ToolStatus, active_recording, tool_record_id
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["ToolOutcome", "as_message", "record_tool_call"]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What running a tool came to."""

    status: ToolStatus
    content: str
    """What the model is shown."""
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    duration_seconds: float | None = None
    """As the enforcing side measured it; None: by the clock around the call."""


async def record_tool_call(
    *,
    tool_call_id: str,
    name: str,
    arguments: dict[str, Any] | str,
    config: RunnableConfig,
    execute: Callable[[], Awaitable[ToolOutcome]],
) -> ToolCall:
    """Run `execute` under a record, or give back the record of the same call if it has finished before.

    Of the exceptions of `execute`, cancellation, LangGraph's control flow and errors that a person can mend pass
    through and leave the record unfinished. Any other is a fault of the infrastructure and recorded as such.
    """
    started = _started(tool_call_id, name, arguments, config)
    journal = active_recording().journal
    earlier = journal.find_tool_call(started.id)
    if earlier is not None and earlier.status is not None and _same_call(earlier, started):
        return earlier
    repeated = journal.find_repeat(started.identity.thread_id, name, arguments)
    started = started.model_copy(update={"repeated_of": None if repeated == started.id else repeated})
    journal.write_tool_call(started)
    clock = time.perf_counter()
    outcome = await _shielded(execute)
    finished = _finished(started, outcome, time.perf_counter() - clock)
    journal.write_tool_call(finished)
    return finished


def as_message(record: ToolCall) -> ToolMessage:
    """The message that answers a finished call."""
    return ToolMessage(
        record.content,
        name=record.name,
        tool_call_id=record.tool_call_id,
        status="success" if record.status is ToolStatus.OK else "error",
        artifact={"status": str(record.status), "record": record.id},
    )


def _started(tool_call_id: str, name: str, arguments: dict[str, Any] | str, config: RunnableConfig) -> ToolCall:
    identity = graph_identity(config.get("metadata"), run_id=tool_call_id)
    return ToolCall(
        id=tool_record_id(identity.thread_id, identity.task_id, tool_call_id),
        identity=identity,
        tool_call_id=tool_call_id,
        name=name,
        arguments=arguments,
        started_at=time.time(),
    )


def _same_call(earlier: ToolCall, now: ToolCall) -> bool:
    """Outside a graph nothing but the call's id tells calls apart, and some models number theirs from 0 each time."""
    return (earlier.name, earlier.arguments) == (now.name, now.arguments)


async def _shielded(execute: Callable[[], Awaitable[ToolOutcome]]) -> ToolOutcome:
    try:
        return await execute()
    except (GraphBubbleUp, HrmError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return ToolOutcome(ToolStatus.INFRASTRUCTURE, "The tool could not be run.", stderr=reason)


def _finished(started: ToolCall, outcome: ToolOutcome, elapsed: float) -> ToolCall:
    duration = elapsed if outcome.duration_seconds is None else outcome.duration_seconds
    return started.model_copy(
        update={
            "status": outcome.status,
            "content": outcome.content,
            "stdout": outcome.stdout,
            "stderr": outcome.stderr,
            "value": outcome.value,
            "duration_seconds": duration,
        }
    )
