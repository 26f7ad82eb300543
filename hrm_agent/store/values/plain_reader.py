"""Decoder of stored values without their types: no object is made, and nothing is imported.

LangGraph's serializer stores an object as its class and the parts that it is made of. Here a
message becomes its fields, and a value of any other class its name and its parts. So a store of
unknown origin can be shown, and a run can be listed without importing LangChain and LangGraph,
which takes most of a second.

Each reader projects what it needs from the decoded values. If a reader needs more of a value than
is known without its class, it raises `NeedsItsType`. Its caller then reads the value by the store's
serializer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import ormsgpack

from hrm_agent.store.values.refusals import RefusedValue

__all__ = [
    "TYPED",
    "NeedsItsType",
    "PlainLoader",
    "SentTask",
    "ShownMessage",
    "StoredQuestion",
    "Unread",
    "is_json",
    "request_part",
]

TYPED = 100
"""Code of the extension for values that LangGraph's form does not keep
(`hrm_agent.store.values.typed_values`).
"""
_SNAPSHOT = 7
"""LangGraph's code of a snapshot of a `DeltaChannel`."""
_DEEPEST = 60
_IN_REQUESTS = {
    "langchain_core.messages.human.HumanMessage": "human",
    "langchain_core.messages.system.SystemMessage": "system",
    "langchain_core.messages.ai.AIMessage": "ai",
    "langchain_core.messages.tool.ToolMessage": "tool",
}
"""`type` of the messages whose fields the store keeps, by class."""
_FIELDS = {"content", "additional_kwargs", "response_metadata", "type", "name", "id"}
_CALLS = ("tool_calls", "invalid_tool_calls")


class NeedsItsType(Exception):
    """Error for a value that cannot be shown without its class."""


class ShownMessage(NamedTuple):
    """LangChain message."""

    fields: dict[str, Any]
    """Fields of the message, as stored."""
    type: str = ""
    """`package.module.Type`, as the store names it."""


class SentTask(NamedTuple):
    """Task that `Send` asks for."""

    node: str
    """Name of its node."""
    argument: Any = None
    """Input of the node."""


class StoredQuestion(NamedTuple):
    """Interrupt of a graph."""

    id: str
    """LangGraph's id of the interrupt."""
    value: Any
    """Question as a plain value."""


class Unread(NamedTuple):
    """Value of a type that is not loaded."""

    type: str
    """`package.module.Type`, as the store names it."""
    made_of: Any
    """Parts of the value, as plain values."""


class PlainLoader:
    """Loader (`hrm_agent.store.values.value_reader`) of decoded values."""

    def __init__(self, project: Callable[[Any], Any]) -> None:
        """`project` converts each decoded leaf."""
        self._project = project

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, content = data
        if kind == "null":
            return self._project(None)
        if kind in ("bytes", "bytearray"):
            return self._project(content)
        found = _unpacked(content) if kind == "msgpack" else Unread(kind, None)
        return self._project(_decoded(found, 0))


class _Packed(NamedTuple):
    """Value of a type that msgpack does not support."""

    code: int
    """LangGraph's code of how the value is built."""
    data: bytes
    """Packed parts of the value."""


def _unpacked(data: bytes) -> Any:
    try:
        return ormsgpack.unpackb(data, ext_hook=_Packed, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError:
        return Unread("a value that cannot be read", None)


def _decoded(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return Unread("a value that is nested more deeply", None)
    if isinstance(value, _Packed):
        return _of_type(value.code, _unpacked(value.data), depth + 1)
    if type(value) is list:
        return [_decoded(item, depth + 1) for item in cast("list[Any]", value)]
    if type(value) is dict:
        items = cast("dict[Any, Any]", value).items()
        return {name: _decoded(item, depth + 1) for name, item in items}
    return value


def _of_type(code: int, made: Any, depth: int) -> Any:
    """Decoded form of a typed value. LangGraph's serializer names a module, an attribute of it, and
    arguments. A value of the code `TYPED` has the same parts, and the way to build it.
    """
    if code == _SNAPSHOT:
        return _decoded(made, depth)
    match made:
        case ["langgraph.types", "Send", [str(node), *more], *_]:
            return SentTask(node, _decoded(more, depth))
        case ["langgraph.types", "Interrupt", {"id": str(id_), "value": asked}, *_]:
            return StoredQuestion(id_, _decoded(asked, depth))
        case ["builtins", "str", [bytes(text)], *_]:
            return text.decode("utf-8", "surrogatepass")
        case ["builtins", "tuple", [*items], *_]:
            return tuple(_decoded(item, depth) for item in items)
        case ["builtins", "set" | "frozenset", [*items], *_]:
            found = [_decoded(item, depth) for item in items]
            plain = all(isinstance(item, str | int | float | None) for item in found)
            return set(found) if plain else found
        case [str(module), str(name), dict() as fields, *_] if module.startswith(
            "langchain_core.messages."
        ):
            items = cast("dict[Any, Any]", fields).items()
            decoded = {str(field): _decoded(item, depth) for field, item in items}
            return ShownMessage(decoded, f"{module}.{name}")
        case [str(module), str(name), arguments, *_]:
            return Unread(f"{module}.{name}", _decoded(arguments, depth))
        case _:
            return Unread(f"a value of kind {code}", None)


def request_part(value: Any) -> dict[str, Any] | list[Any]:
    """JSON of a message or a tool in a request. Raises `NeedsItsType`, and `RefusedValue` for any
    other value.
    """
    if value == []:
        return []  # a request without messages
    if isinstance(value, ShownMessage) and _is_kept_whole(value):
        return value.fields
    if isinstance(value, ShownMessage | Unread):
        raise NeedsItsType
    found = json.loads(value) if isinstance(value, bytes) else None
    if not isinstance(found, dict):
        raise RefusedValue(f"a value ({type(value).__name__}) that is no message")
    return cast("dict[str, Any]", found)


def _is_kept_whole(message: ShownMessage) -> bool:
    """True for a message of a request in the form that the store writes. Its serializer judges any
    other one.
    """
    fields = message.fields
    return (
        _IN_REQUESTS.get(message.type, "") == fields.get("type")
        and fields.keys() >= _FIELDS
        and isinstance(fields["content"], str | list)
        and all(isinstance(fields.get(name, []), list) for name in _CALLS)
        and is_json(fields)
    )


def is_json(value: Any) -> bool:
    """True if JSON can represent a value exactly."""
    if value is None or isinstance(value, (str, bool, int)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if type(value) is dict:
        items = cast("dict[Any, Any]", value)
        return all(isinstance(name, str) for name in items) and all(map(is_json, items.values()))
    return type(value) is list and all(map(is_json, cast("list[Any]", value)))
