"""Tools answered from the record affect the graph as when they ran under LangGraph alone."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store, get_stream_writer
from langgraph.errors import GraphInterrupt
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedStore, ToolNode, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from hrm_agent import record
from hrm_agent.runtime.replay.player import ReplayVerdict, replay_async
from hrm_agent.store import open_store
from hrm_agent.tools import idempotent, run_tool_calls
from hrm_agent.tools.failures import ToolFailure

ANSWERS = ("yes", "no", "later", "never", "perhaps")
ran: list[str] = []
"""Names of the tools that have ended."""


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


class Answer(BaseModel):
    word: str


def ended(name: str, *said: Any) -> str:
    ran.append(name)
    return f"{name}: {', '.join(map(str, said))}"


@tool
def pay(amount: int) -> str:
    """Pay, if a person agrees."""
    return ended("pay", interrupt(f"Pay {amount}?"))


@tool
async def ship(place: str) -> str:
    """Ship, if a person agrees."""
    await asyncio.sleep(0)
    return ended("ship", interrupt({"ship to": place}))


@tool
async def late(place: str) -> str:
    """Ask a little later."""
    for _ in range(3):
        await asyncio.sleep(0)
    return ended("late", interrupt("Late?"))


@tool
async def early(place: str) -> str:
    """Ask at once, and again much later."""
    first = interrupt("Early?")
    for _ in range(100):
        await asyncio.sleep(0)
    return ended("early", first, interrupt("At last?"))


@tool
def order(what: str) -> str:
    """Ask twice."""
    return ended("order", interrupt(f"Order {what}?"), interrupt("How many?"))


@tool
def outer(amount: int) -> str:
    """Ask, and have another tool ask."""
    return ended("outer", interrupt("Outer?"), pay.invoke({"amount": amount}), interrupt("Sure?"))


@tool
def spoilt(amount: int) -> str:
    """Ask, and fail."""
    raise ToolFailure(f"no {interrupt('Spoil it?')}")


@tool
def lenient(amount: int) -> str:
    """Go on without an answer."""
    try:
        said = interrupt("Anything?")
    except GraphInterrupt:
        said = "nothing"
    return ended("lenient", said)


@tool
def telling(what: str) -> str:
    """Tell whoever streams, and keep something."""
    get_stream_writer()({"telling": what})
    get_store().put(("memories",), what, {"seen": what})
    get_store().put(("memories",), "soon gone", {})
    get_store().delete(("memories",), "soon gone")
    return ended("telling", what)


@tool
def injected(
    what: str,
    runtime: ToolRuntime,
    memories: Annotated[BaseStore, InjectedStore()],
    config: RunnableConfig,
) -> str:
    """Write to the stream and to the store through injected arguments."""
    assert isinstance(memories, InMemoryStore) and isinstance(runtime.store, InMemoryStore)
    runtime.stream_writer({"injected": what})
    runtime.store.put(("memories",), what, {"seen": what})
    memories.put(("memories",), f"{what}, too", {"seen": what}, index=False)
    return ended("injected", what)


inner = (
    StateGraph(State)
    .add_node("inner", lambda _: {"said": [f"inner {interrupt('Inner?')}"]})
    .add_edge(START, "inner")
)
counting = inner.compile()


@tool
def nested(what: str) -> str:
    """Run a graph that asks."""
    return ended("nested", *counting.invoke({"said": [what]})["said"])


@task
def measure(what: str) -> str:
    return f"measured {what}"


@tool
def measuring(what: str) -> str:
    """Run a functional task."""
    return ended("measuring", measure(what).result())


def by_itself(_: State) -> State:
    return {"said": [pay.invoke({"amount": 5}), interrupt("Delete the database?")]}


async def by_itself_async(_: State) -> State:
    return {"said": [await ship.ainvoke({"place": "Rome"}), interrupt("Delete the database?")]}


def several(_: State) -> State:
    said = [order.invoke({"what": "tea"}), interrupt("Between?"), pay.invoke({"amount": 1})]
    return {"said": [*said, interrupt("Delete?")]}


def one_in_another(_: State) -> State:
    return {"said": [outer.invoke({"amount": 1}), interrupt("Delete?")]}


def caught(_: State) -> State:
    try:
        said = spoilt.invoke({"amount": 1})
    except ToolFailure as failure:
        said = str(failure)
    return {"said": [said, interrupt("Delete?")]}


def swallowed(_: State) -> State:
    return {"said": [lenient.invoke({"amount": 1}), interrupt("Delete?")]}


def with_schema(_: State) -> State:
    @tool
    def form(amount: int) -> str:
        """Ask for a form."""
        return ended("form", interrupt("Fill it in.", response_schema=Answer))

    return {"said": [form.invoke({"amount": 1}), interrupt("Delete?")]}


def with_memories(_: State) -> State:
    said = telling.invoke({"what": "whales"})
    found = sorted(item.key for item in get_store().search(("memories",)))
    return {"said": [said, str(found), interrupt("Delete?"), interrupt("Really?")]}


def with_a_graph(_: State) -> State:
    said = [nested.invoke({"what": "first"}), interrupt("Between?")]
    return {"said": [*said, *counting.invoke({"said": ["second"]})["said"], interrupt("Delete?")]}


def with_a_task(_: State) -> State:
    said = [measuring.invoke({"what": "tea"}), interrupt("Between?")]
    return {"said": [*said, measure("milk").result(), interrupt("Delete?")]}


async def at_once(_: State, config: RunnableConfig) -> State:
    calls = [("ship", "a", {"place": "Rome"}), ("ship", "b", {"place": "Oslo"})]
    asked = AIMessage(
        "", tool_calls=[{"name": name, "id": id_, "args": args} for name, id_, args in calls]
    )
    messages = await run_tool_calls(asked, [ship], config)
    return {"said": [*(message.text for message in messages), interrupt("Delete?")]}


def node_of(node: Any) -> Any:
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


def tool_node(*tools: Any, **arguments: Any) -> Any:
    calls = [
        {"name": each.name, "id": f"c{number}", "args": arguments}
        for number, each in enumerate(tools)
    ]
    asking = AIMessage("", id="asking", tool_calls=calls)
    run = ToolNode(list(tools))

    async def node(state: State, config: RunnableConfig, store: BaseStore) -> State:
        found = await run.ainvoke({"messages": [asking]}, config)
        kept = sorted(item.key for item in await store.asearch(("memories",)))
        return {
            "said": [
                *(message.text for message in found["messages"]),
                str(kept),
                interrupt("Delete?"),
            ]
        }

    return node_of(node)


@entrypoint()
def workflow(given: State) -> State:
    return {
        "said": [
            pay.invoke({"amount": 5}),
            measure("tea").result(),
            interrupt("Delete the database?"),
        ]
    }


def around(graph: Any) -> Any:
    return StateGraph(State).add_node("around", graph).add_edge(START, "around").compile()


GRAPHS: dict[str, Any] = {
    **{
        node.__name__: node_of(node)
        for node in (
            by_itself,
            by_itself_async,
            several,
            one_in_another,
            caught,
            swallowed,
            with_schema,
        )
    },
    **{
        node.__name__: node_of(node) for node in (with_memories, with_a_graph, with_a_task, at_once)
    },
    "in a subgraph": around(node_of(several)),
    "a functional workflow": workflow,
    "a tool node": tool_node(pay, amount=5),
    "a tool node, twice at once": tool_node(ship, ship, place="Rome"),
    "a tool node, in turns": tool_node(late, early, place="Rome"),
    "a tool node that injects": tool_node(injected, what="whales"),
}


SAID = {
    "by_itself": ["begin", "pay: yes", "no"],
    "at_once": ["begin", "ship: yes", "ship: no", "later"],
    "a tool node, in turns": ["begin", "late: no", "early: yes, later", "[]", "never"],
}


class Run(NamedTuple):
    """Outside view of a run."""

    questions: list[Any]
    """Questions in the order in which they were asked."""
    events: list[Any]
    """Custom events of all passes, in order."""
    said: list[str]
    """Final value of `said`."""


async def answered(graph: Any, passes: Callable[[], Any], saver: Any, **again: Any) -> Run:
    """Run a graph to its end. Each pass has a new in-memory store, as in a process of its own."""
    config: Any = {"configurable": {"thread_id": "t"}}
    given: Any = {"said": ["begin"]}
    questions, events, answers = list[Any](), list[Any](), iter(ANSWERS)
    while True:
        each = graph.copy(
            update={"store": InMemoryStore()}
            | ({"checkpointer": saver} if saver is not None else {})
        )
        final: dict[str, Any] = {}
        with passes():
            async for mode, data in each.astream(given, config, stream_mode=["custom", "values"]):
                final = data if mode == "values" else final
                events += [data] if mode == "custom" else []
        if "__interrupt__" not in final:
            return Run(questions, events, final["said"])
        (asked,) = final["__interrupt__"]
        questions.append((asked.value, asked.response_schema))
        answer = next(answers)
        given = Command(resume={"word": answer} if asked.response_schema else answer)


class Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "own_saver", [False, True], ids=["the store's checkpoints", "the program's"]
)
@pytest.mark.parametrize("name", GRAPHS)
async def test_a_recorded_program_ends_as_it_does_alone(
    name: str, own_saver: bool, tmp_path: Path
) -> None:
    graph, where = GRAPHS[name], tmp_path / "x.db"
    alone = await answered(graph, Nothing, InMemorySaver())
    assert alone.said == SAID.get(name, alone.said)
    ran.clear()
    assert (
        await answered(graph, lambda: record(where), InMemorySaver() if own_saver else None)
        == alone
    )
    again = "lenient" in ran or "once" in name
    assert again or len(ran) == len(set(ran)), (
        "a tool that has ended is run again where its answer is another one only"
    )


@pytest.mark.parametrize("name", GRAPHS)
async def test_a_replay_asks_as_it_did(name: str, tmp_path: Path) -> None:
    graph, where = GRAPHS[name], tmp_path / "x.db"
    await answered(graph, lambda: record(where), None)
    ran.clear()
    with open_store(where) as store:
        (trajectory,) = store.journal.trajectories()
        found = await replay_async(store, trajectory.id, graph=graph)
    assert (found.verdict, found.effects, ran) == (ReplayVerdict.EQUAL, (), [])


broken: list[str] = []
"""Any item makes the process end once, after the node's tool has ended."""


class Killed(BaseException): ...


def failing(_: State) -> State:
    said = pay.invoke({"amount": 5})
    if broken:
        raise Killed(broken.pop())
    return {"said": [said, interrupt("Delete?")]}


@pytest.mark.parametrize("recorded", [False, True], ids=["alone", "recorded"])
def test_another_answer_than_the_one_on_record_runs_the_tool_again(
    recorded: bool, tmp_path: Path
) -> None:
    """An answer given by ID is lost with the process, so the question is asked again."""
    graph = node_of(failing).copy(update={"checkpointer": InMemorySaver()})
    broken[:], ran[:] = ["away"], []
    config: Any = {"configurable": {"thread_id": "t"}}

    def step(given: Any) -> Any:
        with record(tmp_path / "x.db") if recorded else Nothing():
            return graph.invoke(given, config)

    (asked,) = step({"said": []})["__interrupt__"]
    with pytest.raises(Killed):
        step(Command(resume={asked.id: "yes"}))
    (asked,) = step(None)["__interrupt__"]
    assert asked.value == "Pay 5?", "by the call on record, which has ended"
    (asked,) = step(Command(resume={asked.id: "no"}))["__interrupt__"]
    assert asked.value == "Delete?"
    assert step(Command(resume="never"))["said"] == ["pay: no", "never"]
    assert ran == (["pay", "pay"] if recorded else ["pay"] * 3)


def test_a_tool_that_does_nothing_to_the_graph_leaves_nothing_of_it(tmp_path: Path) -> None:
    @tool
    def plain(amount: int) -> str:
        """Do nothing to the graph."""
        get_store().get(("memories",), "none")
        return "plain"

    graph = node_of(lambda _: {"said": [plain.invoke({"amount": 1}), pay.name]})
    with record(tmp_path / "x.db"):
        graph.copy(update={"store": InMemoryStore()}).invoke({"said": []})
    with open_store(tmp_path / "x.db") as store:
        (call,) = store.journal.tool_calls()
    assert "graph_effects" not in call.model_dump_json() and call.output is not None


async def test_what_a_tool_did_under_its_key_is_not_done_twice(tmp_path: Path) -> None:
    """The tool's question is asked once. A second call under the key is answered without a
    question.
    """
    paying = idempotent("amount")(pay.model_copy())
    graph = node_of(
        lambda _: {"said": [*(paying.invoke({"amount": 5}) for _ in "ab"), interrupt("Delete?")]}
    )
    ran.clear()
    found = await answered(graph, lambda: record(tmp_path / "x.db"), None)
    assert found.said == ["begin", "pay: yes", "pay: yes", "no"] and ran == ["pay"]
