"""All calls of a message are answered, in order, whatever is wrong with them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from hrm_agent.environment.base import Limits
from hrm_agent.errors import GraphError
from hrm_agent.tools import python, run_tool_calls
from hrm_agent.trajectory import MemoryJournal, Recording, recording


@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@tool
async def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


def message(*calls: tuple[str, dict[str, Any]], **more: Any) -> AIMessage:
    listed = [{"name": name, "args": args, "id": f"id{i}"} for i, (name, args) in enumerate(calls)]
    return AIMessage("", tool_calls=listed, **more)


async def test_every_call_is_answered_in_order_with_its_status(journal: MemoryJournal) -> None:
    asked = message(
        ("python", {"code": "import time\ntime.sleep(0.2)\n'slow'"}),
        ("python", {"code": "1 / 0"}),
        ("add", {"a": 1}),
        ("fail", {"reason": "no"}),
        ("nope", {"a": 1}),
        ("python", {"kode": "1"}),
        ("python", {"code": 5}),
        invalid_tool_calls=[
            {"name": "python", "args": '{"code": ', "id": "bad", "error": "Unterminated string"},
            {"name": None, "args": "gibberish", "id": None, "error": None},
        ],
    )
    answers = await run_tool_calls(asked, [python, add, fail], {})
    assert [answer.artifact["status"] for answer in answers] == [
        "ok", "error", "ok", "error", "invalid_call", "invalid_call", "invalid_call", "invalid_call", "invalid_call",
    ]  # fmt: skip
    assert [answer.status == "success" for answer in answers] == [True, False, True] + [False] * 6
    assert [answer.tool_call_id for answer in answers] == [f"id{i}" for i in range(7)] + [
        "bad",
        "call_8",
    ]
    contents = [str(answer.content) for answer in answers]
    assert contents[0] == "'slow'"
    assert contents[2:6] == [
        "2",
        "ValueError: no",
        "Unknown tool 'nope'. Known tools: add, fail, python.",
        "Invalid arguments for python: code: Field required",
    ]
    assert contents[7:] == [
        "Invalid tool call: Unterminated string",
        "Invalid tool call: it could not be decoded",
    ]
    for answer in answers:
        record = journal.find_tool_call(answer.artifact["record"])
        assert record is not None
        assert (record.status, record.content) == (answer.artifact["status"], answer.content)
    undecoded = journal.find_tool_call(answers[7].artifact["record"])
    assert undecoded is not None
    assert undecoded.arguments == '{"code": '


async def test_what_a_tool_gives_beside_its_text_is_on_record(journal: MemoryJournal) -> None:
    """The artifact is also returned if the call is not run again."""
    runs: list[int] = []

    @tool(response_format="content_and_artifact")
    def look_up(number: int) -> tuple[str, Any]:
        """Look it up."""
        runs.append(number)
        return f"no. {number}", {"pages": [number, None]} if number else object()

    asked = message(("look_up", {"number": 7}), ("look_up", {"number": 0}))
    config: Any = {"metadata": {"thread_id": "t", "langgraph_checkpoint_ns": "tools:1"}}
    first = await run_tool_calls(asked, [look_up], config)
    with recording(Recording(journal)):
        again = await run_tool_calls(asked, [look_up], config)
    for answers in (first, again):
        assert (
            answers[0].artifact["artifact"] == {"pages": [7, None]} and answers[0].text == "no. 7"
        )
        assert "artifact" not in answers[1].artifact, "an object that no record can hold"
    assert sorted(runs) == [0, 7]


async def test_calls_that_could_not_be_decoded_survive_streaming(journal: MemoryJournal) -> None:
    """LangChain drops them from a streamed message; our chat model keeps them in the response's
    metadata.
    """
    invalid = {
        "name": "python",
        "args": "x",
        "id": "i",
        "error": "no JSON",
        "type": "invalid_tool_call",
    }
    answers = await run_tool_calls(
        AIMessage("", response_metadata={"invalid_tool_calls": [invalid]}), [python], {}
    )
    assert [answer.content for answer in answers] == ["Invalid tool call: no JSON"]


async def test_calls_run_side_by_side(journal: MemoryJournal) -> None:
    """All calls begin before any of them ends."""
    begun: list[int] = []

    @tool
    async def meet(number: int) -> int:
        """Wait for the others."""
        begun.append(number)
        while len(begun) < 4:
            await asyncio.sleep(0.01)
        return number

    @tool
    def meet_in_a_thread(number: int) -> int:
        """Wait for the others."""
        barrier.wait()
        return number

    barrier = threading.Barrier(4, timeout=60)
    for meeting in (meet, meet_in_a_thread):
        answers = await run_tool_calls(
            message(*[(meeting.name, {"number": i}) for i in range(4)]), [meeting], {}
        )
        assert [answer.content for answer in answers] == ["0", "1", "2", "3"]


async def test_nothing_runs_twice(journal: MemoryJournal) -> None:
    runs: list[str] = []

    @tool
    def note(text: str) -> str:
        """Note."""
        runs.append(text)
        return text

    asked = message(("note", {"text": "a"}), ("nope", {}))
    first = await run_tool_calls(asked, [note], {})
    second = await run_tool_calls(asked, [note], {})
    assert [a.content for a in first] == [a.content for a in second]
    assert runs == ["a"]


async def test_a_tool_that_handles_its_error_still_failed(journal: MemoryJournal) -> None:
    @tool
    def picky(x: int) -> int:
        """Refuse."""
        raise ToolException("not this one")

    picky.handle_tool_error = True
    (answer,) = await run_tool_calls(message(("picky", {"x": 1})), [picky], {})
    assert (answer.status, answer.artifact["status"], answer.content) == (
        "error",
        "error",
        "not this one",
    )


async def test_a_tool_that_steers_the_graph_is_refused_with_a_hint(journal: MemoryJournal) -> None:
    @tool
    def steer() -> Command[str]:
        """Steer."""
        return Command(goto=END)

    with pytest.raises(GraphError, match="ToolNode"):
        await run_tool_calls(message(("steer", {})), [steer], {})


async def test_an_interrupt_of_a_tool_reaches_the_graph_and_the_other_calls_are_kept(
    journal: MemoryJournal,
) -> None:
    runs: list[str] = []

    @tool
    async def note() -> str:
        """Note."""
        await asyncio.sleep(0.05)
        runs.append("note")
        return "noted"

    @tool
    async def ask() -> str:
        """Ask a person."""
        return str(interrupt("go on?"))

    async def tools(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": await run_tool_calls(state["messages"][-1], [ask, note], config)}  # type: ignore[arg-type]

    builder = StateGraph(MessagesState)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"messages": [message(("ask", {}), ("note", {}))]}, config)
    assert (await graph.aget_state(config)).next == ("tools",)
    result = await graph.ainvoke(Command(resume="yes"), config)
    assert [answer.content for answer in result["messages"][1:]] == ["yes", "noted"]
    assert runs == ["note"]


async def test_cancelling_leaves_the_calls_unfinished(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "limits", Limits(wall_seconds=600.0))
    asked = message(("python", {"code": "import time\ntime.sleep(60)"}))
    task = asyncio.create_task(run_tool_calls(asked, [python], {}))
    while not journal._tool_calls:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = journal._tool_calls.values()
    assert record.status is None


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, hrm_agent.tools; print(any(m.startswith(('langchain', 'langgraph')) for m in"
        " sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
