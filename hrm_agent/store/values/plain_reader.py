"""Messages as the store has them, read without LangChain.

LangGraph's serializer stores a message as its class and its fields. For the four common classes the
fields, if they hold plain values only, are what `message_dump` would show of the message again.
Everything else, whatever is unusual about it, raises `NeedsItsType`, and is left to the serializer:
what is read here is never another thing than there.
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
"""Module and class -> `type` of such a message, and its fields in their order."""
_CALL = ("name", "args", "id", "type")
_INVALID_CALL = ("type", "id", "name", "args", "error")
_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
DETAILS = {
    "input_token_details": ("audio", "cache_creation", "cache_read"),
    "output_token_details": ("audio", "reasoning"),
}
"""Parts of `usage_metadata` -> the counts that they may have."""
TYPED = 100
"""Code of the extension for values that LangGraph's form does not keep
(`hrm_agent.store.values.typed_values`).
"""
_PYDANTIC = 5
"""Code of the extension type as which LangGraph's serializer packs a model of pydantic."""


class NeedsItsType(Exception):
    """A value that cannot be shown without the class that it is of."""


class StoredMessage(NamedTuple):
    """A message."""

    dump: dict[str, Any]
    """Its fields, as JSON values."""


class Packed(NamedTuple):
    """A value of a type that msgpack has no form for."""

    code: int
    """LangGraph's number of how it is made."""
    data: bytes
    """What it is made of, packed."""


class PlainMessages:
    """A loader (`hrm_agent.store.values.value_reader`) of what requests name: messages, and the
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
    """A packed value, with `Packed` where an object would be. Raises `NeedsItsType` for what is not
    valid.
    """
    try:
        return ormsgpack.unpackb(data, ext_hook=Packed, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError as error:
        raise NeedsItsType from error


def _fields(model: Any) -> dict[str, Any]:
    """The fields of a packed message."""
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
    """Whether a value is its own form in JSON."""
    if value is None or isinstance(value, (str, bool, int)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if type(value) is dict:
        items = cast("dict[Any, Any]", value)
        return all(isinstance(name, str) for name in items) and all(map(is_json, items.values()))
    return type(value) is list and all(map(is_json, cast("list[Any]", value)))


def is_sound(fields: Mapping[str, Any]) -> bool:
    """Whether LangChain, given these fields, would keep each as it is."""
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
        # these it would parse
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
