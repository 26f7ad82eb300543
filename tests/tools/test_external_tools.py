"""Tools without knowledge of records: run once, with their whole output returned later, and effects
performed once per key.
"""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from hrm_agent import record
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import ReplayVerdict, replay
from hrm_agent.store import open_store
from hrm_agent.store.values.serializer import StrictSerializer
from hrm_agent.store.values.typed_values import difference
from hrm_agent.testing import ScriptedEngine
from hrm_agent.tools import idempotency_key, idempotent, run_tool_calls
from hrm_agent.tools.external_tools import record_external_tools
from hrm_agent.tools.output_codec import OutputCodec, pack_error, raised
from hrm_agent.trajectory import MemoryJournal, Recording, TaskRef, ToolStatus, recording

runs: list[Any] = []
STEERING = Command(goto=["x"], update={"messages": [ToolMessage("gone", tool_call_id="c")]})


def config(task: str = "1", thread: str = "t") -> Any:
    facts = {
        "langgraph_checkpoint_ns": f"tools:{task}",
        "langgraph_node": "tools",
        "langgraph_step": 1,
    }
    return {"metadata": {"thread_id": thread, **facts}}


def call(name: str, call_id: str = "c", **arguments: Any) -> Any:
    return {"type": "tool_call", "name": name, "args": arguments, "id": call_id}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    runs.append((a, b))
    return a + b


@tool(response_format="content_and_artifact")
def fetch(x: int) -> tuple[str, Any]:
    """Has an artifact of a type that JSON does not know."""
    runs.append(x)
    return "rows", {x: {x}}


@tool
def strange(x: int) -> Any:
    """Returns what cannot be stored."""
    runs.append(x)
    return Command(update={"lock": object()})


@tool
def broken(x: int) -> str:
    """Raises."""
    runs.append(x)
    raise KeyError("no such row")


@pytest.fixture
def journal() -> MemoryJournal:
    record_external_tools()
    runs.clear()
    return MemoryJournal()


async def test_it_is_run_once_and_its_whole_output_is_given_back(journal: MemoryJournal) -> None:
    outputs: list[Any] = []
    for _ in range(2):
        with recording(Recording(journal)):
            outputs.append(
                [
                    add.invoke(call("add", a=1, b=2), config()),
                    await fetch.ainvoke(call("fetch", "d", x=3), config()),
                ]
            )
            outputs[-1] += [
                add.invoke({"a": 1, "b": 2}, config()),
                add.invoke({"a": 1, "b": 2}, config()),
            ]
    assert runs == [(1, 2), 3, (1, 2), (1, 2)], "calls without an id are told apart by their number"
    assert outputs[0] == outputs[1] and outputs[0][2:] == [3, 3]
    assert outputs[1][1].artifact == {3: {3}}


@pytest.mark.parametrize("unknown", [strange, broken])
async def test_what_is_no_answer_is_run_again(unknown: Any, journal: MemoryJournal) -> None:
    for _ in range(2):
        with recording(Recording(journal)):
            try:
                unknown.invoke(call(unknown.name, x=1), config())
            except KeyError:
                assert unknown is broken
    assert runs == [1, 1]
    (record,) = journal._tool_calls.values()  # pyright: ignore[reportPrivateUsage]
    assert record.status is (ToolStatus.ERROR if unknown is broken else ToolStatus.OK)
    assert record.output is not None and ("lost" in record.output or "raised" in record.output)


@pytest.mark.parametrize(
    "value",
    [
        1,
        "x",
        None,
        [1, 2.5],
        {"a": {1}},
        ToolMessage("x", tool_call_id="c", artifact={"a": [1]}),
        b"\x00",
        STEERING,
    ],
)
def test_outputs_come_back_as_they_were(value: Any) -> None:
    back = OutputCodec().unpack(OutputCodec().pack(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "value", [np.arange(4), (1, {2: (3,)}), Command(goto=("a", "b")), [float("nan")]]
)
def test_outputs_come_back_as_checkpoints_do(value: Any) -> None:
    codec = OutputCodec(MemoryJournal(serializer=StrictSerializer()))
    assert difference(value, codec.unpack(codec.pack(value))) is None


@pytest.mark.parametrize("within", [lambda text: text, lambda text: {"found": [text]}])
def test_the_text_of_a_message_is_a_text(within: Any) -> None:
    codec = OutputCodec(MemoryJournal(serializer=StrictSerializer()))
    assert codec.unpack(codec.pack(within(HumanMessage("x").text))) == within("x")


@pytest.mark.parametrize(
    "error", [KeyError("no such row"), OSError(2, "no such file", "rows.csv"), ValueError("x", 3)]
)
def test_errors_come_back_as_they_were(error: Exception) -> None:
    found = raised(pack_error(error))
    assert type(found) is type(error) and (repr(found), str(found)) == (repr(error), str(error))


def test_an_error_of_an_earlier_version_comes_back() -> None:
    said = {"module": "builtins", "type": "ValueError", "message": "no such row"}
    assert repr(raised({"raised": said})) == "ValueError('no such row')"


@pytest.mark.parametrize(
    "value", [object(), (1, 2), [1, (2, 3)], lambda: 1, Command(update={"lock": object()})]
)
def test_what_would_come_back_changed_is_not_given_back(value: Any) -> None:
    packed = OutputCodec().pack(value)
    assert packed["lost"] == type(value).__qualname__ and packed["reason"]


# what a tool returns of types of one's own


class ResearchComplete(BaseModel):
    """Say that the research is complete."""

    note: str = ""


class Hidden(BaseModel):
    n: int = 2


class Opaque:
    n = 3

    def __str__(self) -> str:
        raise ValueError("no text")


@tool
def lists(x: int) -> list[ResearchComplete] | None:
    """Says what it returns."""
    runs.append("lists")
    return [ResearchComplete(note="listed")]


@tool
def hides(x: int) -> Any:
    """Does not say what it returns."""
    runs.append("hides")
    return Hidden()


@tool
def opaque(x: int) -> Any:
    """Returns what cannot be stored."""
    runs.append("opaque")
    return Opaque()


class Said(TypedDict, total=False):
    said: list[Any]


def collect(_: Said) -> Said:
    complete, listed = tool(ResearchComplete).invoke({"note": "n"}), lists.invoke({"x": 1})
    hidden, unknown = hides.invoke({"x": 1}), opaque.invoke({"x": 1})
    assert (type(complete), type(listed[0]), type(hidden)) == (
        ResearchComplete,
        ResearchComplete,
        Hidden,
    )
    return {"said": [complete.note, listed[0].note, hidden.n, unknown.n, interrupt("Fine?")]}


@pytest.mark.parametrize("allow", [(), (f"{__name__}:Hidden",)], ids=["strict", "allowed"])
def test_what_cannot_be_stored_is_run_again_and_says_why(
    allow: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs.clear()
    graph, where = (
        StateGraph(Said).add_node("collect", collect).add_edge(START, "collect").compile(),
        tmp_path / "x.db",
    )
    for given in ({"said": []}, Command(resume="yes")):
        with record(where, allow=allow):
            graph.invoke(given, {"configurable": {"thread_id": "t"}})
    again = ["opaque"] if allow else ["hides", "opaque"]
    assert runs == ["lists", "hides", "opaque", *again]
    with open_store(where, allow=allow) as store:
        (trajectory,) = store.journal.trajectories()
        reasons = {
            call.name: call.output["reason"]
            for call in trajectory.tool_calls
            if "lost" in (call.output or {})
        }
        found = replay(store, trajectory.id, graph=graph)
        refused = replay(store, trajectory.id, graph=graph, refuse_effects=True)
    assert sorted(reasons) == sorted(again) and "Opaque" in reasons["opaque"]
    assert found.equal and found.unused == 0
    assert [
        re.findall(r"the tool '(\w+)' again: what", effect.what) for effect in found.effects
    ] == [[n] for n in again]
    assert "--allow MODULE:TYPE" in found.effects[0].what
    assert refused.verdict is ReplayVerdict.REFUSED
    assert "allowed_msgpack_modules" not in caplog.text, (
        "the name of the remedy is another one here"
    )


# idempotency keys

paid: list[tuple[str, str]] = []


@idempotent("order")
@tool
async def pay(order: str, amount: int) -> str:
    """Pay."""
    paid.append((order, idempotency_key()))
    await asyncio.sleep(0.02)
    if amount < 0:
        raise ValueError("less than nothing")
    return f"paid {amount}"


@pytest.mark.parametrize("through", ["tool", "run_tool_calls"])
async def test_one_effect_for_one_key_whichever_task_asks(
    through: str, journal: MemoryJournal
) -> None:
    paid.clear()

    async def ask(
        call_id: str, task: str, order: str = "o-1", amount: int = 5, thread: str = "t"
    ) -> ToolMessage:
        asked, where = call("pay", call_id, order=order, amount=amount), config(task, thread)
        if through == "tool":
            return await pay.ainvoke(asked, where)
        return (await run_tool_calls(AIMessage("", tool_calls=[asked]), [pay], where))[0]

    with recording(Recording(journal)):
        first, second = await asyncio.gather(ask("a", "1"), ask("b", "1"))
        third = await ask("c", "2", amount=7)
        await ask("d", "2", order="o-2")
        await ask("e", "1", thread="another")
    assert paid == [("o-1", "pay:o-1"), ("o-2", "pay:o-2"), ("o-1", "pay:o-1")]
    assert [m.text for m in (first, second, third)] == ["paid 5"] * 3
    assert [m.tool_call_id for m in (first, second, third)] == ["a", "b", "c"]
    assert len({m.id for m in (first, second, third)} - {None}) in (0, 3), "messages of their own"


async def test_a_key_whose_call_failed_is_free(journal: MemoryJournal) -> None:
    paid.clear()
    with recording(Recording(journal)):
        with pytest.raises(ValueError, match="less than nothing"):
            await pay.ainvoke(call("pay", "a", order="o-1", amount=-1), config())
        assert (
            await pay.ainvoke(call("pay", "b", order="o-1", amount=1), config())
        ).text == "paid 1"
    assert len(paid) == 2


def test_a_key_is_declared_by_an_argument_or_a_function(journal: MemoryJournal) -> None:
    with pytest.raises(ConfigError, match="Its arguments: a, b"):
        idempotent("c")(add.model_copy())
    with pytest.raises(ConfigError, match="No recorded tool call"):
        idempotency_key()
    summing = idempotent(lambda arguments: f"{arguments['a'] + arguments['b']}")(add.model_copy())
    with recording(Recording(journal)):
        assert [summing.invoke({"a": a, "b": 3 - a}, config()) for a in (1, 2, 0)] == [3, 3, 3]
    assert runs == [(1, 2)]


# a thread that outlives its run

began, may_end, over = threading.Event(), threading.Event(), threading.Event()
late: list[Exception] = []


@tool
def slow(x: int) -> int:
    """Waits in its thread, which nobody can cancel."""
    began.set()
    assert may_end.wait(60)
    return x


def ask(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    try:
        return {"messages": [slow.invoke(call("slow", x=1), config)]}
    except Exception as error:
        late.append(error)
        raise
    finally:
        over.set()


slow_graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


async def test_what_a_thread_writes_after_its_run_was_given_up_is_refused(
    tmp_path: Path, environment: LocalEnvironment
) -> None:
    """Another process may have the run by then."""
    episode = Episode(TaskRef(id="1", family="f", prompt="p"), "t", graph=f"{__name__}:slow_graph")
    with open_store(tmp_path / "store.db") as store, ScriptedEngine(["unused"]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        task = asyncio.create_task(runner.run(episode))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_end.set()
        await asyncio.to_thread(over.wait, 60)
        (record,) = store.journal.tool_calls()
        assert record.status is None, "it is run again when the run is resumed"
        assert "has ended" in str(late[0])
