"""LangGraph's private names as the installed one has them. Each test says what broke where it
changed one.
"""

from __future__ import annotations

import ast
import operator
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy, Command, Send, interrupt

from hrm_agent import langgraph_format as ours


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("INTERRUPT", "INTERRUPT"),
        ("RESUME", "RESUME"),
        ("RETURN", "RETURN"),
        ("ERROR", "ERROR"),
        ("ERROR_SOURCE", "ERROR_SOURCE_NODE"),
        ("INPUT", "INPUT"),
        ("SENDS", "TASKS"),
        ("SNAPSHOT_BUMPS", "SNAPSHOT_BUMPS"),
        ("PUSH", "PUSH"),
        ("PULL", "PULL"),
        ("NULL_TASK", "NULL_TASK_ID"),
        ("RUNTIME", "CONFIG_KEY_RUNTIME"),
        ("READ", "CONFIG_KEY_READ"),
        ("TASK", "CONFIG_KEY_TASK_ID"),
        ("CHECKPOINTER", "CONFIG_KEY_CHECKPOINTER"),
        ("SCRATCHPAD", "CONFIG_KEY_SCRATCHPAD"),
        ("SEND", "CONFIG_KEY_SEND"),
        ("CALL", "CONFIG_KEY_CALL"),
        ("_CHECKPOINT_MAP", "CONFIG_KEY_CHECKPOINT_MAP"),
        ("_BETWEEN_PARTS", "NS_SEP"),
        ("_BEFORE_TASK", "NS_END"),
    ],
)
def test_constants(name: str, theirs: str) -> None:
    module = "langgraph._internal._constants"
    found = getattr(import_module(module), theirs, None)
    assert found is not None, (
        f"LangGraph has no {theirs} in {module} any more: what is {getattr(ours, name)!r} now?"
    )
    assert getattr(ours, name) == found, (
        f"LangGraph writes {found!r} for {theirs} now: read both, and write theirs"
    )


def test_a_cache_inside_a_subgraph_is_replaced() -> None:
    own, given = InMemoryCache[Any](), InMemoryCache[Any]()
    ours.substitute_caches(lambda cache: given if cache is own else cache)
    inner = StateGraph(State).add_node("see", lambda _: {"seen": ["x"]}, cache_policy=CachePolicy())
    cached = inner.add_edge(START, "see").compile(cache=own)
    StateGraph(State).add_node("inner", cached).add_edge(START, "inner").compile().invoke({})
    held = [bool(vars(cache)["_cache"]) for cache in (own, given)]
    assert held == [
        False,
        True,
    ], "LangGraph takes a graph's cache from elsewhere than Pregel._defaults now"


def test_ends_of_a_graph() -> None:
    assert (ours.START, ours.END) == (START, END)


class State(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]


def config(checkpoint_id: str = "") -> dict[str, Any]:
    return {
        "configurable": {
            "thread_id": "t",
            **({"checkpoint_id": checkpoint_id} if checkpoint_id else {}),
        }
    }


def noting(name: str) -> Any:
    return lambda _: {"seen": [name]}


def team() -> StateGraph[State]:
    """a and b side by side, then c when both have ended, which sends d twice."""
    builder = StateGraph(State)
    for name in "abd":
        builder.add_node(name, noting(name))
    builder.add_node(
        "c", lambda _: Command(update={"seen": ["c"]}, goto=[Send("d", {}), Send("d", {})])
    )
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "c")
    return builder


def test_a_question_is_seen_by_what_counts_it() -> None:
    seen: list[Any] = []

    def ask(_: State) -> State:
        configurable = get_config()["configurable"]
        pad = configurable[ours.SCRATCHPAD]
        counting = lambda: (  # noqa: E731
            seen.append(ours.question_asked(sys._getframe())),
            pad.interrupt_counter(),
        )[1]  # pyright: ignore[reportPrivateUsage]
        configurable[ours.SCRATCHPAD] = replace(pad, interrupt_counter=counting)
        return {"seen": [interrupt({"well": 1}, response_schema={"type": "string"})]}

    graph = (
        StateGraph(State)
        .add_node("ask", ask)
        .add_edge(START, "ask")
        .compile(checkpointer=InMemorySaver())
    )
    graph.invoke({}, config())
    assert seen == [({"well": 1}, {"type": "string"})], (
        "read LangGraph's `interrupt`: where is its question now?"
    )
    assert ours.question_asked(sys._getframe()) is None  # pyright: ignore[reportPrivateUsage]


def test_namespaces_name_the_tasks_around_a_call() -> None:
    found: list[str] = []

    def look(_: State) -> State:
        found.append(get_config()["configurable"]["checkpoint_ns"])
        return {}

    inner = StateGraph(State)
    inner.add_node("look", look)
    inner.add_edge(START, "look")
    called = inner.compile()

    def twice(state: State) -> State:
        called.invoke(state)
        called.invoke(state)
        return {}

    outer = StateGraph(State)
    outer.add_node("look", look)
    outer.add_node("twice", twice)
    outer.add_edge(START, "look")
    outer.add_edge("look", "twice")
    outer.compile(checkpointer=InMemorySaver()).invoke({"seen": []}, config())
    nodes = [[part.node for part in ours.namespace_parts(namespace)] for namespace in found]
    assert nodes == [["look"], ["twice", "look"], ["twice", "1", "look"]]
    for namespace in found:
        own = ours.namespace_parts(namespace)[-1]
        assert ours.namespace_around(namespace) == own.around
        assert namespace.removeprefix(own.around).lstrip("|") == f"{own.node}:{own.task_id}"
        assert ours.task_of_namespace(namespace) == own.task_id


@dataclass
class Mine:
    number: int


class Typed(TypedDict):
    mine: Mine


def test_types_that_a_state_declares() -> None:
    builder = StateGraph(Typed)
    builder.add_node("a", lambda _: {})
    builder.add_edge(START, "a")
    assert (__name__, Mine.__name__) in set(ours.types_of_channels(builder.compile().channels))


PROJECT = Path(__file__).parents[1]
PRIVATE = (
    "__pregel",
    "branch:to:",
    "checkpoint_map",
    "__interrupt__",
    "__resume__",
    "__error__",
    "__input__",
)


def test_nobody_else_knows_them() -> None:
    """Changes of LangGraph need a fix in one file only."""
    wrong = list[str]()
    for path in (
        path
        for room in ("hrm_agent", "graphs", "training")
        for path in (PROJECT / room).rglob("*.py")
    ):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # docstrings
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)) if id(node) not in told and text.startswith(
                    PRIVATE
                ):
                    wrong.append(f"{path}:{node.lineno} {text!r}")
                case ast.ImportFrom(module=str(module)) if module.startswith("langgraph._"):
                    wrong.append(f"{path}:{node.lineno} {module}")
                case ast.Call(
                    func=ast.Attribute(attr="split" | "partition" | "rpartition", value=value)
                ) if "checkpoint_ns" in ast.unparse(value) or ast.unparse(value) == "namespace":
                    wrong.append(f"{path}:{node.lineno} {ast.unparse(node)}")
                case _:
                    pass
    assert [place for place in wrong if "langgraph_format.py" not in place] == []


def test_channels_of_a_checkpoint_name_what_runs_next() -> None:
    graph = team().compile(checkpointer=InMemorySaver())
    graph.invoke({"seen": []}, config())
    steps = [
        (
            set(
                ours.triggered_nodes(
                    graph.checkpointer.get_tuple(s.config).checkpoint["channel_values"]
                )
            ),
            set(s.next),
        )
        for s in graph.get_state_history(config())
    ]
    assert [found for found, _ in steps] == [next_ for _, next_ in steps]
    assert [found for found, _ in reversed(steps)] == [{START}, {"a", "b"}, {"c"}, {"d"}, set()]


def test_internal_channels_are_those_that_the_author_did_not_name() -> None:
    graph = team().compile()
    assert [name for name in graph.channels if not ours.is_internal(name)] == ["seen"]
    assert not ours.is_internal(ours.ROOT)


def test_ids_of_tasks() -> None:
    graph = team().compile(checkpointer=InMemorySaver())
    graph.invoke({"seen": []}, config())
    for state in graph.get_state_history(config()):
        own, step = state.config["configurable"]["checkpoint_id"], state.metadata["step"] + 1
        for index, task in enumerate(state.tasks):
            pulled = (ours.PULL, *sorted(graph.nodes[task.name].triggers))
            made_by = (ours.PUSH, str(index)) if task.name == "d" else pulled
            assert ours.task_id_of(own, "", step, task.name, *made_by) == task.id, task.name


def test_writes_of_a_question_and_of_its_answer() -> None:
    builder = StateGraph(State)
    builder.add_node("ask", lambda _: {"seen": [interrupt("which?")]})
    builder.add_edge(START, "ask")
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    asked = graph.invoke({"seen": []}, config())
    waiting = saver.get_tuple(config())
    assert waiting is not None and [channel for _, channel, _ in waiting.pending_writes] == [
        ours.INTERRUPT
    ]
    assert ours.INTERRUPT in asked
    assert graph.invoke(Command(resume="this"), config())["seen"] == ["this"]
    answered = saver.get_tuple(waiting.config)
    assert answered is not None
    assert (ours.NULL_TASK, ours.RESUME, "this") in answered.pending_writes


def test_a_task_knows_its_checkpoint_and_that_of_the_outermost_graph() -> None:
    found: list[tuple[str, str]] = []

    def look(_: State) -> State:
        configurable = get_config()["configurable"]
        own = str(configurable[ours.RUNTIME].execution_info.checkpoint_id)
        found.append((own, ours.checkpoint_of_root(configurable, own)))
        assert configurable[ours.READ]("seen") == []
        return {}

    inner = StateGraph(State)
    inner.add_node("look", look)
    inner.add_edge(START, "look")
    outer = StateGraph(State)
    outer.add_node("look", look)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "look")
    outer.add_edge("look", "inner")
    graph = outer.compile(checkpointer=InMemorySaver())
    graph.invoke({"seen": []}, config())
    (own, root), (inner_own, inner_root) = found
    ids = {s.config["configurable"]["checkpoint_id"] for s in graph.get_state_history(config())}
    assert own == root and inner_own not in ids and inner_root in ids
