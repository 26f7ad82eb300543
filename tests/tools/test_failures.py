"""Users' own tools: typed failures and limits, in each way of calling them, and after a crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from hrm_agent.errors import ConfigError
from hrm_agent.tools import (
    ToolFailure,
    idempotency_key,
    idempotent,
    limited,
    python,
    run_tool_calls,
)
from hrm_agent.tools.external_tools import record_external_tools
from hrm_agent.trajectory import MemoryJournal, Recording, ToolCall, ToolStatus, recording

runs: list[Any] = []
over = threading.Event()
"""Set when a test has ended."""


@tool
def denies(x: int) -> str:
    """Deny."""
    runs.append(x)
    raise ToolFailure(f"{x} is not for you.", "denied")


@limited(seconds=0.05)
@tool
def slow(x: int) -> str:
    """Wait in a thread."""
    runs.append(x)
    over.wait(600)
    return "late"


@limited(seconds=0.05)
@tool
async def slow_async(x: int) -> str:
    """Wait in a loop."""
    runs.append(x)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        runs.append("cancelled")
        raise
    return "late"


LATE = "TimeoutError: no answer within 0.05 s"
CASES = [
    (denies, "denied", "7 is not for you."),
    (slow, "timeout", LATE),
    (slow_async, "timeout", LATE),
]


@pytest.fixture
def journal() -> Iterator[MemoryJournal]:
    record_external_tools()
    runs.clear()
    over.clear()
    yield MemoryJournal()
    over.set()


def records(journal: MemoryJournal) -> list[ToolCall]:
    return list(journal._tool_calls.values())  # pyright: ignore[reportPrivateUsage]


def asked(tool: BaseTool, x: int = 7) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool.name, "args": {"x": x}, "id": "c"}])


async def through(way: str, tool: BaseTool) -> ToolMessage:
    if way == "ours":
        return (await run_tool_calls(asked(tool), [tool], {"metadata": {"thread_id": "t"}}))[0]
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([tool]))
    builder.add_edge(START, "tools")
    state = await builder.compile().ainvoke({"messages": [asked(tool)]})
    return state["messages"][-1]


@pytest.mark.parametrize("way", ["ours", "node"])
@pytest.mark.parametrize(("tool", "status", "content"), CASES)
async def test_the_model_is_told_and_the_record_has_the_status(
    way: str, tool: BaseTool, status: str, content: str, journal: MemoryJournal
) -> None:
    with recording(Recording(journal)):
        message = await through(way, tool)
    (record,) = records(journal)
    assert (message.text, message.status, message.artifact["status"]) == (content, "error", status)
    assert (record.content, record.status) == (content, ToolStatus(status)) and message.artifact[
        "record"
    ] == record.id
    while not runs:  # its thread may begin after its time is over
        await asyncio.sleep(0.01)
    assert runs == ([7, "cancelled"] if tool is slow_async else [7])


async def test_a_failure_on_record_is_given_back(journal: MemoryJournal) -> None:
    config: Any = {"metadata": {"thread_id": "t", "langgraph_checkpoint_ns": "tools:1"}}
    call: Any = asked(denies).tool_calls[0]
    messages: list[Any] = []
    for _ in range(2):
        with recording(Recording(journal)):
            messages.append(await denies.ainvoke(call, config))
    assert messages[0] == messages[1] and runs == [7]


async def test_a_node_that_calls_a_tool_by_itself_is_raised_it_in_a_replay_too(
    journal: MemoryJournal,
) -> None:
    config: Any = {"metadata": {"thread_id": "t", "langgraph_checkpoint_ns": "tools:1"}}
    with recording(Recording(journal)), pytest.raises(ToolFailure) as first:
        await denies.ainvoke({"x": 7}, config)
    replaying = Recording(journal)
    replaying.replaying = True
    with recording(replaying), pytest.raises(ToolFailure) as second:
        await denies.ainvoke({"x": 7}, config)
    assert [(str(f.value), f.value.status) for f in (first, second)] == [
        ("7 is not for you.", ToolStatus.DENIED)
    ] * 2
    assert runs == [7]


async def test_outside_of_recordings_it_is_an_exception(journal: MemoryJournal) -> None:
    with pytest.raises(ToolFailure, match="not for you"):
        denies.invoke({"x": 7})
    with pytest.raises(ToolFailure, match="no answer within"):
        await slow_async.ainvoke({"x": 7})


async def test_within_the_limit_nothing_changes(journal: MemoryJournal) -> None:
    @limited(seconds=600)
    @idempotent("x")
    @tool
    def quick(x: int) -> str:
        """Be quick."""
        if x < 0:
            raise TimeoutError("the tool's own")
        return f"{x} {idempotency_key()} {threading.current_thread().daemon}"

    with recording(Recording(journal)):
        (done,) = await run_tool_calls(asked(quick), [quick], {})
        (failed,) = await run_tool_calls(
            asked(quick, -1), [quick], {"metadata": {"thread_id": "u"}}
        )
    assert done.text == "7 quick:7 True"
    assert (failed.text, failed.artifact["status"]) == ("TimeoutError: the tool's own", "error")


def test_mistakes_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"There is no failure status 'denid'\. Did you mean 'denied'"
    ):
        ToolFailure("no", "denid")
    with pytest.raises(ConfigError, match="There is no failure status 'ok'"):
        ToolFailure("no", ToolStatus.OK)
    with pytest.raises(ConfigError, match="'python' is a PythonTool"):
        limited(seconds=1)(python)
