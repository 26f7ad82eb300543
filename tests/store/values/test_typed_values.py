"""Values of every type: each is read back with the same type and value, or refused where it is."""

from __future__ import annotations

import datetime as dt
import enum
import fractions
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import ormsgpack
import pydantic.v1 as v1
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from pydantic import BaseModel, PrivateAttr, RootModel, SecretStr

from hrm_agent.store.values.refusals import RefusedValue, UnknownType, Unstorable
from hrm_agent.store.values.serializer import StrictSerializer, declared_types
from hrm_agent.store.values.typed_values import difference

T = TypeVar("T")


class Phase(str, enum.Enum):  # noqa: UP042  # as many write it
    ASK = "ask"
    DONE = "done"


class Flags(enum.Flag):
    ONE = 1
    TWO = 2


class Name(str):
    pass


class Bag(dict[str, Any]):
    pass


class Pair(NamedTuple):
    a: Any
    b: Any


class Pairs(RootModel[list[tuple[int, int]]]):
    pass


@dataclass
class Result(Generic[T]):
    held: Any


class Box(BaseModel, Generic[T]):
    item: T


@dataclass
class Text:
    text: str
    words: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.words = len(self.text.split())


@dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any = None


class Model(BaseModel):
    name: str
    held: Any = None
    _own: Any = PrivateAttr(default=None)


class Open(BaseModel, extra="allow"):
    a: int = 1


class Old(v1.BaseModel):
    a: Any = 1


class Outer:
    @dataclass
    class Inner:
        x: Any


class Odd(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Declared(TypedDict):
    pairs: Pairs
    result: Result[int]
    box: Box[int]
    boxes: list[Box[Box[str]]]
    secret: SecretStr


TYPES = (Phase, Flags, Name, Bag, Pair, Text, Point, Model, Open, Old, Outer.Inner, Odd)
SERIALIZER = StrictSerializer([(each.__module__, each.__qualname__) for each in TYPES])
FOLD = dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))


def private() -> Model:
    made = Model(name="x")
    made._own = (1, 2)
    return made


KEPT: list[Any] = [
    (1, (2,)),
    {(1, 2), (3, 4)},
    {"edges": frozenset({("a", "b")})},
    Counter("hello"),
    OrderedDict(b=1, a=(2,)),
    defaultdict(list, {"a": [1]}),
    deque([1, (2,)], maxlen=3),
    complex(-0.0, float("nan")),
    range(0, 10, 2),
    fractions.Fraction(1, 3),
    Decimal("NaN"),
    PurePosixPath("/a/b"),
    Path("/a"),
    2**80,
    {2**80: 1},
    "half \ud800",
    {"half \ud800": 1},
    {(1, (2, "a")): "wall"},
    {Phase.ASK: 1},
    {uuid.UUID(int=1): (1,)},
    {1: "a", None: 2, 2.5: 3, b"k": 4},
    [bytearray(b"x")],
    {float("nan"), 1.0},
    [float("nan"), -0.0, 0, True],
    Phase.DONE,
    Flags.ONE | Flags.TWO,
    Name("a"),
    Bag(a=(1,)),
    Pair(1, (2,)),
    Text("a b c"),
    Point(1, {(1, 2)}),
    private(),
    Model(name="x", held=Phase.ASK),
    Open.model_validate({"a": 1, "z": (1,)}),
    Old(a=(1,)),
    Outer.Inner(1),
    Outer.Inner((1,)),
    Odd("x", 3),
    KeyError("a"),
    FileNotFoundError(2, "no such file", "a.txt"),
    UnicodeDecodeError("utf-8", b"a", 0, 1, "why"),
    ImportError("none", name="a"),
    np.arange(6).reshape(2, 3).T,
    np.float64(1.5),
    np.array(["a", "bc"]),
    FOLD,
    dt.time(1, 2, tzinfo=dt.UTC),
    HumanMessage("half \udfff"),
    AIMessage("x", additional_kwargs={"pairs": (1, 2)}),
    ToolMessage("x", tool_call_id="1", artifact=[Document("a", metadata={"at": (1, 2)})]),
    Send("node", {"pairs": {(1, 2)}}),
]


def read_back(value: Any) -> Any:
    return SERIALIZER.loads_typed(SERIALIZER.dumps_typed(value))


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_in_type_and_value(value: Any) -> None:
    for whole in (value, [value, {"in": value}], (value,)):
        found = read_back(whole)
        assert type(found) is type(whole) and difference(whole, found) is None
    assert difference([value], [[value]]) is not None


@pytest.mark.parametrize(
    "value",
    [
        Pairs([(1, 2)]),
        Result[int]({1}),
        Box[int](item=1),
        [Box[Box[str]](item=Box[str](item="a"))],
        SecretStr("a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_state_declares_comes_back(value: Any) -> None:
    graph = StateGraph(Declared).add_node("node", lambda _: {}).add_edge(START, "node").compile()
    serializer = StrictSerializer(declared_types(graph))
    found = serializer.loads_typed(serializer.dumps_typed(value))
    assert found == value and type(found) is type(value) and difference(value, found) is None


def test_an_array_that_comes_back_may_be_written_to() -> None:
    found = read_back(np.arange(3))
    found[0] = 7
    assert found.tolist() == [7, 1, 2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"visited": [0, Point(threading.Lock())]}, r"lock.*, at \.visited\[1\]\.x"),
        ([memoryview(b"x")], r"memoryview.* come back as another, at \[0\]"),
        ({"a": defaultdict(lambda: 1)}, r"default_factory .*at \.a"),
        (np.array([object()]), "array of object"),
        (
            type("Inside", (BaseModel,), {"__qualname__": "f.<locals>.Inside"})(),
            "which a function defines",
        ),
    ],
)
def test_what_would_come_back_as_another_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(Unstorable, match=words):
        SERIALIZER.dumps_typed(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    held: dict[str, Any] = {"pair": ()}
    held["pair"] = (held,)
    with pytest.raises(Unstorable, match=r"itself|nested"):
        SERIALIZER.dumps_typed(held)


def test_a_type_that_is_not_allowed_is_refused_in_every_form() -> None:
    for value in (Point(1), Point((1,)), [Pair(1, (2,))], Name("a"), Odd("x", 1), Phase.ASK):
        with pytest.raises(UnknownType, match=rf"{__name__}.*not allowed"):
            StrictSerializer().dumps_typed(value)
        with pytest.raises(UnknownType, match="not allowed"):
            StrictSerializer().loads_typed(SERIALIZER.dumps_typed(value))


def test_a_forged_form_makes_nothing() -> None:
    for made in (["os", "system", ["true"], "arguments"], [__name__, "Point", [1], "arguments"]):
        data = ormsgpack.packb(ormsgpack.Ext(100, ormsgpack.packb(made)))
        with pytest.raises(RefusedValue):
            SERIALIZER.loads_typed(("msgpack", data))


def test_a_type_that_is_gone_is_an_error_and_no_dict() -> None:
    data = ormsgpack.packb(ormsgpack.Ext(2, ormsgpack.packb(["gone.module", "Plan", {"a": 1}])))
    with pytest.raises(
        RefusedValue, match=r"gone\.module\.Plan, which cannot be made again: ModuleNotFoundError"
    ):
        StrictSerializer([("gone.module", "Plan")]).loads_typed(("msgpack", data))


def test_the_text_of_a_message_is_kept_as_a_text() -> None:
    text = AIMessage("four").text
    for whole, kept in ((text, "four"), ([text], ["four"]), ((text,), ("four",))):
        found = read_back(whole)
        assert found == kept and difference(kept, found) is None


def test_plain_values_have_the_bytes_of_langgraph() -> None:
    for value in (
        {"a": [1, 2.5, None, "x", b"y"]},
        [{"b": {}}],
        {1: "a"},
        "text",
        HumanMessage("x", id="1"),
        {1, 2},
    ):
        assert SERIALIZER.dumps_typed(value) == SERIALIZER.dumps_allowed(value)


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=9), st.complex_numbers(),
    st.fractions(), st.decimals(), st.uuids(), st.datetimes(timezones=st.none() | st.timezones()),

    st.sampled_from(Phase),
    st.builds(bytearray, st.binary(max_size=9)), st.builds(Name, st.text()), st.characters(categories=["Cs"]),
)  # fmt: skip
HASHABLE = st.recursive(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(),
        st.sampled_from(Phase),
        st.uuids(),
        st.binary(max_size=9),
    ),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.builds(deque, st.lists(inner, max_size=3)),
        st.builds(OrderedDict, st.dictionaries(st.text(), inner, max_size=3)),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(lambda held: Model(name="x", held=held), inner),
        st.builds(lambda held: HumanMessage("x", additional_kwargs={"held": held}), inner),
    )


@settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.recursive(LEAVES, nested, max_leaves=12))
def test_whatever_is_nested_in_whatever_comes_back_or_is_refused(value: Any) -> None:
    try:
        written = SERIALIZER.dumps_typed(value)
    except Unstorable:
        return
    assert difference(value, SERIALIZER.loads_typed(written)) is None


class Bare:
    """Class without its own equality."""

    def __init__(self, name: str, forgets: bool = False) -> None:
        self.name, self.forgets = name, forgets

    def _asdict(self) -> dict[str, Any]:
        return {"name": self.name}


def test_an_object_without_an_equality_is_compared_by_its_attributes() -> None:
    serializer = StrictSerializer([(__name__, "Bare")])
    found = serializer.loads_typed(serializer.dumps_typed([Bare("a")]))
    assert type(found[0]) is Bare and vars(found[0]) == {"name": "a", "forgets": False}
    with pytest.raises(Unstorable, match=r"Bare.* at \[0\]"):
        serializer.dumps_typed([Bare("a", forgets=True)])
