"""Gemma 4's form. The texts are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.models.codec.calls.gemma import GEMMA


def read(inner: str) -> list[dict[str, Any]]:
    return GEMMA.read(f"<|tool_call>call:f{{{inner}}}<tool_call|>", {}).tool_calls


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ("", {}),
        ('code:<|"|>print("a, b: {c}")\nx = [1]<|"|>', {"code": 'print("a, b: {c}")\nx = [1]'}),
        (
            "n:3,x:-1.5,on:true,off:False,z:null,y:None",
            {"n": 3, "x": -1.5, "on": True, "off": False, "z": None, "y": None},
        ),
        ('l:[1,<|"|>a,b<|"|>,[],{k:true}]', {"l": [1, "a,b", [], {"k": True}]}),
        ('o:{a:{b:<|"|>}<|"|>},c:[2]}', {"o": {"a": {"b": "}"}, "c": [2]}}),
        ('<|"|>a b<|"|>:1', {"a b": 1}),
        ('code: <|"|>a<|"|> ,\n n : 3 ', {"code": "a", "n": 3}),
        ("word:plain text", {"word": "plain text"}),
        ('code:<|"|><|"|>', {"code": ""}),
        ('code:<|"|>say <|"|> twice<|"|>,n:1', {"code": 'say <|"|> twice', "n": 1}),
        (
            'code:<|"|><tool_call|><|tool_call>call:g{}<|"|>',
            {"code": "<tool_call|><|tool_call>call:g{}"},
        ),
        ("n:NaN", {"n": "NaN"}),
    ],
)
def test_arguments(inner: str, arguments: dict[str, Any]) -> None:
    assert read(inner) == [{"name": "f", "args": arguments}]


def test_calls_and_the_words_around_them() -> None:
    text = "First. <|tool_call>call:f{n:1}<tool_call|><|tool_call>call:a.b-c{}<tool_call|> Last."
    turn = GEMMA.read(text, {})
    assert turn.tool_calls == [{"name": "f", "args": {"n": 1}}, {"name": "a.b-c", "args": {}}]
    assert (turn.content, turn.invalid_tool_calls) == ("First.  Last.", [])


@pytest.mark.parametrize(
    ("call", "name", "error"),
    [
        ("<|tool_call>call:f{n:1}", "f", "not closed by <tool_call|>"),
        ('<|tool_call>call:f{code:<|"|>1}<tool_call|>', "f", "a string is not closed"),
        ("<|tool_call>call:f{n:1<tool_call|>", "f", "not followed by a comma or }"),
        ("<|tool_call>call:f{n:[1}<tool_call|>", "f", "not followed by a comma or ]"),
        ("<|tool_call>call:f{n:}<tool_call|>", "f", "a value is missing"),
        ("<|tool_call>call:f{1}<tool_call|>", "f", "an argument has no name"),
        ("<|tool_call>call:f{:1}<tool_call|>", "f", "an argument has no name"),
        ("<|tool_call>call:f<tool_call|>", "f", "no object"),
        ('<|tool_call>call:f{"n": 1<tool_call|>', "f", "not followed by a comma or }"),
        ('<|tool_call>{"name": "f"}<tool_call|>', None, "begins with call:NAME{"),
        ("<|tool_call>f(n=1)<tool_call|>", None, "begins with call:NAME{"),
        ("<|tool_call><tool_call|>", None, "begins with call:NAME{"),
        ("<|tool_call>call:f{n:" + "[" * 300 + "]" * 300 + "}<tool_call|>", "f", "levels deep"),
        (
            "<|tool_call>call:f{n:" + "{a:" * 70 + "1" + "}" * 71 + "<tool_call|>",
            "f",
            "levels deep",
        ),
        (f"<|tool_call>call:f{{n:{2**64}}}<tool_call|>", "f", "64 bits"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(call: str, name: str | None, error: str) -> None:
    turn = GEMMA.read(f"So:{call}", {})
    assert turn.tool_calls == [] and turn.content == "So:"
    (found,) = turn.invalid_tool_calls
    assert error in found["error"] and (found["name"], found["args"]) == (name, call)


def test_a_call_behind_one_that_was_left_open_is_read() -> None:
    right = '<|tool_call>call:f{code:<|"|>1<|"|>}<tool_call|>'
    for wrong in (
        '<|tool_call>call:f{code:<|"|>1}<tool_call|>',
        "<|tool_call>call:f{n:1}",
        "<|tool_call>call:f{n:[",
    ):
        turn = GEMMA.read(f"{wrong}\n{right}", {})
        assert [found["args"] for found in turn.tool_calls] == [{"code": "1"}]
        assert len(turn.invalid_tool_calls) == 1
