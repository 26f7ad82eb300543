"""The Python tool: what the model is offered and shown, in our loop's way of calling and in
LangGraph's own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from hrm_agent.environment import ExecutionResult, using_environment
from hrm_agent.tools import python
from hrm_agent.tools.python_tool import MAX_CONTENT, tool_content
from hrm_agent.trajectory import MemoryJournal, ToolStatus, tool_record_id
from tests.support.tools.cells import Cells


def call(code: str, call_id: str = "c") -> Any:
    return {"type": "tool_call", "name": "python", "args": {"code": code}, "id": call_id}


def test_the_model_is_offered_one_argument() -> None:
    function = convert_to_openai_tool(python)["function"]
    assert function["name"] == "python"
    assert list(function["parameters"]["properties"]) == ["code"]
    assert function["parameters"]["required"] == ["code"]
    assert function["description"].count(".") == 1


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("print('a')\n6 * 7", "a\n42"),
        ("6 * 7", "42"),
        ("print('a')", "a"),
        ("x = 1", "(no output)"),
        ("import sys\nprint('warning', file=sys.stderr)\n1", "1"),
        ("RESULT = [1, 2]", "[1, 2]"),
        (
            "y = 2\nx",
            "File \"<snippet>\", line 2, in <module>\n    x\nNameError: name 'x' is not defined",
        ),
        (
            "def f():\n    1 / 0\nf()",
            'File "<snippet>", line 2, in f\n    1 / 0\nZeroDivisionError: division by zero',
        ),
        ("f(", "File \"<snippet>\", line 1\n    f(\nSyntaxError: '(' was never closed"),
        (
            "print('so far')\n1 / 0",
            (
                'so far\nFile "<snippet>", line 2, in <module>\n    1 / 0\nZeroDivisionError:'
                " division by zero"
            ),
        ),
        ("import os\nos._exit(3)", "Error: the code failed without a message"),
        ("[0] * 10**11", "MemoryError: the code needed more memory than its limit"),
    ],
)
async def test_what_the_model_is_shown(journal: MemoryJournal, code: str, content: str) -> None:
    assert (await python.ainvoke(call(code))).content == content


async def test_a_flood_is_shown_in_a_few_lines(journal: MemoryJournal) -> None:
    message = await python.ainvoke(call("while True: print('x' * 100)"))
    assert message.artifact["status"] == "output_limit"
    assert len(message.content) < MAX_CONTENT + 100
    assert message.content.endswith("OutputLimitError: the code printed more than its output limit")


@pytest.mark.parametrize(
    "result",
    [
        ExecutionResult(ToolStatus.OK, stdout="a" * 50_000, value="b" * 50_000),
        ExecutionResult(
            ToolStatus.ERROR, stdout="a" * 50_000, stderr="ValueError: " + "b" * 50_000
        ),
        ExecutionResult(ToolStatus.ERROR, stderr="\n".join(["b" * 20_000] * 9)),
    ],
)
def test_content_is_bounded(result: ExecutionResult) -> None:
    assert len(tool_content(result)) < MAX_CONTENT + 150


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (ToolStatus.TIMEOUT, "so far\nTimeoutError: the code ran longer than its time limit"),
        (ToolStatus.INFRASTRUCTURE, "so far\nThe code could not be run; it is not to blame."),
    ],
)
async def test_what_the_model_is_shown_of_the_rest(
    journal: MemoryJournal, status: ToolStatus, content: str
) -> None:
    with using_environment(Cells()):
        message = await python.ainvoke(call(f"print('so far')\nraise SystemExit({str(status)!r})"))
    assert (message.content, message.status, message.artifact["status"]) == (
        content,
        "error",
        str(status),
    )


async def test_the_record_holds_all_of_it(journal: MemoryJournal) -> None:
    message = await python.ainvoke(call("print('a')\n1"))
    record = journal.find_tool_call(message.artifact["record"])
    assert record is not None
    assert record.id == tool_record_id("c", "c", "c")
    assert (record.name, record.arguments, record.status) == (
        "python",
        {"code": "print('a')\n1"},
        ToolStatus.OK,
    )
    assert (record.stdout, record.value, record.content) == ("a\n", "1", "a\n1")
    assert record.duration_seconds > 0


async def test_a_recorded_answer_is_given_back(journal: MemoryJournal) -> None:
    code = "import random\nrandom.random()"
    first, second = await python.ainvoke(call(code)), await python.ainvoke(call(code))
    assert first.content == second.content
    third = await python.ainvoke(call(code, "other"))
    assert third.content != first.content


def test_sync_and_inside_a_running_loop(journal: MemoryJournal) -> None:
    async def inside() -> ToolMessage:
        return python.invoke(call("2 + 2", "b"))

    assert python.invoke(call("1 + 1", "a")).content == "2"
    assert asyncio.run(inside()).content == "4"


def tool_node_graph() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([python]))
    builder.set_entry_point("tools")
    return builder.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("way", ["sync", "async"])
def test_in_the_prebuilt_tool_node(journal: MemoryJournal, way: str) -> None:
    message = AIMessage("", tool_calls=[call("1 / 0", "a"), call("3", "b")])
    graph, config = tool_node_graph(), {"configurable": {"thread_id": "t"}}
    state = {"messages": [message]}
    result = (
        graph.invoke(state, config) if way == "sync" else asyncio.run(graph.ainvoke(state, config))
    )
    answers: list[AnyMessage] = result["messages"][1:]
    assert [(m.tool_call_id, m.status) for m in answers if isinstance(m, ToolMessage)] == [
        ("a", "error"),
        ("b", "success"),
    ]
    assert answers[1].content == "3"
    for answer in answers:
        record = journal.find_tool_call(answer.artifact["record"])
        assert record is not None
        assert (record.identity.thread_id, record.identity.node) == ("t", "tools")
        assert record.identity.checkpoint_ns.startswith("tools:")
        assert record.identity.checkpoint_id
        assert record.status == answer.artifact["status"]
