"""Forms of channels: gpt-oss' harmony, and Muse's. The texts are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.models.codec.calls.channels import HARMONY, MUSE

NEXT = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>I could call f.<|end|>" + NEXT
SELF = " to=self<|message|>I could call f.<|eom|>" + NEXT


def atem(name: str, value: str) -> str:
    return (
        f'<atem:function_calls>\n<atem:invoke name="{name}">\n<atem:parameter'
        f' name="x">{value}</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    )


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json",
        " to=functions.f<|channel|>commentary json",
        "<|channel|>commentary to=functions.f code",
        "<|channel|>analysis to=functions.f",
        " to=f",
    ],
)
def test_a_message_to_a_tool_is_a_call(header: str) -> None:
    turn = HARMONY.read(f'{THOUGHT}{header}<|message|>{{"x": 1}}', {})
    assert turn.tool_calls == [{"name": "f", "args": {"x": 1}}]
    assert (turn.reasoning, turn.content, turn.invalid_tool_calls) == ("I could call f.", "", [])


@pytest.mark.parametrize(
    "value",
    [
        "<|end|>",
        f"<|call|>{NEXT} to=functions.g<|message|>{{}}",
        "<|message|>",
        NEXT,
        " to=functions.g",
        "</atem:invoke>",
    ],
)
def test_a_string_may_hold_marks(value: str) -> None:
    (call,) = HARMONY.read(f'{THOUGHT} to=functions.f<|message|>{{"x": "{value}"}}', {}).tool_calls
    assert call == {"name": "f", "args": {"x": value}}
    (call,) = MUSE.read(f"{SELF} to=f<|message|>{atem('f', value)}", {}).tool_calls
    assert call == {"name": "f", "args": {"x": value}}


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<|channel|>final<|message|>It is 42.", "It is 42.", None),
        (
            f"{THOUGHT}<|channel|>final<|message|>It is 42.<|return|>",
            "It is 42.",
            "I could call f.",
        ),
        (
            f"{THOUGHT}{THOUGHT}<|channel|>final<|message|>42",
            "42",
            "I could call f.\n\nI could call f.",
        ),
        ("<|channel|>final<|message|>set x to=5 {}", "set x to=5 {}", None),
        (
            f"<|channel|>commentary<|message|>First.<|end|>{NEXT}<|channel|>final<|message|>42",
            "First.\n\n42",
            None,
        ),
        ("It is 42.", "It is 42.", None),
        ("<|channel|>analysis<|message|>only thoughts", "", "only thoughts"),
        (
            '<|channel|>analysis<|message|>{"name": "f", "arguments": {}}',
            "",
            '{"name": "f", "arguments": {}}',
        ),
        ("", "", None),
    ],
)
def test_thoughts_and_words_of_harmony(text: str, content: str, reasoning: str | None) -> None:
    turn = HARMONY.read(text, {})
    assert (turn.content, turn.reasoning, turn.tool_calls, turn.invalid_tool_calls) == (
        content,
        reasoning,
        [],
        [],
    )


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        (" to=user<|message|>It is 42.", "It is 42.", None),
        (f"{SELF} to=user<|message|>It is 42.<|eot|>", "It is 42.", "I could call f."),
        (
            f" to=self<|message|>{atem('f', '1')}<|eom|>{NEXT} to=user<|message|>42",
            "42",
            atem("f", "1"),
        ),
        (f" to=user<|message|>{atem('f', '1')}", atem("f", "1"), None),
        ("It is 42.", "It is 42.", None),
        (" to=self<|message|>only thoughts", "", "only thoughts"),
    ],
)
def test_thoughts_and_words_of_muse(text: str, content: str, reasoning: str | None) -> None:
    turn = MUSE.read(text, {})
    assert (turn.content, turn.reasoning, turn.tool_calls, turn.invalid_tool_calls) == (
        content,
        reasoning,
        [],
        [],
    )


def test_several_messages_to_tools() -> None:
    calls = [{"name": "f", "args": {"x": 1}}, {"name": "g", "args": {"x": 2}}]
    text = f' to=functions.f<|message|>{{"x": 1}}<|call|>{NEXT} to=functions.g<|message|>{{"x": 2}}'
    assert HARMONY.read(text, {}).tool_calls == calls
    text = f" to=f<|message|>{atem('f', '1')}<|eom|>{NEXT} to=g<|message|>{atem('g', '2')}"
    assert MUSE.read(text, {}).tool_calls == calls
    assert MUSE.read(f" to=f<|message|>{atem('f', '1')}\n{atem('g', '2')}", {}).tool_calls == calls


def test_types_are_those_of_the_schema() -> None:
    schemas: Any = {"f": {"properties": {"x": {"type": "string"}}}}
    assert MUSE.read(f" to=f<|message|>{atem('f', '1')}", schemas).tool_calls[0]["args"] == {
        "x": "1"
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (' to=functions.f<|message|>{"x": 1', "Expecting"),
        (" to=functions.f<|message|>print(1)", "Expecting value"),
        (' to=functions.f<|message|>{"x": 1} and so on', "text stands after"),
        (' to=functions.f<|message|>"1"', "is a string"),
        (" to=functions.f<|message|>", "Expecting value"),
        (" to=functions.f<|message|>" + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_call_of_harmony_that_cannot_be_read_says_why(text: str, error: str) -> None:
    turn = HARMONY.read(THOUGHT + text, {})
    assert (turn.tool_calls, turn.content) == ([], "")
    (found,) = turn.invalid_tool_calls
    assert error in found["error"] and found["name"] == "f"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("print(1)", "holds no call"),
        (atem("f", "1").replace("</atem:parameter>", ""), "'x' is not closed"),
        (
            atem("f", "1").removesuffix("</atem:function_calls>"),
            "not closed by </atem:function_calls>",
        ),
        ("", "holds no call"),
    ],
)
def test_a_call_of_muse_that_cannot_be_read_says_why(body: str, error: str) -> None:
    turn = MUSE.read(
        f"{SELF} to=f<|message|>{body}<|eom|>{NEXT} to=g<|message|>{atem('g', '2')}", {}
    )
    assert turn.tool_calls == [{"name": "g", "args": {"x": 2}}]
    (found,) = turn.invalid_tool_calls
    assert error in found["error"] and found["name"] == "f"
