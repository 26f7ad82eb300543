"""Values: they are read back unchanged, equal values are stored once, and a step costs only its new
data.

`stock` is LangGraph's own serializer. Every saver returns values as it converts them (it has no
tuples, for example).
"""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.store.values.content_addressed import FANOUT, KnownBlobs, ValueReader, ValueWriter
from hrm_agent.store.values.serializer import StrictSerializer
from tests.support.postgres import PostgresServer
from tests.support.store.bodies import execute

TYPES = ("Own", "OwnModel", "Colour", "Lenient")
NAMES = iter(range(10**9))


@dataclass
class Own:
    number: int
    inside: Any = None


class OwnModel(BaseModel):
    name: str
    held: list[Any] = []


class Colour(Enum):
    RED = "red"


@dataclass
class Lenient:
    """Class whose instances equal others that differ from them."""

    seen: int
    hidden: int = field(default=0, compare=False)


@pytest.fixture(scope="module", params=["sqlite", "sqlite encrypted", "postgresql"])
def store(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres: PostgresServer,
) -> Iterator[RunStore]:
    """One store for all examples: each has a thread of its own."""
    path = tmp_path_factory.mktemp("values") / "store.db"
    where = postgres.create_database() if request.param == "postgresql" else f"sqlite:///{path}"
    key = bytes(range(32)) if request.param == "sqlite encrypted" else None
    with open_store(where, key=key, allow=[f"{__name__}:{name}" for name in TYPES]) as opened:
        yield opened
    if request.param == "postgresql":
        postgres.drop_database(where)


def put(store: RunStore, config: Any, **values: Any) -> Any:
    """Store a checkpoint with these values after that of `config`, and return the new one's config."""
    versions: Any = {name: str(next(NAMES)) for name in values}
    checkpoint: Any = {
        **empty_checkpoint(),
        "id": str(uuid6()),
        "channel_values": values,
        "channel_versions": versions,
    }
    return store.checkpointer.put(config, checkpoint, {"source": "loop", "step": 1}, versions)


def read(store: RunStore, config: Any) -> dict[str, Any]:
    found = store.checkpointer.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def fresh() -> Any:
    return {"configurable": {"thread_id": f"thread {next(NAMES)}", "checkpoint_ns": ""}}


def same(a: Any, b: Any) -> bool:
    """True if both are equal, with equal types at all levels and in equal order. NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, BaseModel):
        return same(a.model_dump(), b.model_dump())
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Own):
        return a.number == b.number and same(a.inside, b.inside)
    return a == b


TEXT = st.text(max_size=200)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    TEXT,
    st.binary(max_size=200),
    st.uuids(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.sets(st.integers(-5, 300), max_size=1),
    st.just(Colour.RED),
    st.decimals(allow_nan=False),
)
ARGUMENTS = st.dictionaries(
    TEXT, st.one_of(st.none(), st.integers(-9, 9), st.floats(), TEXT), max_size=4
)
CALLS = st.lists(
    st.builds(
        lambda args, id_: {"name": "f", "args": args, "id": id_, "type": "tool_call"},
        ARGUMENTS,
        TEXT,
    ),
    max_size=3,
)
MESSAGES = st.one_of(
    st.builds(HumanMessage, content=TEXT, name=st.none() | TEXT, additional_kwargs=ARGUMENTS),
    st.builds(
        AIMessage, content=TEXT, tool_calls=CALLS, response_metadata=ARGUMENTS, id=st.none() | TEXT
    ),
    st.builds(
        ToolMessage, content=TEXT, tool_call_id=TEXT, artifact=ARGUMENTS | st.binary(max_size=90)
    ),
    st.builds(
        SystemMessage,
        content=st.lists(st.builds(lambda t: {"type": "text", "text": t}, TEXT), max_size=3),
    ),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=FANOUT + 3),
        st.dictionaries(TEXT, inner, max_size=8),
        st.dictionaries(st.integers(-9, 9), inner, max_size=8),
        st.builds(Own, st.integers(0, 9), inner),
    )


VALUES = st.recursive(PLAIN | MESSAGES, nested, max_leaves=30)
EXAMPLES = settings(
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@EXAMPLES
@given(value=VALUES)
def test_what_goes_in_comes_out(value: Any, store: RunStore) -> None:
    config = put(store, fresh(), value=value, again=[value, value])
    found = read(store, config)
    assert same(found["value"], value)
    assert same(found["again"], [value, value])
    (listed,) = store.checkpointer.list(config)
    assert same(listed.checkpoint["channel_values"], found)
    assert list(found) == ["value", "again"]


@EXAMPLES
@given(value=VALUES)
def test_so_do_pending_writes(value: Any, store: RunStore) -> None:
    config = put(store, fresh(), value=1)
    store.checkpointer.put_writes(
        config, [("a", value), ("b", [value]), ("__interrupt__", value)], "task"
    )
    found = store.checkpointer.get_tuple(config)
    assert found is not None and found.pending_writes is not None
    written = {channel: value for _, channel, value in found.pending_writes}
    assert (
        same(written["a"], value)
        and same(written["b"], [value])
        and same(written["__interrupt__"], value)
    )


@EXAMPLES
@given(value=VALUES)
def test_equal_values_have_equal_references(value: Any) -> None:
    """Holds for values written twice, and for values read and written again. (The order of a set is
    arbitrary.)
    """
    serializer = StrictSerializer([(__name__, name) for name in TYPES])
    stored: dict[bytes, Any] = {}

    def referred(value: Any) -> Any:
        writer = ValueWriter(serializer, KnownBlobs())
        reference = writer.reference(value)
        stored.update(writer.new)
        return reference

    reader = ValueReader(
        serializer, lambda hashes: [(h, stored[h].kind, stored[h].data) for h in hashes]
    )
    reference = referred(value)
    reader.load([reference])
    assert referred(value) == reference
    assert referred(reader.value(reference)) == reference


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(EXAMPLES, max_examples=200, derandomize=False)
@given(value=VALUES)
def test_all_of_that_holds_of_many_more_values(value: Any, store: RunStore) -> None:
    test_what_goes_in_comes_out.hypothesis.inner_test(value, store)
    test_so_do_pending_writes.hypothesis.inner_test(value, store)
    test_equal_values_have_equal_references.hypothesis.inner_test(value)


OF_MANY_TYPES: list[Any] = [
    (1, 2, "three"),
    [(1, HumanMessage("in a tuple")), (2, None)],
    {"a": (1, [2, (3,)])},
    {1, 2, 3},
    frozenset({"a", "b"}),
    deque([1, 2], maxlen=3),
    bytearray(b"x" * 100),
    Decimal("1.10"),
    uuid.UUID(int=7),
    dt.timedelta(seconds=1.5),
    Path("/tmp/x"),
    OwnModel(name="x", held=[1, {"a": None}]),
    Own(1, [Own(2)]),
    Own(1, HumanMessage("in a dataclass")),
    "a lone surrogate \ud800",
    [HumanMessage("a lone surrogate \udfff")],
    {"a lone surrogate": "\ud800", "long": "x" * 600},
    {(1, 2): "keys", "of": "several types", "long": "x" * 600},
    {None: 1, True: 2, 2.5: 3, "long": "x" * 600},
    [None] * 100,
    [True, False, None, 1.5],
    [[], {}, "", b"", None, [[]], [{}]],
    {"": {"": {"": []}}},
    [float("nan"), float("inf"), -0.0],
    [-0.0, "not only numbers"],
]


@pytest.mark.parametrize("value", OF_MANY_TYPES, ids=lambda value: type(value).__name__)
def test_a_value_comes_out_as_it_was(value: Any, store: RunStore) -> None:
    assert same(read(store, put(store, fresh(), value=value))["value"], value)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1023, 1024, 1025])
def test_lists_of_all_sizes(count: int, store: RunStore) -> None:
    """Sizes at the boundaries of chunks and levels. Texts are used, since they are not stored in
    one piece as numbers are.
    """
    items = [f"item {number}" for number in range(count)]
    values = {"items": items, "numbers": list(range(count)), "nested": [items, items[:-1], [items]]}
    assert read(store, put(store, fresh(), **values)) == values


def test_a_list_of_ten_thousand(tmp_path: Path) -> None:
    items = [f"item {number} of a list " + "x" * 60 for number in range(10_000)]
    with open_store(tmp_path / "store.db") as store:
        config = put(store, fresh(), items=items)
        assert read(store, config)["items"] == items
        before = usage(store)
        longer = put(store, config, items=[*items, "x" * 70])
        assert usage(store)["rows"] - before["rows"] == 4, (
            "the item, and a node on each of three levels"
        )
        assert len(read(store, longer)["items"]) == 10_001


def test_large_dicts(store: RunStore) -> None:
    """Stored by their entries: what is changed is what is stored."""
    state: dict[str, Any] = {
        f"key {n}": {"text": f"{n} " * 200, "messages": [HumanMessage(str(n))]} for n in range(300)
    }
    config = put(store, fresh(), state=state)
    assert same(read(store, config)["state"], state)
    before = usage(store)
    state["key 7"]["messages"].append(AIMessage("more"))
    config = put(store, config, state=state)
    assert usage(store)["rows"] - before["rows"] <= 3
    assert same(read(store, config)["state"], state)


def usage(store: RunStore) -> dict[str, int]:
    with store.database.read() as cursor:
        rows, size = cursor.execute(
            "SELECT count(*), coalesce(sum(length(data)), 0) FROM blobs"
        ).fetchone()
    return {"rows": int(rows), "bytes": int(size)}


def test_a_conversation_costs_what_is_new_in_it(store: RunStore) -> None:
    """A checkpoint after every message: bytes are linear in the conversation, where whole copies
    are quadratic.
    """
    config, messages = fresh(), list[BaseMessage]()
    begun, rows, sizes = usage(store), dict[int, int](), dict[int, int]()
    for number in range(1, 401):
        messages.append(
            AIMessage(f"{number}: " + "some words of an answer " * 8, id=f"{config} {number}")
        )
        config = put(store, config, messages=messages)
        if number in (50, 100, 200, 400):
            now = usage(store)
            rows[number], sizes[number] = now["rows"] - begun["rows"], now["bytes"] - begun["bytes"]
    assert all(rows[number] <= 3.1 * number for number in rows), rows
    each = {number: sizes[number] / number for number in sizes}
    assert each[400] < 1.5 * each[50], each
    assert len(read(store, config)["messages"]) == 400


# what is changed in place


def answer() -> AIMessage:
    return AIMessage(
        "the answer",
        id="a",
        tool_calls=[
            {
                "name": "f",
                "args": {"flag": 1, "deep": [{"list": [1, 2]}]},
                "id": "t",
                "type": "tool_call",
            }
        ],
        additional_kwargs={"flag": 1, "deep": {"er": [1]}},
        response_metadata={"flag": 1, "deep": {"er": [1]}},
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        an_extra_field=[1],
    )


def result() -> ToolMessage:
    return ToolMessage("42", tool_call_id="t", artifact={"deep": [{"er": 1}], "object": Lenient(1)})


def setting(name: str, value: Any) -> Callable[[Any], None]:
    return lambda message: setattr(message, name, value)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "content": (answer, setting("content", "another answer")),
    "id": (answer, setting("id", "b")),
    "name": (answer, setting("name", "somebody")),
    "deep in arguments": (answer, lambda m: m.tool_calls[0]["args"]["deep"][0]["list"].append(3)),
    "1 to True in arguments": (answer, lambda m: m.tool_calls[0]["args"].update(flag=True)),
    "1 to 1.0 in arguments": (answer, lambda m: m.tool_calls[0]["args"].update(flag=1.0)),
    "another call": (answer, lambda m: m.tool_calls.append({**m.tool_calls[0], "id": "u"})),
    "deep in additional_kwargs": (answer, lambda m: m.additional_kwargs["deep"]["er"].append(2)),
    "1 to True in additional_kwargs": (answer, lambda m: m.additional_kwargs.update(flag=True)),
    "a key of additional_kwargs": (answer, lambda m: m.additional_kwargs.pop("flag")),
    "order in additional_kwargs": (
        answer,
        lambda m: m.additional_kwargs.update(flag=m.additional_kwargs.pop("flag")),
    ),
    "deep in response_metadata": (answer, lambda m: m.response_metadata["deep"]["er"].append(2)),
    "0.0 to -0.0 in response_metadata": (
        lambda: AIMessage("x", response_metadata={"zero": 0.0}),
        lambda m: m.response_metadata.update(zero=-0.0),
    ),
    "usage_metadata": (answer, lambda m: m.usage_metadata.update(output_tokens=9)),
    "a field of no declaration": (answer, lambda m: m.an_extra_field.append(2)),
    "deep in an artifact": (result, lambda m: m.artifact["deep"][0].update(er=2)),
    "an artifact": (result, setting("artifact", None)),
    "an object that is equal all the same": (
        result,
        lambda m: setattr(m.artifact["object"], "hidden", 7),
    ),
    "status": (result, setting("status", "error")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_message_that_is_changed_in_place_is_stored_anew(change: str, store: RunStore) -> None:
    make, edit = CHANGES[change]
    message, untouched = make(), HumanMessage("as it was")
    first = put(store, fresh(), messages=[untouched, message])
    again = put(store, first, messages=[untouched, message])
    before = dumped(message)
    edit(message)
    assert dumped(message) != before, "the edit changes nothing that is stored"
    second = put(store, again, messages=[untouched, message])
    assert dumped(read(store, second)["messages"][1]) == dumped(message)
    for config in (first, again):
        assert dumped(read(store, config)["messages"][1]) == before


def dumped(message: BaseMessage) -> bytes:
    return JsonPlusSerializer().dumps_typed(message)[1]


def test_the_place_of_a_message_that_is_gone_is_not_the_message(store: RunStore) -> None:
    """Objects that are made at the address of earlier ones, by the thousand."""
    config = fresh()
    for start in range(0, 3000, 300):
        messages = [HumanMessage(f"{start + number}") for number in range(300)]
        config = put(store, config, messages=messages)
        assert [m.content for m in read(store, config)["messages"]] == [m.content for m in messages]


def test_a_value_that_cannot_be_stored_is_an_error_and_nothing_is_written(store: RunStore) -> None:
    config = put(store, fresh(), value="as it was")
    for value in (
        threading.Lock(),
        [HumanMessage("x", held=threading.Lock())],
        {"a": lambda: None},
    ):
        with pytest.raises(TypeError):
            put(store, config, value=value)
    assert (
        len(
            list(
                store.checkpointer.list(
                    {"configurable": dict(config["configurable"], checkpoint_id=None)}
                )
            )
        )
        == 1
    )


def test_what_is_read_may_be_changed(store: RunStore) -> None:
    """Reading one checkpoint twice gives objects of their own, twice the same message in a list
    included.
    """
    message = HumanMessage("hello", additional_kwargs={"list": [1]})
    config = put(store, fresh(), messages=[message, message], other=[message])
    found = read(store, config)
    found["messages"][0].additional_kwargs["list"].append(2)
    found["messages"].clear()
    assert read(store, config) == {"messages": [message, message], "other": [message]}
    store.checkpointer.put(config, *whole(store, config))
    assert read(store, config) == {"messages": [message, message], "other": [message]}


def whole(store: RunStore, config: Any) -> tuple[Any, Any, Any]:
    found = store.checkpointer.get_tuple(config)
    assert found is not None
    return found.checkpoint, found.metadata, {}


# histories


def test_branches_share_what_they_have_in_common(store: RunStore) -> None:
    """Two branches of one conversation: each history reads as it was, and is stored once."""
    config, messages = fresh(), list[BaseMessage]()
    expected: dict[str, list[str]] = {}

    def grow(config: Any, messages: list[BaseMessage], words: str, count: int) -> Any:
        for number in range(count):
            messages.append(HumanMessage(f"{words} {number} " + "x" * 80))
            config = put(store, config, messages=messages)
            expected[config["configurable"]["checkpoint_id"]] = [str(m.content) for m in messages]
        return config

    trunk = grow(config, messages, "trunk", 40)
    before = usage(store)
    for branch in ("left", "right"):
        store.checkpointer.get_tuple(trunk)  # a branch is asked for by its checkpoint
        grow(trunk, list(messages), branch, 40)
    assert usage(store)["rows"] - before["rows"] <= 2 * 40 * 4
    found = list(store.checkpointer.list(config))
    assert len(found) == len(expected) == 120
    for tuple_ in found:
        values = tuple_.checkpoint["channel_values"]["messages"]
        assert [m.content for m in values] == expected[tuple_.checkpoint["id"]]


def test_a_list_of_one_history_is_not_a_list_of_another(store: RunStore) -> None:
    """Messages are shared within one listing, lists are not."""
    config = put(store, fresh(), messages=[HumanMessage("x" * 100)])
    config = put(store, config, messages=[HumanMessage("x" * 100)])
    thread = {"configurable": {"thread_id": config["configurable"]["thread_id"]}}
    newer, older = (
        found.checkpoint["channel_values"]["messages"] for found in store.checkpointer.list(thread)
    )
    assert newer == older and newer is not older
    newer.clear()
    assert len(older) == 1


def test_runs_side_by_side(store: RunStore) -> None:
    """Eight graphs at once over one saver. Half of their messages are the same."""

    def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{len(state['messages'])} " + "the same words " * 10)]}

    graph = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say")
    graph = graph.compile(checkpointer=store.checkpointer)

    def converse(number: int) -> None:
        config = fresh()
        for turn in range(6):
            graph.invoke({"messages": [HumanMessage(f"{number}: {turn}")]}, config)
        messages = graph.get_state(config).values["messages"]
        assert [m.content for m in messages[::2]] == [f"{number}: {turn}" for turn in range(6)]
        assert [str(m.content).split()[0] for m in messages[1::2]] == [
            str(2 * turn + 1) for turn in range(6)
        ]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(converse, range(8)))


def test_a_value_of_a_type_that_nobody_allowed_is_named(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db", allow=[f"{Own.__module__}:{Own.__qualname__}"]) as store:
        config = put(store, fresh(), value=[{"deep": Own(1, "x" * 100)}])
    with (
        open_store(tmp_path / "store.db") as store,
        pytest.raises(
            StoreError,
            match=(
                r"checkpoint"
                rf" {config['configurable']['checkpoint_id']}.*test_content_addressed\.Own"
            ),
        ),
    ):
        read(store, config)


def test_a_value_that_is_lost_is_named(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        config = put(store, fresh(), messages=[HumanMessage("x" * 100)] * 40)
        execute(store.url, "DELETE FROM blobs WHERE kind = 3")
        with pytest.raises(StoreError, match="a value that is not in the store"):
            read(store, config)
