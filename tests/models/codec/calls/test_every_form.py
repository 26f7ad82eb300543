"""Rules of every call form: it reads what it writes, accepts any text, and takes linear time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import strategies as st

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.calls.form import CallForm, schemas_of
from hrm_agent.models.codec.calls.registry import FORMS, form_named
from hrm_agent.models.engine import ParsedTurn
from tests.support.family_turns import BY_FAMILY
from tests.support.properties import few_and_many, holds

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "code": {"type": "string"},
                    "n": {"type": "integer"},
                    "items": {"type": "array"},
                },
            },
        },
    }
    for name in ("python", "search")
]
SCHEMAS = schemas_of(TOOLS)
_WORDS = """
<tool_call> </tool_call> <function=python> </function> <parameter=code> </parameter> <tool_call>python
<arg_key>code</arg_key> <arg_key> </arg_key> <arg_value> </arg_value>
<|tool_call> <tool_call|> <|tool_call>call:python{ <|"|> code:<|"|> <|tool_response>
<|tool_call_start|> <|tool_call_end|> [python( python(code=' ',n= ')] )]
[TOOL_CALLS] [ARGS] [CALL_ID] [TOOL_CALLS]python[ARGS] <|tool_call|> <|/tool_call|> <|python_tag|>
<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜>
<|start|>assistant <|message|> <|channel|>final <|channel|>analysis <|constrain|>json <|end|> <|call|>
<|return|> <|eom|> <|eot|> <think> </think> <|im_end|> </s> print(1) é漢😀
</atem:parameter> </atem:invoke> <atem:function_calls> </atem:function_calls>
{ } [ ] ( ) " ' \\ , : ; = 1 - true null NaN ''' {"name": "code": \\u0041 \x00 \ufffd
"""
TAGS = (
    *_WORDS.split(),
    *(
        " to=functions.python",
        " to=self",
        " to=python",
        " to=user",
        "```json\n",
        "\n```",
        "\n",
        " ",
        "\u2028",
    ),
    *(
        '<atem:invoke name="python">',
        '<atem:parameter name="code">',
        '"""',
        "9" * 5000,
        "1e999",
        "[" * 300,
        '{"a":' * 300,
    ),
    *('{"name": "python", "arguments": {"code": "1"}}', '{"name": "python", "parameters": {'),
)
each = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


@each
@few_and_many
def test_any_text_is_taken_apart(form: CallForm, examples: int) -> None:
    """Any text is read without an exception, and the parsed turn can be stored and written again."""
    own = [turns.call("python", code="1") for turns in BY_FAMILY.values()] + [
        broken for turns in BY_FAMILY.values() for broken in turns.form.malformed.values()
    ]

    def check(pieces: list[str]) -> None:
        turn = form.read("".join(pieces), SCHEMAS)
        assert isinstance(turn, ParsedTurn)
        for call in turn.tool_calls:
            assert call["name"] and isinstance(call["args"], dict)
            json.dumps(call, allow_nan=False).encode()
        for invalid in turn.invalid_tool_calls:
            assert invalid["error"] and isinstance(invalid["args"], str)
        if turn.tool_calls:
            assert isinstance(form.write(turn.tool_calls), str)

    holds(
        check, examples, pieces=st.lists(st.sampled_from((*TAGS, *sorted(set(own)))), max_size=12)
    )


@each
@few_and_many
def test_it_reads_what_it_writes(form: CallForm, examples: int) -> None:
    plain = st.text(st.sampled_from("ab \n'\"\\{}[](),:=<>/é漢😀0"), max_size=12)
    number = st.integers(-(2**63), 2**63 - 1)

    def check(code: str, n: int, items: list[Any]) -> None:
        calls: list[dict[str, Any]] = [
            {"name": "python", "args": {"code": code, "n": n, "items": items}}
        ]
        assert form.read(form.write(calls), SCHEMAS).tool_calls == calls
        calls.append({"name": "search", "args": {}})
        if form.name not in ("harmony", "muse"):
            assert form.read(form.write(calls), SCHEMAS).tool_calls == calls

    simple = st.recursive(
        number | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    )
    holds(check, examples, code=plain, n=number, items=st.lists(simple, max_size=3))


def written(form: CallForm, value: str) -> str:
    """A call with a value in place of a number."""
    return form.write([{"name": "python", "args": {"n": 12345}}]).replace("12345", value)


@each
def test_a_number_that_is_not_finite_is_refused(form: CallForm) -> None:
    """JSON cannot represent it, and Gemma's form would read it back as a text."""
    for value in ("1e999", "-1e999"):
        turn = form.read(written(form, value), {})
        assert turn.tool_calls == []
        assert ["not finite" in found["error"] for found in turn.invalid_tool_calls] == [True]


@each
def test_no_depth_of_nesting_is_too_deep_for_a_reader(form: CallForm) -> None:
    """Some depths leave no stack for whatever comes after decoding."""
    for depth in range(700, 1001):
        whole = written(form, "[" * depth + "]" * depth)
        for text in (whole, whole.replace("}", "} x")):
            turn = form.read(text, {})
            assert turn.tool_calls or turn.invalid_tool_calls


@each
def test_an_argument_that_holds_the_end_of_its_call_is_never_cut(form: CallForm) -> None:
    """The shortened call would be run, and the rest shown as words."""
    for others in ({}, {"n": 1}):
        end = form.write([{"name": "python", "args": {"code": "VALUE", **others}}]).partition(
            "VALUE"
        )[2]
        calls: list[dict[str, Any]] = [{"name": "python", "args": {"code": f"x{end}y", **others}}]
        turn = form.read(form.write(calls), SCHEMAS)
        assert turn.tool_calls == calls or (
            turn.tool_calls == [] and len(turn.invalid_tool_calls) == 1
        )
        assert turn.content == ""


@each
def test_each_of_many_undecodable_calls_keeps_its_own_text(form: CallForm) -> None:
    """Keeping the text of all calls with each of them would be quadratic."""
    text = form.write([{"name": "f", "args": {"n": 2**64}}] * 1000)
    kept = [found["args"] for found in form.read(text, {}).invalid_tool_calls]
    assert len(kept) == 1000 and sum(map(len, kept)) < 3 * len(text)


@each
def test_calls_of_other_families_are_read_as_nothing_else(form: CallForm) -> None:
    """Foreign calls are read as text, as an unreadable call, or as the call that was meant."""
    for name, turns in BY_FAMILY.items():
        turn = form.read(turns.call("python", code="6 * 7"), SCHEMAS)
        assert turn.tool_calls in ([], [{"name": "python", "args": {"code": "6 * 7"}}]), name


_ATEM = '<atem:function_calls><atem:invoke name="f">'
BLOWN_UP = (
    *(
        "<tool_call>",
        '<tool_call>{"',
        "<tool_call>[",
        "<tool_call><function=f><parameter=a>",
        "</parameter>",
    ),
    *(
        "<tool_call><function=f><parameter=a></parameter>x",
        "<tool_call>f<arg_key>a</arg_key><arg_value></arg_value>x",
    ),
    *('<|tool_call>call:f{a:<|"|>', "<|tool_call>call:f{a:[[", "<|tool_call>call:", '<|"|>'),
    *(
        "<|tool_call_start|>[f(x='",
        "<|tool_call_start|>[f(x=[[",
        "<|tool_call_end|>",
        "[f(x='",
        "'",
    ),
    *(
        "[TOOL_CALLS]",
        '[TOOL_CALLS]f[ARGS]{"',
        "<|tool_call|>",
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"',
    ),
    *("<｜tool▁calls▁begin｜>", '<|start|>assistant to=f<|message|>{"', "<|message|>", " to="),
    f'<|start|>assistant to=f<|message|>{_ATEM}<atem:parameter name="x">',
    f'{_ATEM}<atem:parameter name="x"></atem:parameter>x',
    *('{"name": "f", "parameters": {}}', "{", " ", '"', "\\"),
)
SWALLOWING = (
    ("<tool_call><function=f><parameter=a>", "</parameter><parameter=b>"),
    ("<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value><arg_key>b</arg_key><arg_value>"),
    ('<|tool_call>call:f{a:<|"|>', '<|"|>,b:1,c:<|"|>'),
    ("<|tool_call_start|>[f(x='", "',y='"),
    ("<|tool_call_start|>[f(x=", "1, y=2, z="),
    (
        '<atem:function_calls><atem:invoke name="f"><atem:parameter name="a">',
        '</atem:parameter><atem:parameter name="b">',
    ),
)
"""Beginning of a call, and a text that makes the last call swallow all others. Each call might
therefore do so.
"""


def seconds(form: CallForm, text: str) -> float:
    begun = time.process_time()
    form.read(text, SCHEMAS)
    return time.process_time() - begun


def grows_evenly(form: CallForm, *parts: str) -> bool:
    """True if a megabyte of these parts takes about four times as long as a quarter of it. A
    quadratic reader takes sixteen times as long.
    """

    def of_length(length: int) -> float:
        return seconds(form, "".join(each * (length // len(parts) // len(each)) for each in parts))

    quarter = of_length(1 << 18)
    return of_length(1 << 20) < 8 * max(quarter, 0.05)


@each
def test_time_grows_with_the_length_of_the_text(form: CallForm) -> None:
    # Smaller ones find out which text takes longest: all of them at full length would take a
    # minute.
    begun = {begin: seconds(form, begin * ((1 << 14) // len(begin))) for begin in BLOWN_UP}
    slowest = max(begun, key=lambda begin: begun[begin])
    assert grows_evenly(form, slowest), slowest
    for begin, then in SWALLOWING:
        if begin.startswith(form.marks):
            assert grows_evenly(form, begin, then), begin


def test_a_form_that_nobody_has_is_refused() -> None:
    assert all(form_named(form.name) is form for form in FORMS)
    with pytest.raises(ModelError, match="no form of tool calls 'herms'"):
        form_named("herms")
