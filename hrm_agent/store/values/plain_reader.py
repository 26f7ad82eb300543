"""Reader of stored messages without LangChain.

LangGraph's serializer stores a message as its class and its fields. For the four common classes,
fields with plain values only equal `message_dump` of the message. Anything unusual raises
`NeedsItsType` and is left to the serializer. So the result never differs from the serializer's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import ormsgpack

__all__ = [
    "DETAILS",
    "MESSAGE_FIELDS",
    "TYPED",
    "NeedsItsType",
    "Packed",
    "PlainMessages",
    "StoredMessage",
    "is_json",
    "is_sound",
    "unpacked",
]

_COMMON = ("content", "additional_kwargs", "response_metadata", "type", "name", "id")
_OF_AI = (*_COMMON, "tool_calls", "invalid_tool_calls", "usage_metadata")
MESSAGE_FIELDS = {
    ("langchain_core.messages.human", "HumanMessage"): ("human", _COMMON),
    ("langchain_core.messages.system", "SystemMessage"): ("system", _COMMON),
    ("langchain_core.messages.ai", "AIMessage"): (
        "ai",
        (*_COMMON, "tool_calls", "invalid_tool_calls", "usage_metadata"),
    ),
    ("langchain_core.messages.tool", "ToolMessage"): (
        "tool",
        (*_COMMON, "tool_call_id", "artifact", "status"),
    ),
}
"""`type` of such a message and its fields in order, by module and class."""
_CALL = ("name", "args", "id", "type")
_INVALID_CALL = ("type", "id", "name", "args", "error")
_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
DETAILS = {
    "input_token_details": ("audio", "cache_creation", "cache_read"),
    "output_token_details": ("audio", "reasoning"),
}
"""Allowed counts by part of `usage_metadata`."""
TYPED = 100
"""Code of the extension for values that LangGraph's form does not keep
(`hrm_agent.store.values.typed_values`).
"""
_PYDANTIC = 5
"""Extension code of LangGraph's serializer for a pydantic model."""


class NeedsItsType(Exception):
    """Error for a value that cannot be shown without its class."""


class StoredMessage(NamedTuple):
    """Message without its class."""

    dump: dict[str, Any]
    """Fields as JSON values."""


class Packed(NamedTuple):
    """Value of a type that msgpack does not support."""

    code: int
    """LangGraph's code of how the value is built."""
    data: bytes
    """Packed parts of the value."""


class PlainMessages:
    """Loader (`hrm_agent.store.values.value_reader`) of the values in requests: messages, and the
    JSON of others.
    """

    def loads_typed(self, data: tuple[str, bytes]) -> StoredMessage | bytes | list[Any]:
        kind, content = data
        if kind == "bytes":
            return content
        found = unpacked(content) if kind == "msgpack" else None
        if found == []:
            return []  # a request without messages
        if not isinstance(found, Packed) or found.code != _PYDANTIC:
            raise NeedsItsType
        return StoredMessage(_fields(unpacked(found.data)))


def unpacked(data: bytes) -> Any:
    """Unpacked value, with `Packed` in place of objects. Raises `NeedsItsType` for invalid data."""
    try:
        return ormsgpack.unpackb(data, ext_hook=Packed, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError as error:
        raise NeedsItsType from error


def _fields(model: Any) -> dict[str, Any]:
    """Fields of a packed message."""
    match model:
        case [str(module), str(name), dict(), _] if (module, name) in MESSAGE_FIELDS:
            type_, names = MESSAGE_FIELDS[module, name]
            fields = cast("dict[Any, Any]", model[2])
        case _:
            raise NeedsItsType
    try:
        plain = (
            tuple(fields) == names
            and fields["type"] == type_
            and is_json(fields)
            and is_sound(fields)
        )
    except RecursionError as error:
        raise NeedsItsType from error
    if not plain:
        raise NeedsItsType
    return fields


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


def is_sound(fields: Mapping[str, Any]) -> bool:
    """True if LangChain would keep each of these fields unchanged."""
    content, calls = fields["content"], fields.get("tool_calls", [])
    invalid = fields.get("invalid_tool_calls", [])
    return (
        _is_text_or_parts(content)
        and isinstance(fields["additional_kwargs"], dict)
        and isinstance(fields["response_metadata"], dict)
        and all(isinstance(fields[name], str | None) for name in ("name", "id"))
        and isinstance(calls, list)
        and all(map(_is_call, cast("list[Any]", calls)))
        and isinstance(invalid, list)
        and all(map(_is_invalid_call, cast("list[Any]", invalid)))
        # LangChain would parse these
        and bool(calls or invalid or not fields["additional_kwargs"].get("tool_calls"))
        and _is_usage(fields.get("usage_metadata"))
        and isinstance(fields.get("tool_call_id", ""), str)
        and fields.get("status", "success") in ("success", "error")
    )


def _is_text_or_parts(content: Any) -> bool:
    return isinstance(content, str) or (
        isinstance(content, list)
        and all(isinstance(part, (str, dict)) for part in cast("list[Any]", content))
    )


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and set(cast("dict[str, Any]", call)) == set(_CALL)
        and isinstance(call["name"], str)
        and isinstance(call["args"], dict)
        and isinstance(call["id"], str | None)
        and call["type"] == "tool_call"
    )


def _is_invalid_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and set(cast("dict[str, Any]", call)) == set(_INVALID_CALL)
        and all(isinstance(call[name], str | None) for name in ("name", "args", "id", "error"))
        and call["type"] == "invalid_tool_call"
    )


def _is_usage(usage: Any) -> bool:
    if usage is None:
        return True
    if not isinstance(usage, dict):
        return False
    given = cast("dict[str, Any]", usage)
    counts = {name: value for name, value in given.items() if name not in DETAILS}
    parts = [(DETAILS[name], value) for name, value in given.items() if name in DETAILS]
    return (
        _are_counts(counts, _COUNTS)
        and len(counts) == len(_COUNTS)
        and all(_are_counts(v, k) for k, v in parts)
    )


def _are_counts(found: Any, names: tuple[str, ...]) -> bool:
    if not isinstance(found, dict):
        return False
    return all(
        name in names and type(value) is int
        for name, value in cast("dict[str, Any]", found).items()
    )
