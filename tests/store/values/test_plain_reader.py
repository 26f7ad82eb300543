"""Messages that are read without LangChain are what LangChain's classes would show, or are left to
them.
"""

from __future__ import annotations

from typing import Any

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

from hrm_agent.store.values.plain_reader import (
    NeedsItsType,
    PlainLoader,
    ShownMessage,
    request_part,
)
from hrm_agent.store.values.refusals import RefusedValue
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
    HumanMessage("x", extra="a field of one's own"),
]
UNUSUAL = [
    HumanMessage("x", additional_kwargs={"image": b"\x00"}),
    HumanMessage("x", additional_kwargs={1: "a key that is no text"}),
    HumanMessage("x", additional_kwargs={"n": float("nan")}),
    ToolMessage("x", tool_call_id="c1", artifact={1, 2}),
    AIMessageChunk("x"),
    ChatMessage("x", role="critic"),
    AIMessage.model_construct(content="x", tool_calls=None),
]

HUMAN = "langchain_core.messages.human.HumanMessage"
AI = "langchain_core.messages.ai.AIMessage"
REST = {"additional_kwargs": {}, "response_metadata": {}, "name": None, "id": None}


def read(message: BaseMessage) -> Any:
    return PlainLoader(request_part).loads_typed(StrictSerializer().dumps_typed(message))


@pytest.mark.parametrize("message", PLAIN, ids=lambda message: message.type)
def test_a_plain_message_is_shown_as_its_class_shows_it(message: BaseMessage) -> None:
    found = read(message)
    again = StrictSerializer().loads_typed(StrictSerializer().dumps_typed(message))
    assert found == message_dump(message) == message_dump(again)
    assert list(found) == list(message_dump(again))


@pytest.mark.parametrize("message", UNUSUAL, ids=lambda message: type(message).__name__)
def test_an_unusual_message_is_left_to_its_class(message: BaseMessage) -> None:
    with pytest.raises(NeedsItsType):
        read(message)


@pytest.mark.parametrize(
    "message",
    [
        ShownMessage({"content": "5", **REST, "type": "human"}, "langchain_core.messages.x.Foo"),
        ShownMessage({"content": "5", **REST, "type": "system"}, HUMAN),
        ShownMessage({"evil": 1}, HUMAN),
        ShownMessage({"content": 5, **REST, "type": "human"}, HUMAN),
        ShownMessage({"content": "", **REST, "type": "ai", "tool_calls": None}, AI),
    ],
)
def test_a_forged_message_is_left_to_the_serializer(message: ShownMessage) -> None:
    with pytest.raises(NeedsItsType):
        request_part(message)


@pytest.mark.parametrize(
    ("kind", "data"),
    [("msgpack", b"\xc1"), ("msgpack", b"\x01"), ("null", b""), ("pickle", b""), ("msgpack", b"")],
)
def test_what_is_no_message_is_refused_or_left_to_the_serializer(kind: str, data: bytes) -> None:
    with pytest.raises((NeedsItsType, RefusedValue)):
        PlainLoader(request_part).loads_typed((kind, data))
