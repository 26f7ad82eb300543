"""Messages that are read without LangChain are what LangChain's classes would show, or are left to
them.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails

from hrm_agent.store.values.plain_reader import (
    DETAILS,
    MESSAGE_FIELDS,
    NeedsItsType,
    PlainMessages,
    StoredMessage,
)
from hrm_agent.store.values.serializer import StrictSerializer
from hrm_agent.trajectory.message_dump import message_dump

CALL = {
    "name": "python",
    "args": {"code": "1", "deep": [{"x": None}]},
    "id": "c1",
    "type": "tool_call",
}
USED = {
    "input_tokens": 3,
    "output_tokens": 2,
    "total_tokens": 5,
    "input_token_details": {"cache_read": 1},
}
PLAIN = [
    HumanMessage("hello"),
    HumanMessage([{"type": "text", "text": "look"}, "and see"], name="ada", id="h1"),
    SystemMessage("be brief", additional_kwargs={"cache": True}),
    AIMessage(
        "", tool_calls=[CALL], id="a1", response_metadata={"seconds": 0.25, "by": {"model": "m"}}
    ),
    AIMessage("6", usage_metadata=USED, additional_kwargs={"tool_calls": []}),
    AIMessage("", invalid_tool_calls=[{"name": "x", "args": "{", "id": None, "error": "no JSON"}]),
    ToolMessage("42", tool_call_id="c1", artifact={"value": [1, 2.5, "ü"]}, status="error"),
]
UNUSUAL = [
    HumanMessage("x", additional_kwargs={"image": b"\x00"}),
    HumanMessage("x", additional_kwargs={1: "a key that is no text"}),
    HumanMessage("x", additional_kwargs={"n": float("nan")}),
    HumanMessage("x", extra="a field of one's own"),
    ToolMessage("x", tool_call_id="c1", artifact={1, 2}),
    AIMessageChunk("x"),
    ChatMessage("x", role="critic"),
    AIMessage.model_construct(content="x", tool_calls=None),
]


def read(message: BaseMessage) -> Any:
    return PlainMessages().loads_typed(StrictSerializer().dumps_allowed(message))


@pytest.mark.parametrize("message", PLAIN, ids=lambda message: message.type)
def test_a_plain_message_is_shown_as_its_class_shows_it(message: BaseMessage) -> None:
    found = read(message)
    again = StrictSerializer().loads_typed(StrictSerializer().dumps_typed(message))
    assert found == StoredMessage(message_dump(message)) == StoredMessage(message_dump(again))
    assert list(found.dump) == list(message_dump(again))


@pytest.mark.parametrize("message", UNUSUAL, ids=lambda message: type(message).__name__)
def test_an_unusual_message_is_left_to_its_class(message: BaseMessage) -> None:
    with pytest.raises(NeedsItsType):
        read(message)


@pytest.mark.parametrize(
    ("kind", "data"),
    [("msgpack", b"\xc1"), ("msgpack", b"\x01"), ("null", b""), ("pickle", b""), ("msgpack", b"")],
)
def test_what_is_no_message_is_left_to_the_serializer(kind: str, data: bytes) -> None:
    with pytest.raises(NeedsItsType):
        PlainMessages().loads_typed((kind, data))


def test_the_fields_are_those_of_the_installed_langchain() -> None:
    """Messages with other fields are read by their own classes, at the cost of importing them. A
    failure here shows that this has begun.
    """
    by_class = {
        (c.__module__, c.__name__): c for c in (HumanMessage, SystemMessage, AIMessage, ToolMessage)
    }
    assert {key: tuple(c.model_fields) for key, c in by_class.items()} == {
        key: names for key, (_, names) in MESSAGE_FIELDS.items()
    }
    known = {"input_token_details": InputTokenDetails, "output_token_details": OutputTokenDetails}
    assert {name: set(get_type_hints(type_)) for name, type_ in known.items()} == {
        name: set(counts) for name, counts in DETAILS.items()
    }
