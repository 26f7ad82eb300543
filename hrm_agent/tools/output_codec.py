"""Stored form of the values that external tools return.

A message is kept as its JSON dump, if the dump loses nothing (an artifact may be any object). Any
other value is kept as in the store's checkpoints. It may be of plain types, of types that the store
allows, and of the types in the tool's return annotation. A value that would come back changed, or
not at all, is marked as lost, with the reason. Its call is run again, on resume and in a replay. A
call that raised is run again on resume, as an exception is not an answer. In a replay, the
exception is raised again.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_type_hints

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from hrm_agent.basics.unicode import text_of
from hrm_agent.langgraph_format import types_of_schemas
from hrm_agent.models import recorded_values
from hrm_agent.trajectory import Journal
from hrm_agent.trajectory.call_facts import RaisedError

__all__ = ["OutputCodec", "edit_packed", "is_answer", "pack_error", "raised", "why_lost"]

T = TypeVar("T")
R = TypeVar("R")
_MOST_REASON = 300
"""Maximum number of characters of a reason."""
_packing = threading.local()
"""Thread-local flag `now`: True while this module reports refused types, so that LangGraph's log of
them is dropped.
"""


class OutputCodec:
    """Converter of values to `ToolCall.output` and back. It allows the types of a store and of a
    tool's return annotation.
    """

    def __init__(self, journal: Journal | None = None, tool: BaseTool | None = None) -> None:
        self._journal = journal
        self._tool = tool

    def pack(self, value: Any) -> dict[str, Any]:
        """`ToolCall.output` for the value that a tool returned."""
        if type(value) is ToolMessage and not recorded_values.odd_fields(value):
            return {"message": value.model_dump(mode="json")}
        packed = self._packed(value, frozenset())
        types = _declared(self._tool) if "lost" in packed else frozenset()
        return self._packed(value, types) if types else packed

    def unpack(self, output: Mapping[str, Any]) -> Any:
        """Value that the tool returned. Raises the serializer's error for a value that may not be
        read.
        """
        if "message" in output:
            return ToolMessage.model_validate(output["message"])
        kind, text = output["packed"]
        return _quietly(
            self._serializer(_declared(self._tool)).loads_typed, (kind, base64.b64decode(text))
        )

    def _packed(self, value: Any, types: frozenset[tuple[str, ...]]) -> dict[str, Any]:
        serializer = self._serializer(types)
        try:
            return {
                "packed": _quietly(
                    lambda value: recorded_values.serialised(value, serializer), value
                )
            }
        except Exception as error:  # any error of a foreign object that is serialised
            return {
                "lost": type(value).__qualname__,
                "reason": (text_of(error) or type(error).__name__)[:_MOST_REASON],
            }

    def _serializer(self, types: frozenset[tuple[str, ...]]) -> JsonPlusSerializer:
        own = self._journal.serializer if self._journal is not None else None
        serializer = own or recorded_values.PLAIN
        return serializer.with_msgpack_allowlist(types) if types else serializer


def pack_error(error: Exception) -> dict[str, Any]:
    """`ToolCall.output` for a call that raised."""
    return {
        "raised": recorded_values.pack_error(error).model_dump(mode="json", exclude_defaults=True)
    }


def is_answer(output: Mapping[str, Any] | None) -> bool:
    """True if `OutputCodec.unpack` returns the tool's value."""
    return output is not None and ("message" in output or "packed" in output)


def why_lost(output: Mapping[str, Any]) -> str:
    """Reason why an output is not on record, and a remedy."""
    kind = output.get("lost", "a value")
    reason = output.get("reason", "it could not be stored")
    said = f"what it returned or did ({kind}) is not on record: {reason}"
    return f"{said}. Plain data is, and so are types that --allow MODULE:TYPE names"


def edit_packed(output: dict[str, Any], edit: Callable[[bytes], bytes]) -> dict[str, Any]:
    """Output with its serialised bytes edited. Output in JSON is unchanged."""
    if "packed" not in output:
        return output
    kind, text = output["packed"]
    return {"packed": [kind, base64.b64encode(edit(base64.b64decode(text))).decode("ascii")]}


def raised(output: dict[str, Any]) -> Exception:
    """Error that the tool raised, of its own class if that is loaded."""
    said: dict[str, Any] = output["raised"]
    if "kinds" not in said:  # a record of an earlier version
        said = {"kinds": [f"{said['module']}:{said['type']}"], "message": said["message"]}
    return recorded_values.raised(RaisedError.model_validate(said))


def _declared(tool: BaseTool | None) -> frozenset[tuple[str, ...]]:
    """Return types of a tool as (module, name). A class that is used as a tool returns itself."""
    found = list[Any]()
    for entry in (getattr(tool, "func", None), getattr(tool, "coroutine", None)):
        if isinstance(entry, type):
            found.append(entry)
        elif entry is not None:
            with suppress(Exception):  # annotations with missing names
                found.append(get_type_hints(entry).get("return"))
    return frozenset(types_of_schemas(found)) if found else frozenset()


def _quietly(convert: Callable[[T], R], value: T) -> R:
    """Convert without LangGraph's log of refused types, since the remedy in it does not help with a
    tool's output.
    """
    before = getattr(_packing, "now", False)
    _packing.now = True
    try:
        return convert(value)
    finally:
        _packing.now = before


logging.getLogger(JsonPlusSerializer.__module__).addFilter(
    lambda _: not getattr(_packing, "now", False)
)
