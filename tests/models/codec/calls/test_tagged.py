"""Forms of tags: Qwen's coder models, GLM, and Muse's ATEM. The texts are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.models.codec.calls.form import CallForm, Schemas
from hrm_agent.models.codec.calls.tagged import ATEM, GLM, QWEN_XML

FORMS = (QWEN_XML, GLM, ATEM)
NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
SCHEMAS: Schemas = {
    "f": {
        "properties": {
            "code": {"type": "string"},
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "on": {"type": "boolean"},
            "items": {"type": "array"},
            "table": {"type": "object"},
            "maybe": NULLABLE,
            "either": {"type": ["string", "integer"]},
            "choice": {"enum": ["1", "2"]},
            "level": {"enum": [1, 2]},
            "named": {"$ref": "#/$defs/Name"},
            "any": {},
            "odd": {"type": 3, "anyOf": [7, {"$ref": "#/$defs/Odd"}], "enum": "x"},
        },
        "$defs": {"Name": {"type": "string"}, "Odd": {"$ref": "#/$defs/Odd"}},
    }
}


def call(form: CallForm, name: str, **values: str) -> str:
    """Text of a call as the models write it."""
    if form is QWEN_XML:
        inner = "".join(
            f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()
        )
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
    if form is GLM:
        inner = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
            for key, value in values.items()
        )
        return f"<tool_call>{name}\n{inner}</tool_call>"
    inner = "".join(
        f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in values.items()
    )
    return (
        "<atem:function_calls>\n<atem:invoke"
        f' name="{name}">\n{inner}</atem:invoke>\n</atem:function_calls>'
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_calls_and_the_words_around_them(form: CallForm) -> None:
    one = call(form, "f", code="a = 1\nb = '<b>'", n="3")
    two = call(form, "g")
    turn = form.read(f"First.\n{one}\n{two} Last.", SCHEMAS)
    assert turn.tool_calls == [
        {"name": "f", "args": {"code": "a = 1\nb = '<b>'", "n": 3}},
        {"name": "g", "args": {}},
    ]
    assert (turn.content, turn.invalid_tool_calls) == ("First.\n\n Last.", [])


@pytest.mark.parametrize("form", [QWEN_XML, ATEM], ids=lambda form: form.name)
def test_a_block_may_hold_several_calls(form: CallForm) -> None:
    text = call(form, "f", n="1") + call(form, "f", n="2")
    before, after = (
        ("<tool_call>", "</tool_call>")
        if form is QWEN_XML
        else (*form.marks, "</atem:function_calls>")
    )
    assert [
        found["args"]
        for found in form.read(text.replace(f"{after}{before}", ""), SCHEMAS).tool_calls
    ] == [
        {"n": 1},
        {"n": 2},
    ]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "value",
    [
        "</tool_call>",
        "print('</parameter>')",
        "x = '</arg_value>' + y",
        '</atem:parameter>, "</atem:invoke>"',
        "<tool_call>\n<function=g>",
        "<arg_key>k</arg_key>",
        "</function></tool_call>",
        "</atem:function_calls>",
        "if a < b:\n\n    pass  ",
        "<think>no</think>",
        '{"name": "g", "arguments": {}}',
    ],
)
def test_a_string_may_hold_tags(form: CallForm, value: str) -> None:
    assert form.read(call(form, "f", code=value, n="1"), SCHEMAS).tool_calls == [
        {"name": "f", "args": {"code": value, "n": 1}}
    ]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("code", "42", "42"),
        ("code", "null", "null"),
        ("code", "True", "True"),
        ("n", "42", 42),
        ("n", "forty-two", "forty-two"),
        ("x", "-1.5e3", -1500.0),
        ("x", "2", 2),
        ("on", "true", True),
        ("on", "True", True),
        ("on", "False", False),
        ("items", '[1, "a", null]', [1, "a", None]),
        ("items", "[1, 2", "[1, 2"),
        ("table", '{"k": {"l": []}}', {"k": {"l": []}}),
        ("maybe", "42", "42"),
        ("maybe", "None", None),
        ("maybe", "null", None),
        ("either", "42", 42),
        ("either", "[42]", "[42]"),
        ("choice", "1", "1"),
        ("level", "1", 1),
        ("named", "42", "42"),
        ("any", "42", 42),
        ("any", "None", None),
        ("any", "plain words", "plain words"),
        ("unknown", '{"a": 1}', {"a": 1}),
        ("n", "NaN", "NaN"),
        ("odd", "42", "42"),
    ],
)
def test_types_are_those_of_the_schema(form: CallForm, key: str, written: str, value: Any) -> None:
    (found,) = form.read(call(form, "f", **{key: written}), SCHEMAS).tool_calls
    assert found["args"] == {key: value} and type(found["args"][key]) is type(value)


INVALID = {
    QWEN_XML.name: {
        "<tool_call>\n<function=f>\n<parameter=code>\n1\n</parameter>\n</function>\n": (
            "not closed by </tool_call>"
        ),
        "<tool_call>\n<function=f>\n<parameter=code>\n1\n</function>\n</tool_call>": (
            "'code' is not closed"
        ),
        "<tool_call>\n<function=f>\n<parameter=code>\n1\n</parameter>\n</tool_call>": (
            "'code' is not closed"
        ),
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>': "begins with <function=NAME>",
        "<tool_call></tool_call>": "begins with <function=NAME>",
        "<tool_call>\n<function= >\n</function>\n</tool_call>": "no name",
        "<tool_call>\n<function=f>\nx\n</function>\n</tool_call>": "and not 'x",
    },
    GLM.name: {
        "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>1</arg_value>\n": (
            "not closed by </tool_call>"
        ),
        "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>1\n</tool_call>": "'code' is not closed",
        "<tool_call>f\n<arg_key>code</arg_key>\n1</arg_value>\n</tool_call>": (
            "an argument or </tool_call>"
        ),
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>': "begins with the tool's name",
        "<tool_call></tool_call>": "begins with the tool's name",
        "<tool_call>f {}</tool_call>": "and not '{}",
    },
    ATEM.name: {
        '<atem:function_calls><atem:invoke name="f"></atem:invoke>': (
            "not closed by </atem:function_calls>"
        ),
        '<atem:function_calls><atem:invoke name="f"><atem:parameter name="code">1</atem:invoke></atem:function_calls>': (  # noqa: E501
            "'code' is not closed"
        ),
        '<atem:function_calls>{"name": "f"}</atem:function_calls>': "begins with <atem:invoke",
    },
}


@pytest.mark.parametrize(
    ("form", "text", "error"),
    [(form, *each) for form in FORMS for each in INVALID[form.name].items()],
)
def test_a_call_that_cannot_be_read_says_why(form: CallForm, text: str, error: str) -> None:
    turn = form.read(f"So:{text}", SCHEMAS)
    assert turn.tool_calls == [] and turn.content == "So:"
    (found,) = turn.invalid_tool_calls
    assert error in found["error"] and found["args"] in text


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_call_behind_one_that_was_left_open_is_read(form: CallForm) -> None:
    """An unclosed call must not swallow the next one. Its code would be run with tags in it."""
    whole = call(form, "f", code="1")
    for close in ("</parameter>\n", "</arg_value>", "</atem:parameter>"):
        if close in whole:
            turn = form.read(whole.replace(close, "") + "\n" + whole, SCHEMAS)
            assert [found["args"] for found in turn.tool_calls] == [{"code": "1"}]
            assert ["not closed" in found["error"] for found in turn.invalid_tool_calls] == [True]
            assert turn.invalid_tool_calls[0]["name"] == "f"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_a_record_cannot_hold_is_refused(form: CallForm) -> None:
    for value, error in (("[" * 70 + "]" * 70, "levels deep"), (str(2**64), "64 bits")):
        (found,) = form.read(call(form, "f", any=value), SCHEMAS).invalid_tool_calls
        assert error in found["error"]
    deep = "[" * 100_000 + "]" * 100_000
    (found,) = form.read(call(form, "f", any=deep), SCHEMAS).tool_calls
    assert found["args"] == {"any": deep}, "JSON that nobody can decode is text"
