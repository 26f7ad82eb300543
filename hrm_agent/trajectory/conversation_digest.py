"""What of a conversation a model can see, as data: the ground of a call's hashes, and of a proof by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

__all__ = ["context_of"]


def context_of(messages: Sequence[BaseMessage]) -> list[Any]:
    """What of a conversation a model can see: by this two conversations are the same or not.

    The ids of tool calls contain the time, by way of LangGraph's task ids. What counts is which call a result answers.
    """
    ordinals: dict[str, int] = {}
    context: list[Any] = []
    for message in messages:
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        for call in calls:
            ordinals.setdefault(str(call["id"]), len(ordinals))
        content = message.content.strip() if isinstance(message.content, str) else message.content
        answered = ordinals.get(message.tool_call_id) if isinstance(message, ToolMessage) else None
        context.append([message.type, content, message.name, [[c["name"], c["args"]] for c in calls], answered])
    return context
