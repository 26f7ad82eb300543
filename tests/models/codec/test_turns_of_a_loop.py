"""Conversations with turns that templates do not support: unreadable calls, and words beside calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.codec.thoughts import REASONING
from tests.support import families

pytestmark = pytest.mark.real_tokenizers

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "python",
            "description": "Runs code",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string"}},
                "required": ["code"],
            },
        },
    }
]
ASKED: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("What is 6 * 7?")]
REASON = "Invalid tool call: it is not closed"
DEFAULT = {
    "gemma3",
    "deepseekv3",
    "nemotron_3_nano",
    "glm4moe",
    "gemma4_v3",
    "lfm2_2_5_v2",
    "llama3_1",
    "gptoss",
}
each_family = pytest.mark.parametrize(
    "name",
    [
        name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow)
        for name in families.FAMILIES
    ],
)


def answer(thoughts: bool, content: str = "", *, calls: int = 0, invalid: int = 0) -> AIMessage:
    return AIMessage(
        content,
        tool_calls=[
            {"name": "python", "args": {"code": f"{i}"}, "id": f"call-{i}"} for i in range(calls)
        ],
        invalid_tool_calls=[
            {"type": "invalid_tool_call", "name": None, "args": "RAW", "error": "", "id": f"x-{i}"}
            for i in range(invalid)
        ],
        additional_kwargs={REASONING: "So I compute."} if thoughts else {},
    )


def results(message: AIMessage) -> list[BaseMessage]:
    right = [
        ToolMessage(f"RESULT {call['id']}", tool_call_id=call["id"], name="python")
        for call in message.tool_calls
    ]
    wrong = [
        ToolMessage(f"{REASON} {call['id']}", tool_call_id=str(call["id"]), name="unknown")
        for call in message.invalid_tool_calls
    ]
    return [*right, *wrong]


def shown(codec: ChatTemplateCodec, ids: Sequence[int]) -> str:
    return codec.tokenizer.decode(list(ids), skip_special_tokens=False)


@each_family
@pytest.mark.parametrize("thoughts", [False, True])
def test_the_conversation_goes_on(name: str, thoughts: bool) -> None:
    codec = ChatTemplateCodec(families.load(name))
    if thoughts and (codec.dialect.thoughts is None or codec.dialect.thoughts.closed):
        return
    fresh = shown(codec, codec.encode(ASKED, TOOLS)).rpartition("6 * 7?")[2]
    plain = answer(thoughts, calls=1)
    goes_on = shown(codec, codec.encode([*ASKED, plain, *results(plain)], TOOLS)).rpartition(
        "RESULT call-0"
    )[2]
    for message in (
        answer(thoughts, invalid=1),
        answer(thoughts, "Well.", invalid=1),
        answer(thoughts, "Well.", calls=1),
        answer(thoughts, calls=1, invalid=1),
        answer(thoughts, "Well.", calls=2, invalid=2),
    ):
        seen = [*ASKED, message, *results(message)]
        sampled = codec.encode_turn([*ASKED, message], TOOLS)
        inserted = shown(codec, codec.extend(seen, 2, ended_by=sampled[-1], tools=TOOLS))
        whole = shown(codec, codec.encode(seen, TOOLS))
        for result in results(message):
            assert result.text in inserted and result.text in whole, (
                "the model is shown what came of each call"
            )
        last = results(message)[-1].text
        for text in (inserted, whole):
            after = text.rpartition(last)[2]
            assert after.endswith(fresh) or after == goes_on, (
                "the model is asked in an answer's place"
            )


@each_family
def test_a_written_answer_with_words_and_calls_is_read_back(name: str) -> None:
    """A turn encoded for fine-tuning is parsed back. A form without words beside calls keeps the
    calls.
    """
    codec = ChatTemplateCodec(families.load(name))
    for message in (
        answer(False, "Well.", calls=1),
        answer(False, calls=2),
        answer(False, "Well.", calls=2),
    ):
        read = codec.parse(codec.decode(codec.encode_turn([*ASKED, message], TOOLS)), TOOLS)
        calls = [{"name": call["name"], "args": call["args"]} for call in message.tool_calls]
        assert (read.tool_calls, read.invalid_tool_calls) == (calls, [])
        kept = message.text if codec.dialect.form.words else ""
        assert kept in f"{read.reasoning} {read.content}" and len(read.content.strip()) <= len(kept)
