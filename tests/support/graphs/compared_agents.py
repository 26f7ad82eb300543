"""Graphs whose replay is compared step by step. An early node writes `word`; a test that changes it
changes the graph's code, as a replay sees it.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.types import RetryPolicy, Send, interrupt

word = "draft"
"""Changed by tests between a run and its replay."""
runs_inner = True
failures: list[str] = []
"""Failed attempts."""


class Plan(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    note: str
    parts: Annotated[list[str], operator.add]
    members: set[str]
    answer: str


def early(state: Plan) -> dict[str, Any]:
    return {"note": word, "members": {"a", "b", "c", "d"}}


def late(state: Plan) -> dict[str, Any]:
    return {"note": "done", "answer": "42"}


def _line(*nodes: Any, schema: Any = Plan, **options: Any) -> Any:
    return (
        StateGraph(schema).add_sequence(nodes).add_edge(START, nodes[0].__name__).compile(**options)
    )


steps = _line(early, late)


def nothing(state: Plan) -> None:
    """Write nothing."""


extra_step = _line(early, late, nothing)


# a graph with parallel nodes


def fan(state: Plan) -> list[Send]:
    return [Send("part", {"note": f"{word} {number}"}) for number in range(3)]


def part(state: Plan) -> dict[str, Any]:
    return {"parts": [str(state.get("note"))]}


def forget(state: Plan) -> dict[str, Any]:
    return {"answer": str(len(state.get("parts", []))), "note": ""}


def plain_part(state: Plan) -> dict[str, Any]:
    return {"parts": ["one"]}


parallel = (
    StateGraph(Plan)
    .add_node(early)
    .add_node(part)
    .add_node(forget)
    .add_edge(START, "early")
    .add_conditional_edges("early", fan, ["part"])
    .add_edge("part", "forget")
    .compile()
)


# a subgraph whose inner steps leave no trace outside


class Inner(TypedDict, total=False):
    note: str
    scratch: str
    seen: Annotated[list[str], operator.add]


def think(state: Inner) -> dict[str, Any]:
    return {"scratch": word}


def conclude(state: Inner) -> dict[str, Any]:
    return {"scratch": "", "seen": ["once"], "note": "concluded"}


inner = _line(think, conclude, schema=Inner)
remembering = _line(think, conclude, schema=Inner, checkpointer=True)


def calls_inner(state: Plan) -> dict[str, Any]:
    note: Any = inner.invoke({"note": "in"}) if runs_inner else {"note": "concluded"}
    return {"note": note["note"]}


def calls_twice(state: Plan) -> dict[str, Any]:
    # a generator: LangGraph does not find a graph that only an inner function names
    notes: tuple[Any, ...] = tuple(inner.invoke({"note": text}) for text in ("one", "two"))
    return {"parts": [str(each["note"]) for each in notes]}


def calls_remembering(state: Plan) -> dict[str, Any]:
    told: Any = remembering.invoke({"note": "in"})
    return {"note": f"seen {len(told['seen'])} times"}


elsewhere = _line(think, conclude, schema=Inner, checkpointer=InMemorySaver())


def calls_elsewhere(state: Plan) -> dict[str, Any]:
    return {"note": elsewhere.invoke({"note": "in"})["note"]}


kept_elsewhere = _line(calls_elsewhere)
nested = _line(calls_inner, late)
nested_twice = _line(calls_twice, late)
memory = _line(calls_remembering, schema=Plan)
memory_as_node = StateGraph(Plan).add_node("special", remembering).add_node(late)
memory_as_node = memory_as_node.add_edge(START, "special").add_edge("special", "late").compile()
memory_deep = StateGraph(Plan).add_node("outer", memory).add_edge(START, "outer").compile()


# graphs of the functional API


@task
def double(number: int) -> str:
    return f"{word} {number * 2}"


@entrypoint()
def functional(given: Any) -> dict[str, Any]:
    futures = [double(number) for number in (1, 2)]
    lengths = [len(future.result()) for future in futures]
    return {"messages": [AIMessage(str(len(lengths)), id="m")]}


@task
def human(about: str) -> str:
    return f"{about}: {interrupt(about)}"


@task
def two_humans(about: str) -> str:
    return " ".join(human(f"{about} {number}").result() for number in (1, 2))


@entrypoint()
def asks_in_tasks(given: Any) -> dict[str, Any]:
    said = [human("a").result(), human("b").result(), two_humans("c").result(), interrupt("end")]
    return {"messages": [AIMessage("; ".join(said), id="m")]}


# subgraphs and tasks that tools call


@tool
def through_a_graph(x: int) -> str:
    """Run a graph."""
    return str(_steps_inside.invoke({"note": f"{x}"}).get("answer"))


@tool
def through_a_task(x: int) -> str:
    """Run a functional task."""
    return double(x).result()


_steps_inside = _line(early, late)


class Counted(Plan):
    remaining_steps: RemainingSteps


def by_hand(state: Counted) -> dict[str, Any]:
    """Run the graph inside a tool, a graph of the node itself, and the graph inside the tool
    again.
    """
    said = [through_a_graph.invoke({"x": 1}), through_a_task.invoke({"x": 1}), double(3).result()]
    if runs_inner:
        _steps_inside.invoke({"note": "own"})
    return {"parts": [*said, through_a_graph.invoke({"x": 2}), through_a_task.invoke({"x": 2})]}


def sent_on(state: Counted) -> list[Send]:
    return [Send("sent", {"within": {**state}}), Send("sent", state)]


def sent(state: Any) -> dict[str, Any]:
    return {"parts": [through_a_graph.invoke({"x": 4})]}


in_tools = (
    StateGraph(Counted)
    .add_node(by_hand)
    .add_node(sent)
    .add_edge(START, "by_hand")
    .add_conditional_edges("by_hand", sent_on, ["sent"])
    .compile()
)


# graphs that ask a person or repeat attempts


def ask(state: Plan) -> dict[str, Any]:
    return {"note": interrupt({"about": word}), "answer": "asked"}


asks = _line(early, ask, late)


def flaky(state: Plan) -> dict[str, Any]:
    if len(failures) < 1:
        failures.append("once")
        raise ValueError("away")
    return {"note": "back"}


retried = (
    StateGraph(Plan)
    .add_node("flaky", flaky, retry_policy=RetryPolicy(retry_on=ValueError, initial_interval=0.01))
    .add_node(late)
    .add_edge(START, "flaky")
    .add_edge("flaky", "late")
    .compile()
)
fails_once = _line(early, flaky, late)


# graphs with channels whose value is folded from writes


def extended(state: list[Any], writes: list[Any]) -> list[Any]:
    return [
        *state,
        *(item for write in writes for item in (write if isinstance(write, list) else [write])),
    ]


def merged(state: dict[str, str], writes: list[dict[str, str]]) -> dict[str, str]:
    return {name: text for each in (state, *writes) for name, text in each.items()}


class Desk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], DeltaChannel(extended, snapshot_frequency=4)]
    files: Annotated[dict[str, str], DeltaChannel(merged)]
    note: str


def write(state: Desk) -> dict[str, Any]:
    files = {f"{len(state.get('files', {}))}.md": f"{word} of {len(state['messages'])}"}
    return {
        "files": files,
        "messages": [
            AIMessage(f"{word} {len(state['messages'])}", id=f"w{len(state['messages'])}")
        ],
    }


def read(state: Desk) -> dict[str, Any]:
    text = f"{len(state['files'])} files, {len(state['messages'])} messages"
    return {"messages": [AIMessage(text, id=f"r{len(state['messages'])}")], "note": "read"}


desk = _line(write, read, schema=Desk)


class DeskInside(MessagesState):
    note: str


def at_desk(state: DeskInside) -> dict[str, Any]:
    done: Any = desk.invoke({"messages": [state["messages"][-1]]})
    return {"messages": [AIMessage(done["messages"][-1].text)]}


desk_inside = _line(at_desk, schema=DeskInside)


by_name = {"desk": desk}
"""Subgraphs that LangGraph does not find in a node's code."""


def at_some_desk(state: DeskInside) -> dict[str, Any]:
    done: Any = by_name["desk"].invoke({"messages": [state["messages"][-1]]})
    return {"messages": [AIMessage(done["messages"][-1].text)]}


desk_by_name = _line(at_some_desk, schema=DeskInside)


def approve(state: Desk) -> dict[str, Any]:
    return {"note": str(interrupt(list(state["files"])))}


def choose(state: Desk) -> dict[str, Any]:
    return {"files": {"approved.md": state.get("note", "")}}


desk_asks = _line(write, approve, choose, schema=Desk)
