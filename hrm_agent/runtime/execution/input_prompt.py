"""Prompt of a run, read from the input that the caller passed to the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple, cast

from langchain_core.messages import HumanMessage, convert_to_messages
from langgraph.types import Command
from pydantic import BaseModel

from hrm_agent.models.call_recording import plain
from hrm_agent.runtime.execution.conversation import TEXT_INPUTS

__all__ = ["Asked", "asked_by", "is_resumption"]


class Asked(NamedTuple):
    """Input of a graph."""

    prompt: str
    """Text of its last human message, its text field, or the whole input as JSON."""
    message_id: str | None
    """Id of the human message (None if it has none)."""
    data: Any
    """Input as JSON."""


def is_resumption(given: Any) -> bool:
    """True for an input that continues a run without a new prompt."""
    return given is None or isinstance(given, Command)


def asked_by(given: Any) -> Asked:
    """Prompt in an input of any form that a graph takes."""
    fields = _fields(given)
    data = plain(fields if fields is not None else given)
    message = _last_human(fields.get("messages") if fields is not None else given)
    if message is not None:
        return Asked(message.text, message.id, data)
    texts = (
        [fields[name] for name in TEXT_INPUTS if isinstance(fields.get(name), str)]
        if fields
        else []
    )
    if texts or isinstance(given, str):
        return Asked(texts[0] if texts else given, None, data)
    return Asked(json.dumps(data, ensure_ascii=False), None, data)


def _fields(given: Any) -> Mapping[str, Any] | None:
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    if isinstance(given, BaseModel):
        return {name: getattr(given, name) for name in type(given).model_fields}
    if is_dataclass(given) and not isinstance(given, type):
        return asdict(given)
    return None


def _last_human(messages: Any) -> HumanMessage | None:
    """Last human message, of messages in any form that LangChain accepts (None if there is
    none).
    """
    listed: Any = messages if isinstance(messages, list) else [messages]
    if messages is None or (isinstance(messages, str) and not messages):
        return None
    try:
        found = convert_to_messages(listed)
    except Exception:  # an input of another kind
        return None
    return next((message for message in reversed(found) if isinstance(message, HumanMessage)), None)
