"""Parsing of answers, also while they are streamed."""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st

from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.codec.calls.hermes import parse_turn, tool_call_text
from hrm_agent.models.codec.stream_decoder import StreamDecoder
from tests.support.properties import few_and_many, holds


def test_text_without_calls_is_content_as_it_stands() -> None:
    turn = parse_turn(" <answer>\\boxed{4}</answer>\n")
    assert (turn.content, turn.tool_calls, turn.invalid_tool_calls) == (
        " <answer>\\boxed{4}</answer>\n",
        [],
        [],
    )


def test_calls_are_taken_out_in_order() -> None:
    text = f"<reason>a</reason>\n{tool_call_text('f', {'x': 1})} and {tool_call_text('g', {})}"
    turn = parse_turn(text)
    assert turn.content == "<reason>a</reason>\n and"
    assert turn.tool_calls == [{"name": "f", "args": {"x": 1}}, {"name": "g", "args": {}}]


@few_and_many
def test_an_argument_may_hold_anything(examples: int) -> None:
    def check(code: str) -> None:
        for hidden in (code, f"</tool_call>{code}<tool_call>"):
            assert parse_turn(tool_call_text("python", {"code": hidden})).tool_calls == [
                {"name": "python", "args": {"code": hidden}}
            ]

    holds(check, examples, code=st.text(st.characters(exclude_categories=["Cs"])))


@pytest.mark.parametrize(
    "raw",
    [
        '{"name": "python", "arguments": {"code": "a"}',
        '{"name": python}',
        "",
        '{"a": 1} {"b": 2}',
        '{"x": "a\nb"}',
    ],
)
def test_undecodable_call_carries_the_decoders_own_words(raw: str) -> None:
    with pytest.raises(json.JSONDecodeError) as decoding:
        json.loads(raw)
    turn = parse_turn(f"x<tool_call>{raw}</tool_call>y")
    assert turn.invalid_tool_calls == [{"name": None, "args": raw, "error": str(decoding.value)}]
    assert (turn.content, turn.tool_calls) == ("xy", [])


@pytest.mark.parametrize(
    ("raw", "name", "error"),
    [
        ('{"arguments": {}}', None, "no 'name'"),
        ('{"name": 3, "arguments": {}}', None, "no 'name'"),
        ('{"name": "f"}', "f", "missing"),
        ('{"name": "f", "arguments": "{}"}', "f", "a string"),
        ('{"name": "f", "arguments": [1]}', "f", "an array"),
        ('{"name": "f", "arguments": null}', "f", "null"),
        ("[1]", None, "not an array"),
        ('{"name": "f", "arguments": {"x": NaN}}', None, "NaN"),
        ("[" * 100_000, None, "nested too deeply"),
        ("1" * 5000, None, "4300"),
        (
            '{"name": "f", "arguments": {"x": ' + "[" * 64 + "]" * 64 + "}}",
            "f",
            "more than 64 levels",
        ),
        ('{"name": "f", "arguments": {"x": [18446744073709551616]}}', "f", "more than 64 bits"),
        ('{"name": "f", "arguments": {"x": -9223372036854775809}}', "f", "more than 64 bits"),
    ],
)
def test_call_of_the_wrong_shape_is_named(raw: str, name: str | None, error: str) -> None:
    (invalid,) = parse_turn(f"<tool_call>{raw}</tool_call>").invalid_tool_calls
    assert invalid["name"] == name
    assert error in invalid["error"]
    assert invalid["args"] == raw


def test_unclosed_calls_are_invalid_and_hide_nothing_behind_them() -> None:
    call = '{"name": "f", "arguments": {}}'
    turn = parse_turn(f"a<tool_call>{call}<tool_call>{call}</tool_call>b<tool_call>{call}")
    assert turn.tool_calls == [{"name": "f", "args": {}}]
    assert [invalid["args"] for invalid in turn.invalid_tool_calls] == [call, call]
    assert all("not closed" in invalid["error"] for invalid in turn.invalid_tool_calls)
    assert turn.content == "ab"


def test_lone_surrogates_are_replaced_because_nothing_can_store_them() -> None:
    (call,) = parse_turn(
        r'<tool_call>{"name": "f", "arguments": {"x": "\ud800!\ud83d\ude00"}}</tool_call>'
    ).tool_calls
    assert call["args"] == {"x": "\ufffd!😀"}


@pytest.mark.parametrize(
    "text",
    ["é漢😀", "a < b <tool <tool_cal", "<tool_call>{}</tool_call>", "say <tool_call>{", "x\ufffd"],
)
def test_streamed_text_is_the_text_up_to_the_first_call(text: str) -> None:
    codec = ByteCodec()
    decoder = StreamDecoder(codec.decode)
    shown = [decoder.push(token) for token in codec.encode_answer(text)]
    assert "".join(shown) + decoder.finish() == text.partition("<tool_call>")[0]
    assert not any("\ufffd" in piece for piece in shown) or "\ufffd" in text


def test_streamed_text_is_shown_as_soon_as_it_can_be_read() -> None:
    codec = ByteCodec()
    decoder = StreamDecoder(codec.decode)
    assert [decoder.push(token) for token in "aé<t!".encode()] == ["a", "", "é", "", "", "<t!"]


def test_a_call_inside_of_a_closed_thought_is_a_call() -> None:
    """Thoughts are known to some templates only. A call dropped silently would look like a tool
    that does not answer.
    """
    call = tool_call_text("python", {"code": "1"})
    turn = parse_turn(f"<think>I could try {call} first.</think>So:{call}")
    assert [found["args"] for found in turn.tool_calls] == [{"code": "1"}] * 2
    assert turn.content == "<think>I could try  first.</think>So:" and turn.invalid_tool_calls == []
