"""Role and text of a LangChain message, as a text-only policy reads them."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.calls.form import CallForm
from hrm_agent.models.codec.calls.hermes import HERMES

__all__ = ["INVALID_CALLS", "answer_text", "invalid_tool_calls", "message_role", "message_text"]

INVALID_CALLS = "invalid_tool_calls"
"""Key in the `response_metadata` of a streamed answer for its undecodable calls."""

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
)


def message_role(message: BaseMessage) -> str:
    """Role of a message in a chat template."""
    for kind, role in _ROLES:
        if isinstance(message, kind):
            return role
    if isinstance(message, ChatMessage):
        return message.role
    raise ModelError(
        f"A message of type {message.type!r} does not fit into a chat template.",
        "Use system, human, ai and tool messages.",
    )


def message_text(message: BaseMessage) -> str:
    """Text of a message. Additions of providers to an answer, such as thinking blocks, are left
    out.
    """
    content = cast("str | list[str | dict[str, Any]]", message.content)
    if isinstance(content, str):
        return content
    others = {str(block.get("type")) for block in content if isinstance(block, dict)} - {"text"}
    if others and not isinstance(message, AIMessage):
        raise ModelError(
            f"A {message.type} message holds content of type {', '.join(sorted(others))}, but this"
            " policy reads text only.",
            "Send text, or use a policy that reads other content.",
        )
    return "".join(
        block if isinstance(block, str) else str(block.get("text", "")) for block in content
    )


def invalid_tool_calls(message: AIMessage) -> list[InvalidToolCall]:
    """Tool calls of a message that could not be decoded, streamed or not."""
    return message.invalid_tool_calls or message.response_metadata.get(INVALID_CALLS, [])


def answer_text(message: AIMessage, form: CallForm = HERMES) -> str:
    """Text of an answer, with its undecodable calls written out again, since templates have no
    place for them.
    """
    before, after = form.around
    raw = [f"{before}{call['args'] or ''}{after}" for call in invalid_tool_calls(message)]
    return message_text(message) + "".join(raw)
