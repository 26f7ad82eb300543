"""What a tool that is not ours returned, in a form that can be stored and given back whole.

A message is kept as its JSON dump, where that loses nothing (an artifact may be any object); any other value as the
store's checkpoints keep it: of plain types, of those that the store allows, and of those that the tool itself says it
returns. A value that comes back changed, or not at all, is marked as lost, with the reason: such a call is run again,
on resume and in a replay. On resume so is one that raised, since an exception is no answer; a replay raises it again.
"""

from __future__ import annotations

import base64
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast, get_type_hints

from langchain_core.messages import ToolMessage
from langchain_core.messages.base import TextAccessor
from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from hrm_agent.langgraph_format import types_of_schemas
from hrm_agent.trajectory import Journal
from hrm_agent.unicode import text_of

__all__ = ["OutputCodec", "edit_packed", "is_answer", "pack_error", "raised", "why_lost"]

T = TypeVar("T")
R = TypeVar("R")
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_MOST_REASON = 300
"""Characters."""
_packing = threading.local()
"""Its `now` is True in a thread whose refused types are noted here, and are nothing to log."""


class OutputCodec:
    """Values to `ToolCall.output` and back, with the types of a store and of a tool."""

    def __init__(self, journal: Journal | None = None, tool: BaseTool | None = None) -> None:
        self._journal, self._tool = journal, tool

    def pack(self, value: Any) -> dict[str, Any]:
        """`ToolCall.output` of what a tool returned."""
        if isinstance(value, ToolMessage) and type(value) is ToolMessage:
            dumped = _dump(value)
            if dumped is not None and _same(ToolMessage.model_validate(dumped), value):
                return {"message": dumped}
        serializer = self._serializer()
        packed = _packed(serializer, value)
        if "lost" in packed and (types := _declared(self._tool)):
            packed = _packed(serializer.with_msgpack_allowlist(types), value)
        return packed

    def unpack(self, output: Mapping[str, Any]) -> Any:
        """What the tool returned. Raises whatever says that a value is none of what may be read."""
        if "message" in output:
            return ToolMessage.model_validate(output["message"])
        kind, text = output["packed"]
        serializer, types = self._serializer(), _declared(self._tool)
        allowing = serializer.with_msgpack_allowlist(types) if types else serializer
        return _quietly(allowing.loads_typed, (kind, base64.b64decode(text)))

    def _serializer(self) -> JsonPlusSerializer:
        return _plain if self._journal is None else self._journal.serializer or _plain


_plain = JsonPlusSerializer(allowed_msgpack_modules=None)


def _packed(serializer: JsonPlusSerializer, value: Any) -> dict[str, Any]:
    try:
        kind, data = _quietly(serializer.dumps_typed, value)
        if _same(_quietly(serializer.loads_typed, (kind, data)), value):
            return {"packed": [kind, base64.b64encode(data).decode("ascii")]}
        reason = "it comes back as another value"
    except Exception as error:  # whatever a foreign object does when it is serialised
        reason = text_of(error) or type(error).__name__
    return {"lost": type(value).__qualname__, "reason": reason[:_MOST_REASON]}


def pack_error(error: Exception) -> dict[str, Any]:
    """`ToolCall.output` of what a tool raised."""
    kind = type(error)
    return {"raised": {"module": kind.__module__, "type": kind.__qualname__, "message": text_of(error)}}


def is_answer(output: Mapping[str, Any] | None) -> bool:
    """True if `OutputCodec.unpack` gives back what the tool returned."""
    return output is not None and ("message" in output or "packed" in output)


def why_lost(output: Mapping[str, Any]) -> str:
    """Why an output is not on record, and what helps."""
    kind, reason = output.get("lost", "a value"), output.get("reason", "it could not be stored")
    said = f"what it returned or did ({kind}) is not on record: {reason}"
    return f"{said}. Plain data is, and so are types that --allow MODULE:TYPE names"


def edit_packed(output: dict[str, Any], edit: Callable[[bytes], bytes]) -> dict[str, Any]:
    """The same output with its serialised bytes edited; one that is kept as JSON as it is."""
    if "packed" not in output:
        return output
    kind, text = output["packed"]
    return {"packed": [kind, base64.b64encode(edit(base64.b64decode(text))).decode("ascii")]}


def raised(output: dict[str, Any]) -> Exception:
    """What the tool raised: of its own type where that is loaded already, since a store must import nothing."""
    said = output["raised"]
    kind: Any = getattr(sys.modules.get(said["module"]), said["type"], None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(Exception):  # its constructor wants more than a message
            return kind(said["message"])
    return RuntimeError(f"{said['type']}: {said['message']}")


def _declared(tool: BaseTool | None) -> frozenset[tuple[str, ...]]:
    """(module, name) of the types that a tool says it returns: a class that is used as a tool returns itself."""
    found = list[Any]()
    for entry in (getattr(tool, "func", None), getattr(tool, "coroutine", None)):
        if isinstance(entry, type):
            found.append(entry)
        elif entry is not None:
            with suppress(Exception):  # annotations that name what is not there
                found.append(get_type_hints(entry).get("return"))
    return frozenset(types_of_schemas(found)) if found else frozenset()


def _dump(message: ToolMessage) -> dict[str, Any] | None:
    try:
        return message.model_dump(mode="json")
    except Exception:  # an artifact that pydantic has no JSON for
        return None


def _same(loaded: Any, value: Any) -> bool:
    """Equal, and of one type all the way down: a tuple that comes back as a list is not the same."""
    try:
        return _alike(loaded, value)
    except Exception:  # arrays, say, of which nobody can say whether they are equal
        return False


def _alike(loaded: Any, value: Any) -> bool:
    if type(value) is TextAccessor:  # `message.text`
        value = str(value)
    if type(loaded) is not type(value):
        return False
    if type(value) in _PLAIN:
        return bool(loaded == value)
    if isinstance(value, Command) and isinstance(value.goto, tuple) and isinstance(loaded.goto, list):
        value = replace(cast("Command[Any]", value), goto=[*value.goto])  # LangGraph takes either, and reads a list
    if isinstance(value, dict):
        known = cast("dict[Any, Any]", value)
        return loaded == known and all(_alike(loaded[key], item) for key, item in known.items())
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        return len(loaded) == len(items) and all(map(_alike, loaded, items))
    if isinstance(value, ToolMessage):
        return bool(loaded == value) and _alike(loaded.artifact, value.artifact)
    if is_dataclass(value):
        return all(_alike(getattr(loaded, each.name), getattr(value, each.name)) for each in fields(value))
    return bool(loaded == value)


def _quietly(convert: Callable[[T], R], value: T) -> R:
    """LangGraph logs each type that it refuses, with a name for the remedy that is not ours."""
    before, _packing.now = getattr(_packing, "now", False), True
    try:
        return convert(value)
    finally:
        _packing.now = before


logging.getLogger(JsonPlusSerializer.__module__).addFilter(lambda _: not getattr(_packing, "now", False))
