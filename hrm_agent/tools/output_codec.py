"""What a tool that is not ours returned, in a form that can be stored and given back whole.

A message is kept as its JSON dump, where that loses nothing (an artifact may be any object); any other value as it
serialises in a checkpoint. A value that comes back changed, or not at all, is marked as lost: such a call is run again.
So is one that raised, since an exception is no answer; what it raised is kept for replays, which run nothing.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

__all__ = ["edit_packed", "is_answer", "pack", "pack_error", "raised", "unpack"]

_serializer = JsonPlusSerializer(allowed_msgpack_modules=None)


def pack(value: Any) -> dict[str, Any]:
    """`ToolCall.output` of what a tool returned."""
    if isinstance(value, ToolMessage) and type(value) is ToolMessage:
        dumped = _dump(value)
        if dumped is not None and _same(ToolMessage.model_validate(dumped), value):
            return {"message": dumped}
    try:
        kind, data = _serializer.dumps_typed(value)
        kept = _same(_serializer.loads_typed((kind, data)), value)
    except Exception:  # whatever a foreign object does when it is serialised
        return {"lost": type(value).__qualname__}
    return {"packed": [kind, base64.b64encode(data).decode("ascii")]} if kept else {"lost": type(value).__qualname__}


def pack_error(error: Exception) -> dict[str, Any]:
    """`ToolCall.output` of what a tool raised."""
    kind = type(error)
    return {"raised": {"module": kind.__module__, "type": kind.__qualname__, "message": str(error)}}


def is_answer(output: dict[str, Any] | None) -> bool:
    """True if `unpack` gives back what the tool returned."""
    return output is not None and ("message" in output or "packed" in output)


def unpack(output: dict[str, Any]) -> Any:
    """What the tool returned."""
    if "message" in output:
        return ToolMessage.model_validate(output["message"])
    kind, text = output["packed"]
    return _serializer.loads_typed((kind, base64.b64decode(text)))


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


def _dump(message: ToolMessage) -> dict[str, Any] | None:
    try:
        return message.model_dump(mode="json")
    except Exception:  # an artifact that pydantic has no JSON for
        return None


def _same(loaded: Any, value: Any) -> bool:
    """Equal, and of one type: a tuple that comes back as a list is not the same."""
    if isinstance(value, Command) and isinstance(value.goto, tuple):
        value = replace(cast("Command[Any]", value), goto=[*value.goto])  # LangGraph takes either
    try:
        return type(loaded) is type(value) and bool(loaded == value)
    except Exception:  # arrays, say, of which nobody can say whether they are equal
        return False
