"""Sessions of the Python tool: ownership of variables, the cells behind a call, and the order of
calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

from hrm_agent.environment import using_environment
from hrm_agent.errors import HrmError
from hrm_agent.store import RunStore, open_store
from hrm_agent.tools import python, python_stateless, run_tool_calls
from hrm_agent.tools.python_tool import DIFFERS
from hrm_agent.tools.sessions import end_sessions
from hrm_agent.trajectory import Recording, SessionState, ToolCall, ToolStatus, recording
from tests.support.tools.cells import Cells

Script = Sequence[Sequence[str]]
THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def cells() -> Iterator[Cells]:
    environment = Cells()
    with using_environment(environment):
        yield environment


def asking(codes: Sequence[str], number: int = 0, tool: str = "python") -> AIMessage:
    calls = [
        {"name": tool, "args": {"code": code}, "id": f"{number}-{i}"}
        for i, code in enumerate(codes)
    ]
    return AIMessage("", tool_calls=calls)


def loop(script: Script, tools: str = "node") -> Any:
    """A graph that asks for the calls of `script`, message after message."""

    def ask(state: MessagesState) -> dict[str, Any]:
        number = sum(isinstance(message, AIMessage) for message in state["messages"])
        return {
            "messages": [
                asking(script[number], number) if number < len(script) else AIMessage("done")
            ]
        }

    async def ours(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        last: Any = state["messages"][-1]
        return {"messages": await run_tool_calls(last, [python], config)}

    def after(state: MessagesState) -> Any:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        if tools == "send":
            return [Send("tools", [call]) for call in calls] or END
        return "tools" if calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_node("tools", ours if tools == "ours" else ToolNode([python]))
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", after, ["tools", END])
    builder.add_edge("tools", "ask")
    return builder


def shown(messages: Sequence[AnyMessage]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


async def run(graph: Any, way: str = "async", config: Any = THREAD, **options: Any) -> list[str]:
    given = {"messages": [HumanMessage("go")]}
    if way == "sync":
        state = await asyncio.to_thread(graph.invoke, given, config, **options)
    else:
        state = await graph.ainvoke(given, config, **options)
    return shown(state["messages"])


def histories(environment: Cells) -> list[list[str] | None]:
    return [
        None if s.history is None else [cell.code for cell in s.history] for s in environment.asked
    ]


def records(store: RunStore) -> list[ToolCall]:
    return store.journal.tool_calls()


# whose variables


async def test_variables_live_on_and_the_record_says_how(store: RunStore, cells: Cells) -> None:
    graph = loop([["x = 6"], ["y = x * 7\ny"], ["1 / 0"], ["y + 1"]]).compile(
        checkpointer=store.checkpointer
    )
    active = Recording(store.journal)
    active.run_id = "a-run"
    with recording(active):
        assert await run(graph, durability="sync") == [
            "(no output)",
            "42",
            "ZeroDivisionError: division by zero",
            "43",
        ]
    assert histories(cells) == [
        [],
        ["x = 6"],
        ["x = 6", "y = x * 7\ny"],
        ["x = 6", "y = x * 7\ny", "1 / 0"],
    ]
    assert [record.session for record in records(store)] == [SessionState.NEW] + [
        SessionState.KEPT
    ] * 3
    first = records(store)[0]
    assert (first.isolation, first.cpu_seconds, first.peak_memory_bytes, first.attempt) == (
        "L0",
        0.5,
        9,
        1,
    )
    assert [s.id for s in cells.asked] == [record.id for record in records(store)]
    assert len({s.session for s in cells.asked}) == 1 and {s.run for s in cells.asked} == {"a-run"}


async def test_without_a_thread_each_call_has_a_fresh_interpreter(cells: Cells) -> None:
    assert await run(loop([["x = 6"], ["x"]]).compile(), config={}) == [
        "(no output)",
        "NameError: name 'x' is not defined",
    ]
    assert [(s.session, s.history) for s in cells.asked] == [(None, None)] * 2


async def test_the_stateless_tool_has_no_session(store: RunStore, cells: Cells) -> None:
    with recording(Recording(store.journal)):
        for code in ("x = 6", "x"):
            await python_stateless.ainvoke(
                {**asking([code]).tool_calls[0], "name": "python_stateless", "id": code}, THREAD
            )
    assert [s.session for s in cells.asked] == [None, None]
    assert [(r.name, r.session, r.status) for r in records(store)] == [
        ("python_stateless", None, ToolStatus.OK),
        ("python_stateless", None, ToolStatus.ERROR),
    ]


async def test_a_thread_id_makes_a_session_outside_of_graphs_and_recordings_too(
    cells: Cells,
) -> None:
    other: Any = {"configurable": {"thread_id": "u"}}
    for number, (code, config) in enumerate([("x = 6", THREAD), ("x", other), ("x", THREAD)]):
        await python.ainvoke({**asking([code]).tool_calls[0], "id": f"outside-{number}"}, config)
    names = [s.session for s in cells.asked]
    assert names[0] == names[2] != names[1]
    assert histories(cells) == [None] * 3, "what nobody records, the environment remembers"
    assert {s.id for s in cells.asked} == {None}, "ids that are unique in a message only are no ids"


async def test_loops_side_by_side_have_sessions_of_their_own_and_nodes_of_a_loop_share_one(
    store: RunStore, cells: Cells
) -> None:
    inner = loop([["x = 1"], ["x"]]).compile()

    async def solve(state: Any) -> dict[str, Any]:
        return {"messages": (await inner.ainvoke({"messages": [HumanMessage("go")]}))["messages"]}

    builder = StateGraph(MessagesState)
    builder.add_node("solve", solve)
    builder.add_node("first", ToolNode([python]))
    builder.add_node("second", ToolNode([python]))
    builder.add_node("ask", lambda state: {"messages": [asking(["z"], 9)]})
    builder.add_conditional_edges(
        START, lambda _: [Send("solve", {}), Send("solve", {}), Send("first", asking_state())]
    )
    builder.add_edge("first", "ask")
    builder.add_edge("ask", "second")
    graph = builder.compile(checkpointer=store.checkpointer)
    with recording(Recording(store.journal)):
        await run(graph, durability="sync")
    by_session: dict[Any, list[str]] = {}
    for asked in cells.asked:
        by_session.setdefault(asked.session, []).append(asked.code)
    assert sorted(by_session.values()) == [["x = 1", "x"], ["x = 1", "x"], ["z = 5", "z"]]
    assert "5" in [record.value for record in records(store)]


def asking_state() -> dict[str, Any]:
    return {"messages": [asking(["z = 5"], 8)]}


async def test_a_subgraph_that_remembers_keeps_its_session(store: RunStore, cells: Cells) -> None:
    inner = StateGraph(MessagesState)
    inner.add_node("tools", ToolNode([python]))
    inner.add_edge(START, "tools")
    builder = StateGraph(MessagesState)
    builder.add_node("worker", inner.compile(checkpointer=True))
    builder.add_edge(START, "worker")
    graph = builder.compile(checkpointer=store.checkpointer)
    with recording(Recording(store.journal)):
        for number, code in enumerate(["x = 1", "x = x + 1", "x"]):
            await graph.ainvoke({"messages": [asking([code], number)]}, THREAD, durability="sync")
    assert histories(cells) == [[], ["x = 1"], ["x = 1", "x = x + 1"]]
    assert len({s.session for s in cells.asked}) == 1 and records(store)[-1].value == "2"


async def test_threads_of_one_name_in_two_stores_share_nothing(
    tmp_path: Path, cells: Cells
) -> None:
    for name in ("a.db", "b.db"):
        with open_store(tmp_path / name) as opened, recording(Recording(opened.journal)):
            await run(
                loop([["x = 6"], ["x"]]).compile(checkpointer=opened.checkpointer),
                durability="sync",
            )
    names = [s.session for s in cells.asked]
    assert names[0] == names[1] != names[2] == names[3]


# which cells


@pytest.mark.parametrize("ended", ["timeout", "out_of_memory", "infrastructure", "denied"])
async def test_a_call_whose_process_ended_is_no_cell(
    ended: str, store: RunStore, cells: Cells
) -> None:
    script = [["x = 1"], [f"x = 2\nraise SystemExit({ended!r})"], ["x"]]
    graph = loop(script).compile(checkpointer=store.checkpointer)
    with recording(Recording(store.journal)):
        assert (await run(graph, durability="sync"))[2] == "1"
    assert histories(cells)[2] == ["x = 1"]
    assert [record.session for record in records(store)][2] is SessionState.REPLAYED


async def test_calls_that_come_out_differently_are_named_in_one_line(
    store: RunStore, cells: Cells
) -> None:
    graph = loop([["import time\nt = time.time_ns()\nt"], ["2"], ["3"]]).compile(
        checkpointer=store.checkpointer
    )
    with recording(Recording(store.journal)):
        stream = graph.astream(
            {"messages": [HumanMessage("go")]}, THREAD, durability="sync", stream_mode="values"
        )
        found: list[str] = []
        async for state in stream:
            found = shown(state["messages"])
            if len(found) == 1:
                cells.living.clear()
    assert found[1:] == [f"{DIFFERS.format('call 1')}\n2", "3"]
    assert [r.session for r in records(store)] == [
        SessionState.NEW,
        SessionState.DIFFERS,
        SessionState.KEPT,
    ]
    assert [r.changed_cells for r in records(store)] == [(), (1,), ()]


@pytest.mark.parametrize("fails_at", ["ask", "tools"])
async def test_a_run_that_goes_on_in_another_process_has_the_cells_before(
    fails_at: str, store: RunStore, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = loop([["x = [1]"], ["x.append(2)", "x.append(3)\n1"], ["x"]]).compile(
        checkpointer=store.checkpointer
    )
    run_cell = cells.run

    async def dying(submission: Any) -> Any:
        if submission.code.startswith("x.append(3)"):
            raise HrmError("the process dies")
        return await run_cell(submission)

    monkeypatch.setattr(cells, "run", dying)
    with recording(Recording(store.journal)), pytest.raises(HrmError):
        await run(graph, durability="sync")
    monkeypatch.undo()
    if fails_at == "tools":
        cells.living.clear()
    with recording(Recording(store.journal)):
        state = await graph.ainvoke(None, THREAD, durability="sync")
    assert shown(state["messages"])[-1] == "[1, 2, 3]"
    assert histories(cells)[-2:] == [
        ["x = [1]", "x.append(2)"],
        ["x = [1]", "x.append(2)", "x.append(3)\n1"],
    ]
    assert [s.code for s in cells.asked].count("x.append(2)") == 1, (
        "a finished call is not run again"
    )
    assert len({s.session for s in cells.asked}) == 1


@pytest.mark.parametrize("edited", [True, False])
async def test_a_branch_within_a_thread_has_the_cells_of_its_ancestors(
    edited: bool, store: RunStore, cells: Cells
) -> None:
    script = [["x = 1"], ["x = x + 10"], ["x"]]
    graph = loop(script).compile(checkpointer=store.checkpointer)
    with recording(Recording(store.journal)):
        assert (await run(graph, durability="sync"))[-1] == "11"
    after_first = next(
        s
        for s in graph.get_state_history(THREAD)
        if s.next == ("ask",) and len(shown(s.values["messages"])) == 1
    )
    config = after_first.config
    if edited:
        config = graph.update_state(
            config, {"messages": [HumanMessage("another way")]}, as_node="tools"
        )
    script[1:] = [["x = x + 100"], ["x = x + 1000"], ["x"]]
    with recording(Recording(store.journal)):
        state = await graph.ainvoke(None, config, durability="sync")
    assert shown(state["messages"])[-1] == "1101"
    assert histories(cells)[-1] == ["x = 1", "x = x + 100", "x = x + 1000"]


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_checkpoints_that_are_written_late_do_no_harm(
    durability: Any, store: RunStore, cells: Cells
) -> None:
    graph = loop([["x = 1"], ["x = x + 1"], ["x"]]).compile(checkpointer=store.checkpointer)
    with recording(Recording(store.journal)):
        for _ in range(2):
            assert (await run(graph, durability=durability))[-1] == "2"
    assert histories(cells)[-1] == ["x = 1", "x = x + 1"]


async def test_under_another_saver_a_thread_is_one_line(store: RunStore, cells: Cells) -> None:
    graph = loop([["x = 1"], ["x = x + 1"], ["x"]]).compile(checkpointer=InMemorySaver())
    with recording(Recording(store.journal)):
        assert (await run(graph))[-1] == "2"
    assert histories(cells) == [[], ["x = 1"], ["x = 1", "x = x + 1"]]


async def test_a_thread_whose_old_checkpoints_were_pruned_has_its_cells(
    store: RunStore, cells: Cells
) -> None:
    script = [["x = 1"], ["x = x + 1"], ["x = x + 1"], ["x"]]
    graph = loop(script[:2]).compile(checkpointer=store.checkpointer)
    with recording(Recording(store.journal)):
        await run(graph, durability="sync")
    store.checkpointer.prune(["t"], strategy="keep_latest")
    graph.update_state(
        graph.get_state(THREAD).config, {"messages": [HumanMessage("more")]}, as_node="tools"
    )
    script.insert(2, [])
    more = loop(script).compile(checkpointer=store.checkpointer)
    with recording(Recording(store.journal)):
        assert shown((await more.ainvoke(None, THREAD, durability="sync"))["messages"])[-1] == "3"
    assert histories(cells)[-1] == ["x = 1", "x = x + 1", "x = x + 1"]


# in which order


@pytest.mark.parametrize(
    ("tools", "way"),
    [("ours", "async"), ("node", "async"), ("node", "sync"), ("send", "async"), ("send", "sync")],
)
async def test_the_calls_of_a_message_run_one_by_one_in_its_order(
    tools: str, way: str, cells: Cells, store: RunStore
) -> None:
    script = [["x = []"], [f"x.append({i})" for i in range(12)], ["x"]]
    graph = loop(script, tools).compile(checkpointer=InMemorySaver())
    with recording(Recording(store.journal)):
        assert (await run(graph, way))[-1] == str(list(range(12)))
    assert cells.most_open == 1
    assert [len(history or ()) for history in histories(cells)] == list(range(14))


async def test_calls_without_a_session_run_side_by_side(cells: Cells) -> None:
    cells.together = 4
    await run_tool_calls(asking(["1"] * 4), [python], {})
    assert cells.most_open == 4


async def test_one_that_is_cancelled_while_it_waits_lets_the_others_through(cells: Cells) -> None:
    cells.together = 0
    calls = [{**asking([str(i)]).tool_calls[0], "id": f"cancel-{i}"} for i in range(4)]
    tasks = [asyncio.create_task(python.ainvoke(call, THREAD)) for call in calls]
    while not cells.open:
        await asyncio.sleep(0.01)
    tasks[0].cancel()
    tasks[2].cancel()
    cells.together = 1
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert [d.text if isinstance(d, ToolMessage) else type(d).__name__ for d in done] == [
        "CancelledError", "1", "CancelledError", "3",
    ]  # fmt: skip


# the end


async def test_sessions_end_though_the_environment_is_gone(store: RunStore, cells: Cells) -> None:
    active = Recording(store.journal)
    with recording(active):
        await run(loop([["x = 1"]]).compile(checkpointer=store.checkpointer), durability="sync")
    (name,) = cells.living

    class Gone(Cells):
        async def end_session(self, session: str, *, run: str = "") -> None:
            raise HrmError("closed")

    await end_sessions(active, Gone())
    await end_sessions(active, cells)
    assert (cells.ended, list(cells.living)) == ([], [name]), "they were given up"
