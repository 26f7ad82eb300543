"""Mistral's formats: prompts, calls and results, token for token as mistral-common has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from transformers import MistralConfig

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.codec.opening import load_codec_of, open_codec
from hrm_agent.models.codec.thoughts import REASONING
from hrm_agent.models.engine import TemplateMismatch
from tests.models.codec.test_families import ASKED, TAGS, TOOLS, fuzz, shown
from tests.support import mistral

CALLS = {
    "v3": '[TOOL_CALLS][{"name": "python", "arguments": {"code": "6 * 7"}, "id": "abcdefgh0"}]</s>',
    "v7": '[TOOL_CALLS][{"name": "python", "arguments": {"code": "6 * 7"}, "id": "abcdefgh0"}]</s>',
    "v11": '[TOOL_CALLS]python[CALL_ID]abcdefgh0[ARGS]{"code": "6 * 7"}</s>',
    "v13": '[TOOL_CALLS]python[ARGS]{"code": "6 * 7"}</s>',
}
"""Text of a call in each version of the format."""


def called(*codes: str, content: str = "", ids: str = "abcdefgh", **more: Any) -> AIMessage:
    calls = [
        {"name": "python", "args": {"code": code}, "id": f"{ids}{i}"}
        for i, code in enumerate(codes)
    ]
    return AIMessage(content, tool_calls=calls, additional_kwargs=more)


def results(message: AIMessage) -> list[BaseMessage]:
    return [
        ToolMessage(f"{i} is it", tool_call_id=str(c["id"]))
        for i, c in enumerate(message.tool_calls)
    ]


def openai(messages: list[BaseMessage]) -> list[Any]:
    """Messages in OpenAI's form, with arguments as text and thoughts as a block of the content."""
    roles = {"human": "user", "ai": "assistant"}
    found: list[Any] = []
    for message in messages:
        turn: dict[str, Any] = {
            "role": roles.get(message.type, message.type),
            "content": message.text,
        }
        if isinstance(message, ToolMessage):
            turn["tool_call_id"] = message.tool_call_id
        if isinstance(message, AIMessage) and message.tool_calls:
            functions = [
                {"name": c["name"], "arguments": json.dumps(c["args"])} for c in message.tool_calls
            ]
            ids = [c["id"] for c in message.tool_calls]
            turn["tool_calls"] = [
                {"id": i, "function": f} for i, f in zip(ids, functions, strict=True)
            ]
        if thought := message.additional_kwargs.get(REASONING):
            text = [{"type": "text", "text": message.text}] if message.text else []
            turn["content"] = [{"type": "thinking", "thinking": thought, "closed": True}, *text]
        found.append(turn)
    return found


@pytest.mark.parametrize(
    ("version", "tokens"),
    [*((each, mistral.TOKENS) for each in CALLS), pytest.param("v3", None, marks=pytest.mark.slow)],
)
def test_a_conversation_with_a_tool_is_that_of_mistral_common(
    version: str, tokens: int | None, tmp_path: Path
) -> None:
    file = mistral.write(tmp_path, version, tokens=tokens)
    codec: Any = open_codec(mistral.load(file))
    oracle = mistral.Oracle(file)
    assert codec.speech.tools == "mistral, by its template"
    assert not codec.speech.faults
    prompt = codec.encode(ASKED, TOOLS)
    assert prompt == oracle.ids(openai(ASKED), TOOLS)
    call = called("6 * 7")
    sampled = codec.encode_turn([*ASKED, call], TOOLS)
    assert shown(codec, sampled) == CALLS[version]
    read = codec.parse(codec.decode(sampled), TOOLS)
    assert read.tool_calls == [{"name": "python", "args": {"code": "6 * 7"}}]
    assert not read.invalid_tool_calls
    seen = [*ASKED, call, *results(call)]
    inserted = codec.extend(seen, 2, ended_by=sampled[-1], tools=TOOLS)
    assert [*prompt, *sampled, *inserted] == oracle.ids(openai(seen), TOOLS)
    # a call of v3 has no words beside it
    two = called("1", "2", content="Both." if version != "v3" else "")
    both = [*ASKED, two, *results(two)]
    assert codec.encode(both, TOOLS) == oracle.ids(openai(both), TOOLS)
    last = codec.encode_turn(both[:3], TOOLS)
    assert codec.parse(codec.decode(last), TOOLS).tool_calls == [
        {"name": "python", "args": {"code": c}} for c in "12"
    ]
    if version == "v13":  # the others rewrite what stands before the last question
        fuzz(codec, version, 6, seed=0)


@pytest.mark.parametrize("version", CALLS)
def test_spellings_of_tokens_in_a_conversation_are_text(version: str, tmp_path: Path) -> None:
    codec = ChatTemplateCodec(mistral.load(mistral.write(tmp_path, version)))
    controls: list[list[int]] = []
    for text in ("".join(TAGS), "word"):
        code = text.replace("[TOOL_CALLS]", "")
        seen = [
            SystemMessage(text),
            HumanMessage(text),
            called(code),
            ToolMessage(text, tool_call_id="abcdefgh0"),
        ]
        controls.append([i for i in codec.encode(seen, TOOLS) if i in codec.control_token_ids])
        sampled = codec.encode_turn(seen[:3], TOOLS)
        assert codec.parse(codec.decode(sampled), TOOLS).tool_calls == [
            {"name": "python", "args": {"code": code}}
        ]
    assert controls[0] == controls[1]


def test_ids_of_calls_become_nine_letters_where_the_format_wants_that(tmp_path: Path) -> None:
    codec = ChatTemplateCodec(mistral.load(mistral.write(tmp_path, "v7")))
    call = called("6 * 7", ids="0123456789abcdef-")
    seen = [*ASKED, call, *results(call)]
    written = shown(codec, codec.encode(seen, TOOLS)).partition('"id": "')[2]
    short = written.partition('"')[0]
    assert len(short) == 9
    assert short.isalnum()
    assert f"[TOOL_RESULTS]{short}[TOOL_CONTENT]0 is it" in written


def test_thoughts_of_v13_are_thoughts(tmp_path: Path) -> None:
    file = mistral.write(tmp_path, "v13", thinks=True)
    codec = ChatTemplateCodec(mistral.load(file))
    call = called("6 * 7", content="I compute.", **{REASONING: "Six sevens."})
    seen = [*ASKED, call, *results(call)]
    sampled = codec.encode_turn(seen[:3], TOOLS)
    assert shown(codec, sampled) == f"[THINK]Six sevens.[/THINK]I compute.{CALLS['v13']}"
    read = codec.parse(codec.decode(sampled), TOOLS)
    assert (read.reasoning, read.content, len(read.tool_calls)) == ("Six sevens.", "I compute.", 1)
    inserted = codec.extend(seen, 2, ended_by=sampled[-1], tools=TOOLS)
    whole = [*codec.encode(ASKED, TOOLS), *sampled, *inserted]
    assert whole == codec.encode(seen, TOOLS) == mistral.Oracle(file).ids(openai(seen), TOOLS)


def test_tools_that_move_to_the_last_question_begin_a_new_sequence(tmp_path: Path) -> None:
    for version in CALLS:
        file = mistral.write(tmp_path / version, version)
        codec = ChatTemplateCodec(mistral.load(file))
        more = [*ASKED, AIMessage("It is 42."), HumanMessage("And 7 * 8?")]
        assert codec.encode(more, TOOLS) == mistral.Oracle(file).ids(openai(more), TOOLS)
        if version == "v13":
            assert codec.extend(more, 2, ended_by=codec.end_of_turn, tools=TOOLS)
        else:
            for each in (codec, ChatTemplateCodec(mistral.load(file), keep_thoughts=True)):
                with pytest.raises(TemplateMismatch):
                    each.extend(more, 2, ended_by=codec.end_of_turn, tools=TOOLS)


def test_a_folder_with_mistrals_own_file_is_a_model_though_mistral_common_is_installed(
    tmp_path: Path,
) -> None:
    file = mistral.write(tmp_path, "v3")
    MistralConfig().save_pretrained(tmp_path)
    codec = load_codec_of(str(tmp_path))
    assert codec.encode(ASKED, TOOLS) == mistral.Oracle(file).ids(openai(ASKED), TOOLS)
